from moe.cli.progress import reported


def test_a_step_of_unknown_size_is_named_without_numbers(capsys):
    with reported("demo") as report:
        report(0, 0, "downloading")
    assert capsys.readouterr().err == "demo: downloading\n"


def test_the_end_is_told_after_a_step_of_unknown_size(capsys):
    with reported("demo") as report:
        report(0, 0, "downloading")
        report(2000, 2000, "layer 2")
    assert capsys.readouterr().err.splitlines()[-1] == "demo: 100 % of 2.0 kB, layer 2"


def test_a_fast_run_is_two_lines_however_many_steps_it_has(capsys):
    with reported("demo") as report:
        for done in range(101):
            report(done, 100, "x")
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_nothing_is_said_when_it_is_to_be_quiet(capsys):
    with reported("demo", quiet=True) as report:
        report(1, 1, "x")
    assert capsys.readouterr().err == ""
