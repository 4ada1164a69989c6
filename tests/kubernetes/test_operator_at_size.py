"""A model with 128 experts: what its objects cost the API server and the operator. Prints the figures."""

import time
from pathlib import Path

import pytest
from support.cluster.client import Kube, Namespace, wait_until
from support.cluster_models import idle_model, operator, put_package, until_condition
from support.discovered import install_definitions
from support.tiny_package import write_package

pytestmark = pytest.mark.timeout(900)
"""Seconds: pods load libraries, on machines that do other things too."""

EXPERTS = 128
WINDOW_S = 20.0
"""In which an idle operator's requests are counted."""

MIB = 1024 * 1024


@pytest.fixture(scope="module", autouse=True)
def definitions(kube: Kube) -> None:
    install_definitions(kube)


def test_a_model_of_128_experts_takes_few_writes_little_memory_and_no_requests_when_idle(
    namespace: Namespace, tmp_path: Path
) -> None:
    put_package(namespace, write_package(tmp_path / "wide", moe_layers={0: EXPERTS}))
    with operator(namespace, tmp_path) as acting:
        wait_until(acting.leading, "it does not act", 60, every_s=0.3)
        began = time.monotonic()
        namespace.apply(idle_model())
        until_condition(namespace, "Progressing", "AsWished", patience_s=280)
        took = time.monotonic() - began
        writes = acting.settled()
        before, counted_from = acting.metrics(), time.monotonic()
        wait_until(lambda: time.monotonic() - counted_from > WINDOW_S, "time stands still", WINDOW_S + 30)
        after, window = acting.metrics(), time.monotonic() - counted_from
    idle = (after["moe_operator_requests_total"] - before["moe_operator_requests_total"]) / window
    objects = 4 * EXPERTS + 10
    memory = after["process_resident_memory_bytes"] / MIB
    print(
        f"{EXPERTS} experts: right after {took:.1f} s, {writes / objects:.2f} writes an object, "
        f"{memory:.0f} MiB resident, {idle:.2f} requests/s when idle"
    )
    assert writes / objects <= 3
    assert memory <= 200
    assert idle <= 1
