"""The soak of benchmarks.soak, short: each process is watched, every call is answered, nobody grows."""

import json

import pytest
from moe.runtime.errors import StartupError
from moe.wire.choice import load
from moe.wire.names import WIRES

from benchmarks import soak

_GENEROUS_KIB = "4096"
"""For so few calls the C library's own heap is still growing; what a leak of whole messages adds is more than that."""


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("aggregator", ["process", "router"])
def test_no_process_of_a_deployment_grows_with_its_layer_calls(
    wire: str, aggregator: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        load(wire)
    except StartupError as error:
        pytest.skip(str(error))
    words = ["--calls", "3000", "--wire", wire, "--aggregator", aggregator, "--bound-kib", _GENEROUS_KIB, "--json"]
    assert soak.main(words) == 0
    readings = json.loads(capsys.readouterr().out)["readings"]
    parts = {"router", "expert 0", "expert 1"} | ({"aggregator"} if aggregator == "process" else set())
    assert [reading["calls"] for reading in readings] == [300, 1500, 3000]
    assert all(set(reading["memory"]) == parts for reading in readings)
    assert all(memory["rss_kib"] > 10_000 for reading in readings for memory in reading["memory"].values())
