import os
from pathlib import Path

import pytest
from moe.cli.addresses import find_router, named, only
from moe.cli.errors import CliError, UsageError
from moe.cli.launch import Launch, prepared
from moe.cli.supervise import state_file
from moe.cli.supervise.contact import dialable
from moe.cli.supervise.state_file import DeploymentRecord
from moe.operator.planner import ModelFacts, Placement, PlanError, Wishes

MODEL = ModelFacts("demo", {0: 2}, topk=1)


@pytest.fixture
def environ(tmp_path):
    folder = Path(f"/tmp/moe-launch-{os.getpid()}-{tmp_path.name}")
    folder.mkdir()
    yield {"XDG_RUNTIME_DIR": str(folder), "PATH": os.environ["PATH"]}
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def launch(**changes):
    return Launch(**{"package": Path("/m/demo"), "model": MODEL, "wishes": Wishes(cores=2), **changes})


def record(name="demo", address="127.0.0.1:50051"):
    return DeploymentRecord(name, "demo", "/m", os.getpid(), state_file.own_start(), address, True, ())


def write_record(deployment):
    state_file.write(deployment.folder, record(deployment.name, deployment.address))


def test_a_deployment_is_named_after_its_model(environ):
    with prepared(launch(), environ) as deployment:
        assert (deployment.name, deployment.folder.name) == ("demo", "demo")


def test_its_address_is_the_router_s(environ):
    with prepared(launch(), environ) as deployment:
        assert deployment.address == f"unix:{deployment.folder}/router-0.sock"


@pytest.mark.parametrize(
    ("placement", "modules"),
    [
        (Placement.PROCESS, ("moe.expert.__main__", "moe.aggregator.__main__")),
        (Placement.EMBEDDED, ("moe.expert.__main__",)),
    ],
)
def test_the_fork_server_imports_what_the_plan_needs_but_not_the_router(environ, placement, modules):
    with prepared(launch(wishes=Wishes(cores=2, aggregator=placement)), environ) as deployment:
        assert deployment.modules == modules


def test_parts_get_the_thread_environment_of_the_plan(environ):
    with prepared(launch(wishes=Wishes(cores=4, expert_threads=2)), environ) as deployment:
        assert deployment.environ["OMP_WAIT_POLICY"] == "PASSIVE"


def test_parts_keep_the_user_s_environment(environ):
    with prepared(launch(), {**environ, "MOE_SCHEDULING_MAX_RUNNING": "3"}) as deployment:
        assert deployment.environ["MOE_SCHEDULING_MAX_RUNNING"] == "3"


def test_a_second_one_of_the_name_is_refused_with_who_has_it(environ):
    with prepared(launch(), environ) as first:
        write_record(first)
        message = rf"demo is up already \(pid {os.getpid()}, router at unix:.*choose another --name"
        with pytest.raises(CliError, match=message), prepared(launch(), environ):
            pass


def test_a_second_one_at_the_address_is_refused_with_who_has_it(environ):
    with prepared(launch(listen="127.0.0.1:50051"), environ) as first:
        write_record(first)
        again = launch(name="other", listen="0.0.0.0:50051")
        with pytest.raises(CliError, match=r"demo .* is up at 0\.0\.0\.0:50051"), prepared(again, environ):
            pass


def test_a_second_one_of_another_name_is_fine(environ):
    with prepared(launch(), environ) as first, prepared(launch(name="other"), environ) as second:
        assert first.folder != second.folder


@pytest.mark.parametrize("listen", ["50051", "127.0.0.1:x", "unix:relative", "127.0.0.1:70000"])
def test_what_is_no_address_is_refused_before_anything_starts(environ, listen):
    with pytest.raises(Exception, match="cannot listen on"), prepared(launch(listen=listen), environ):
        pass


def test_a_port_that_nobody_could_know_is_refused(environ):
    with pytest.raises(UsageError, match="choose a port"), prepared(launch(listen="127.0.0.1:0"), environ):
        pass


def test_wishes_that_do_not_fit_the_model_are_refused_and_leave_nothing(environ):
    with pytest.raises(PlanError, match="groups is 3"), prepared(launch(wishes=Wishes(cores=2, groups=3)), environ):
        pass
    assert list(Path(environ["XDG_RUNTIME_DIR"]).rglob("demo*")) == []


def test_logs_that_are_to_be_kept_go_where_their_owner_says(environ, tmp_path):
    with prepared(launch(logs=tmp_path / "logs"), environ) as deployment:
        assert (deployment.logs, deployment.logs.is_dir()) == (tmp_path / "logs", True)


def test_the_only_deployment_is_found_without_a_name(environ):
    with prepared(launch(), environ) as deployment:
        write_record(deployment)
        assert find_router(environ, None, None) == deployment.address


def test_an_address_of_the_environment_goes_before_what_is_up(environ):
    assert find_router({**environ, "MOE_ADDRESS": "h:1"}, None, None) == "h:1"


def test_an_address_of_the_command_line_goes_before_the_environment(environ):
    assert find_router({**environ, "MOE_ADDRESS": "h:1"}, "h:2", None) == "h:2"


def test_a_name_goes_before_the_address_of_the_environment(environ):
    with prepared(launch(), environ) as deployment:
        write_record(deployment)
        assert find_router({**environ, "MOE_ADDRESS": "h:1"}, None, "demo") == deployment.address


def test_nothing_up_says_how_to_bring_something_up():
    with pytest.raises(CliError, match="moe up PACKAGE"):
        only([])


def test_several_up_are_named():
    with pytest.raises(UsageError, match="several deployments are up \\(a, b\\); choose one with --name"):
        only([record("a"), record("b")])


def test_a_name_that_is_not_up_is_refused_with_those_that_are():
    with pytest.raises(CliError, match="'c' is not up; up: a, b"):
        named([record("a"), record("b")], "c")


@pytest.mark.parametrize(
    ("endpoint", "reached"),
    [
        ("0.0.0.0:1", "127.0.0.1:1"),
        ("[::]:1", "[::1]:1"),
        ("10.0.0.1:1", "10.0.0.1:1"),
        ("unix:/a/0.0.0.0:1", "unix:/a/0.0.0.0:1"),
    ],
)
def test_an_address_of_all_interfaces_is_reached_through_the_loopback(endpoint, reached):
    assert dialable(endpoint) == reached
