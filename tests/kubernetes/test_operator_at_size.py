"""A model with 128 experts: what its objects cost the API server and the operator. Prints the figures."""

from pathlib import Path

import pytest
from support.cluster.client import Kube, Namespace
from support.discovered import install_definitions
from support.operator_at_size import measure

pytestmark = pytest.mark.timeout(900)
"""Seconds: pods load libraries, on machines that do other things too."""


@pytest.fixture(scope="module", autouse=True)
def definitions(kube: Kube) -> None:
    install_definitions(kube)


def test_a_model_of_128_experts_takes_few_writes_little_memory_and_no_requests_when_idle(
    namespace: Namespace, tmp_path: Path
) -> None:
    cost = measure(namespace, tmp_path, experts=128)
    print(cost)
    assert cost.writes_per_object <= 3
    assert cost.resident_mib <= 200
    assert cost.idle_requests_per_s <= 1
