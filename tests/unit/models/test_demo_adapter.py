"""The committed adapter is whole: it fits SmolLM2-135M, divides every layer equally, and every number is finite."""

import pytest
import torch
from moe.models.demo import build
from moe.models.demo.adapter import Adapter
from moe.models.dense.layout import SHARED, FeedForward

LAYERS, HIDDEN, NEURONS = 30, 576, 1536


@pytest.fixture(scope="module")
def adapter() -> Adapter:
    return Adapter.load(build.ADAPTER)


def test_every_layer_has_eight_experts_of_128_neurons_and_512_shared(adapter: Adapter) -> None:
    owners = [*range(8), SHARED]
    counts = [[int((adapter.partition(layer).labels == owner).sum()) for owner in owners] for layer in range(LAYERS)]
    assert counts == [[128] * 8 + [512]] * LAYERS


def test_every_layer_is_corrected_by_finite_numbers(adapter: Adapter) -> None:
    zeros = FeedForward(torch.zeros(NEURONS, HIDDEN), torch.zeros(NEURONS, HIDDEN), torch.zeros(HIDDEN, NEURONS))
    for layer in range(LAYERS):
        corrections, partition = adapter.corrected(layer, zeros), adapter.partition(layer)
        numbers = [corrections.gate, corrections.up, corrections.down, partition.router, partition.shared_gate]
        numbers += adapter.norms(layer).values()
        assert all(bool(values.isfinite().all()) and bool(values.any()) for values in numbers), layer
