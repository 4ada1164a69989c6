"""Which implementation of the wire is taken, and what is said where the one that was named is missing."""

import sys

import pytest
from moe.runtime.errors import StartupError
from moe.wire.choice import load


@pytest.fixture
def not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a Rust toolchain: the module can't be imported."""
    for name in [name for name in sys.modules if name.startswith("moe.wire.native")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "moe_wire_native", None)


@pytest.mark.usefixtures("not_built")
def test_auto_is_grpcio_where_native_is_not_built() -> None:
    assert load("auto").name == "grpcio"


@pytest.mark.usefixtures("not_built")
def test_native_by_name_is_an_error_with_the_remedy_where_it_is_not_built() -> None:
    with pytest.raises(StartupError, match=r"wire native: .*moe_wire_native.*make setup.*or take --wire grpcio"):
        load("native")


def test_auto_is_native_where_it_is_built() -> None:
    pytest.importorskip("moe_wire_native")
    assert load("auto").name == "native"


def test_grpcio_can_be_had_by_name() -> None:
    assert load("grpcio").name == "grpcio"


def test_an_unknown_wire_is_named_with_those_there_are() -> None:
    with pytest.raises(StartupError, match="got 'pigeon', want auto, grpcio or native"):
        load("pigeon")


def test_the_slow_one_says_what_it_costs() -> None:
    assert load("grpcio").told == "grpcio (about 7 times slower hops)"
