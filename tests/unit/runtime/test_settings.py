"""Settings: file < environment < flag, and errors that name what is wrong."""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from moe.runtime.errors import StartupError
from moe.runtime.settings import load, setting


class Policy(enum.Enum):
    WAIT = "wait"
    FAIL = "fail"


@dataclass(frozen=True)
class Queue:
    """The queue."""

    max_waiting: int = setting(64, help="Waiting requests.", unit="requests", minimum=1, maximum=1000)
    timeout_s: float = setting(1.5, help="Patience.", unit="seconds", minimum=0)


@dataclass(frozen=True)
class Example:
    """A program's settings."""

    queue: Queue
    package: Path = setting(help="Directory of the package.")  # noqa: RUF009 - makes a dataclasses.field
    experts: tuple[int, ...] = setting((), help="Expert ids.", minimum=0)
    names: tuple[str, ...] = setting(("a",), help="Names.")
    policy: Policy = setting(Policy.WAIT, help="When a part is missing.")  # noqa: RUF009
    dtype: Literal["auto", "bfloat16"] = setting("auto", help="Element type.")
    tiled: bool = setting(False, help="Tiles.")
    limit: int | None = setting(None, help="A bound, none by default.")


def example(*argv, environ=None, package="/p"):
    given = ("--package", package) if package else ()
    return load(Example, [*given, *argv], prog="moe.example", description="Tries.", environ=environ or {})


def refusal(*argv, environ=None, package="/p"):
    with pytest.raises(StartupError) as caught:
        example(*argv, environ=environ, package=package)
    return caught.value.message


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "example.toml"

    def write(text):
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_defaults_hold_where_nothing_is_given():
    assert example() == Example(Queue(64, 1.5), Path("/p"), (), ("a",), Policy.WAIT, "auto", False, None)


GIVEN = {
    "a number": (["--max-waiting", "7"], lambda s: s.queue.max_waiting, 7),
    "after an equals sign": (["--max-waiting=7"], lambda s: s.queue.max_waiting, 7),
    "the last of two": (["--max-waiting", "7", "--max-waiting", "8"], lambda s: s.queue.max_waiting, 8),
    "a fraction": (["--timeout-s", "0.25"], lambda s: s.queue.timeout_s, 0.25),
    "a list": (["--experts", "0, 3,5"], lambda s: s.experts, (0, 3, 5)),
    "an empty list": (["--names", ""], lambda s: s.names, ()),
    "an enum": (["--policy", "fail"], lambda s: s.policy, Policy.FAIL),
    "a choice": (["--dtype", "bfloat16"], lambda s: s.dtype, "bfloat16"),
    "a switch": (["--tiled"], lambda s: s.tiled, True),
    "a switch turned off": (["--tiled", "--no-tiled"], lambda s: s.tiled, False),
    "a switch by value": (["--tiled=yes"], lambda s: s.tiled, True),
    "an optional": (["--limit", "-3"], lambda s: s.limit, -3),
    "a value with an equals sign": (["--package=/a=b"], lambda s: s.package, Path("/a=b")),
}


@pytest.mark.parametrize(("argv", "read", "value"), GIVEN.values(), ids=GIVEN)
def test_a_flag_gives(argv, read, value):
    assert read(example(*argv)) == value


def test_file_yields_to_environment_and_environment_to_flag(file):
    path = file("experts = [1]\n[queue]\nmax_waiting = 1\ntimeout_s = 1\n")
    environ = {"MOE_QUEUE_MAX_WAITING": "2", "MOE_QUEUE_TIMEOUT_S": "2"}
    loaded = example("--config", path, "--timeout-s", "3", environ=environ)
    assert (loaded.experts, loaded.queue.max_waiting, loaded.queue.timeout_s) == ((1,), 2, 3.0)


def test_fields_outside_groups_have_the_programs_last_word_as_their_group():
    assert example(environ={"MOE_EXAMPLE_EXPERTS": "4,5"}).experts == (4, 5)


def test_the_file_can_be_named_by_the_environment(file):
    assert example(environ={"MOE_EXAMPLE_CONFIG": file("tiled = true")}).tiled is True


def test_every_type_can_come_from_the_file(file):
    text = 'package = "/q"\nexperts = [0, 3]\nnames = ["x"]\npolicy = "fail"\n'
    text += 'dtype = "bfloat16"\ntiled = true\nlimit = 9\n'
    loaded = example("--config", file(text), package=None)
    assert loaded == Example(Queue(), Path("/q"), (0, 3), ("x",), Policy.FAIL, "bfloat16", True, 9)


REFUSED_FLAGS = {
    "below the bound": (["--max-waiting", "0"], "--max-waiting 0: want at least 1 requests"),
    "above the bound": (["--max-waiting", "1001"], "--max-waiting 1001: want at most 1000 requests"),
    "no whole number": (["--max-waiting", "7.5"], "--max-waiting 7.5: want a whole number"),
    "no number": (["--timeout-s", "soon"], "--timeout-s soon: want a number"),
    "not a number": (["--timeout-s", "nan"], "--timeout-s nan: want a finite number"),
    "infinite": (["--timeout-s", "inf"], "--timeout-s inf: want a finite number"),
    "a bad one in a list": (["--experts", "0,x"], "--experts 0,x: want a list, each a whole number"),
    "a low one in a list": (["--experts", "0,-1"], "--experts 0,-1: want at least 0"),
    "no choice": (["--policy", "hope"], "--policy hope: want one of wait, fail"),
    "no truth": (["--tiled=perhaps"], "--tiled perhaps: want true or false"),
    "an empty path": (["--package", ""], "--package '': want a path"),
    "no value at the end": (["--dtype"], "--dtype: needs a value"),
    "a flag for a value": (["--dtype", "--tiled"], "--dtype: needs a value"),
    "unknown": (["--max-wating", "7"], "unknown argument --max-wating; did you mean --max-waiting?"),
    "nothing like it": (["--zzzzzzz"], "unknown argument --zzzzzzz; --help lists what there is"),
    "a stray word": (["stray"], "unknown argument stray"),
    "a shortened flag": (["--max-wait", "7"], "unknown argument --max-wait; did you mean --max-waiting?"),
}


@pytest.mark.parametrize(("argv", "text"), REFUSED_FLAGS.values(), ids=REFUSED_FLAGS)
def test_a_flag_is_refused_by_name_value_and_bound(argv, text):
    assert refusal(*argv).startswith(text)


def test_whatever_is_missing_is_named_with_its_variable():
    assert refusal(package=None) == "missing --package (or MOE_EXAMPLE_PACKAGE); --help says what each is"


REFUSED_VARIABLES = {
    "bad value": ({"MOE_QUEUE_MAX_WAITING": "many"}, "MOE_QUEUE_MAX_WAITING many: want a whole number"),
    "unknown": (
        {"MOE_QUEUE_MAX_WATING": "7"},
        "unknown environment variable MOE_QUEUE_MAX_WATING; did you mean MOE_QUEUE_MAX_WAITING?",
    ),
}


@pytest.mark.parametrize(("environ", "text"), REFUSED_VARIABLES.values(), ids=REFUSED_VARIABLES)
def test_a_variable_is_refused_by_name(environ, text):
    assert refusal(environ=environ) == text


OTHERS_VARIABLES = {
    "another part's": "MOE_ROUTER_MAX_WAITING",
    "no group's": "MOE_HOME",
    "a Kubernetes service's host": "MOE_QUEUE_SERVICE_HOST",
    "a Kubernetes service's port": "MOE_EXAMPLE_PORT_7000_TCP_ADDR",
}


@pytest.mark.parametrize("name", OTHERS_VARIABLES.values(), ids=OTHERS_VARIABLES)
def test_variables_of_others_are_left_alone(name):
    assert example(environ={name: "whatever"}) == example()


REFUSED_FILES = {
    "bad value": ("[queue]\nmax_waiting = 0", "queue.max_waiting = 0: want at least 1 requests"),
    "text for a number": ('[queue]\nmax_waiting = "7"', "queue.max_waiting = 7: want a whole number"),
    "truth for a number": ("[queue]\nmax_waiting = true", "queue.max_waiting = True: want a whole number"),
    "number for a list": ("experts = 3", "experts = 3: want a list, each a whole number"),
    "table for a number": ("[queue.max_waiting]\nx = 1", "queue.max_waiting = {'x': 1}: want a whole number"),
    "unknown key": ("[queue]\nmax_wating = 7", "unknown key in"),
    "nearest key": ("[queue]\nmax_wating = 7", "queue.max_wating; did you mean queue.max_waiting?"),
    "unknown table": ("[queu]\nmax_waiting = 7", "queu.max_waiting; did you mean queue.max_waiting?"),
    "unknown empty table": ("[zeta]", "unknown key in"),
    "no TOML": ("= 7", "Invalid"),
}


@pytest.mark.parametrize(("text", "part"), REFUSED_FILES.values(), ids=REFUSED_FILES)
def test_a_file_is_refused_by_its_path_and_key(file, text, part):
    path = file(text)
    message = refusal("--config", path)
    assert path in message
    assert part in message


def test_a_missing_file_is_named(tmp_path):
    assert str(tmp_path / "no.toml") in refusal("--config", str(tmp_path / "no.toml"))


def test_a_file_that_is_not_utf_8_is_named(tmp_path):
    path = tmp_path / "latin.toml"
    path.write_bytes(b'package = "\xe4"')
    assert str(path) in refusal("--config", str(path))


def test_help_shows_every_setting_with_default_unit_bounds_and_variable(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        example("--help")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: moe.example --package PATH [options]\n\nTries.\n")
    assert (
        "queue:\n  --max-waiting N\n      Waiting requests. [requests, 1 to 1000; default 64; MOE_QUEUE_MAX_WAITING]\n"
        in text
    )
    assert "  --package PATH\n      Directory of the package. [required; MOE_EXAMPLE_PACKAGE]\n" in text
    assert "  --policy wait|fail\n      When a part is missing. [default wait; MOE_EXAMPLE_POLICY]\n" in text
    assert "  --tiled, --no-tiled\n      Tiles. [default off; MOE_EXAMPLE_TILED]\n" in text


def test_help_fits_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        example("-h")
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


@dataclass(frozen=True)
class Twice:
    first: Queue
    second: Queue


@dataclass(frozen=True)
class Undeclared:
    size: int = 3


@dataclass(frozen=True)
class Unreadable:
    table: dict[str, int] = setting(None, help="No type for a flag.")  # noqa: RUF009


@dataclass(frozen=True)
class ChosenNumber:
    size: int = setting(3, help="Choices are for text.", choices=("3", "4"))


MISTAKES = {
    "two fields of one name": (Twice, "--max-waiting"),
    "a field without help": (Undeclared, "Undeclared.size is not declared by setting"),
    "a type without a text form": (Unreadable, "Unreadable.table has type"),
    "choices of numbers": (ChosenNumber, "ChosenNumber.size"),
}


@pytest.mark.parametrize(("cls", "text"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_declaration_is_a_type_error(cls, text):
    with pytest.raises(TypeError, match=text):
        load(cls, [], prog="moe.example", description="", environ={})
