"""Splitting: a partition of the dense FFN's neurons, exact with all experts, and the same bytes every time."""

from pathlib import Path

import pytest
import torch
from moe.models.dense import split
from moe.models.dense.clustering import balanced_kmeans, label_neurons
from moe.models.dense.layout import SHARED
from moe.models.dense.router_fit import fit_router
from moe.models.errors import ConversionError
from support.tiny_dense import calibration_texts, load, logits_of, write_dense

ROUNDING = 1e-4  # fp32, two layers; the order of additions differs


def split_tiny(dense: Path, out: Path, *, experts: int = 4, shared_neurons: int = 8, topk: int = 2) -> Path:
    split(
        dense,
        out,
        experts=experts,
        shared_neurons=shared_neurons,
        topk=topk,
        calibration_texts=calibration_texts(),
    )
    return out


def zero_routers(model: torch.nn.Module) -> torch.nn.Module:
    for layer in model.model.layers:
        layer.mlp.gate.weight.data.zero_()
    return model


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "head_dim": 8}),
        ("mistral", {"sliding_window": 16}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    ],
)
def test_all_experts_under_a_zero_router_give_the_dense_logits(tmp_path: Path, family: str, fields: dict) -> None:
    dense = write_dense(tmp_path / "dense", family, **fields)
    sparse = zero_routers(load(split_tiny(dense, tmp_path / "moe", topk=4)))
    assert (logits_of(sparse) - logits_of(load(dense))).abs().max() < ROUNDING


def test_fewer_experts_change_the_answer(tmp_path: Path) -> None:
    dense = write_dense(tmp_path / "dense")
    sparse = zero_routers(load(split_tiny(dense, tmp_path / "moe", topk=2)))
    assert (logits_of(sparse) - logits_of(load(dense))).abs().max() > 100 * ROUNDING


def test_splitting_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    dense = write_dense(tmp_path / "dense")
    first, second = (split_tiny(dense, tmp_path / name) for name in ("a", "b"))
    assert {p.name: p.read_bytes() for p in first.iterdir()} == {p.name: p.read_bytes() for p in second.iterdir()}


def test_fitted_router_beats_its_reverse(tmp_path: Path) -> None:
    dense = write_dense(tmp_path / "dense", num_hidden_layers=1)
    sparse, expected = load(split_tiny(dense, tmp_path / "moe")), logits_of(load(dense))
    weight = sparse.model.layers[0].mlp.gate.weight.data
    fitted = (logits_of(sparse) - expected).norm()
    weight.neg_()
    assert fitted < (logits_of(sparse) - expected).norm()


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"experts": 3}, "experts=3"),
        ({"experts": 1}, "experts=1"),
        ({"topk": 5}, "topk=5"),
        ({"shared_neurons": 0}, "shared_neurons=0"),
        ({"shared_neurons": 24}, "shared_neurons=24"),
        ({"shared_neurons": 9}, "shared_neurons=9.*use 8"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(tmp_path: Path, sizes: dict[str, int], named: str) -> None:
    dense = write_dense(tmp_path / "dense")
    with pytest.raises(ConversionError, match=named):
        split_tiny(dense, tmp_path / "moe", **sizes)


def test_too_little_calibration_text_is_refused(tmp_path: Path) -> None:
    dense = write_dense(tmp_path / "dense")
    with pytest.raises(ConversionError, match="calibration_texts hold 2 tokens"):
        split(dense, tmp_path / "moe", experts=2, shared_neurons=8, topk=1, calibration_texts=["w1 w2"])
    assert [path.name for path in tmp_path.iterdir()] == ["dense"]


def test_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    dense = write_dense(tmp_path / "dense")
    (dense / "tokenizer.json").unlink()
    with pytest.raises(ConversionError, match=r"tokenizer\.json: missing"):
        split_tiny(dense, tmp_path / "moe")


def test_neurons_that_act_together_share_an_expert() -> None:
    tokens = torch.rand(500, 3, generator=torch.Generator().manual_seed(0))
    contributions = tokens[:, [0, 1, 2, 0, 1, 2, 0, 1, 2]] + 1e-3 * torch.arange(9)
    labels = balanced_labels(contributions, experts=3)
    assert labels == [{0, 3, 6}, {1, 4, 7}, {2, 5, 8}]


def balanced_labels(contributions: torch.Tensor, experts: int) -> list[set[int]]:
    padded = torch.cat([contributions, torch.full((len(contributions), 1), 100.0)], 1)
    labels = label_neurons(padded, experts=experts, shared_neurons=1).tolist()
    groups = [{index for index, label in enumerate(labels) if label == expert} for expert in range(experts)]
    return sorted(groups, key=min)


def test_strongest_neurons_are_shared() -> None:
    contributions = torch.rand(100, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 9, 1, 1, 9, 1])
    labels = label_neurons(contributions, experts=2, shared_neurons=2)
    assert (labels == SHARED).nonzero()[:, 0].tolist() == [1, 4]


def test_clusters_are_of_equal_size_even_if_all_points_coincide() -> None:
    labels = balanced_kmeans(torch.zeros(12, 3), 4)
    assert torch.bincount(labels).tolist() == [3, 3, 3, 3]


def test_router_ranks_the_expert_that_contributes_most() -> None:
    inputs = torch.eye(3).repeat(10, 1)
    norms = torch.tensor([[5.0, 1, 1], [1, 5, 1], [1, 1, 5]]).repeat(10, 1)
    assert (inputs @ fit_router(inputs, norms).T).argmax(1).tolist() == [0, 1, 2] * 10
