"""Packed linear layers in a backbone: the same answers, weights resident once, and a word on what runs."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from moe.kernels.linear import PackedLinear, backends
from moe.models.backbone import TransformersBackbone, UnsupportedBackboneError, load_backbone
from moe.models.backbone.joined import JoinedLinear
from moe.models.backbone.linears import PackedWeight
from moe.models.contract import PackedBatch, Segment
from support.families import FAMILIES, family_config, write_checkpoint
from torch import Tensor, nn


def first_logits(backbone: TransformersBackbone) -> Tensor:
    backbone.allocate(1, 16)
    batch = PackedBatch([Segment(0, 0, 7)], torch.arange(5, 12), torch.arange(7))
    return backbone.step(batch, lambda layer, hidden, index, weights, rows: hidden / 2)


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("mixtral", tmp_path_factory.mktemp("linears") / "checkpoint", dtype=torch.bfloat16)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_products_give_the_library_s_logits_within_float32_s_rounding(family: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(family, tmp_path / "checkpoint", dtype=torch.float32)
    plain, packed = (first_logits(load_backbone(checkpoint, linear_kernel=kernel)) for kernel in ("torch", "native"))
    assert float((plain - packed).abs().max()) <= 1e-4 * float(plain.abs().max())


def test_a_packed_layer_gives_its_own_weight_up(mixtral: Path) -> None:
    model = load_backbone(mixtral, linear_kernel="native")._model
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert layers
    assert {module.weight.numel() for module in layers} == {0}


def test_a_tied_table_stays_for_its_look_ups_and_is_reported(tmp_path: Path) -> None:
    config = family_config("mixtral", tie_word_embeddings=True)
    checkpoint = write_checkpoint("mixtral", tmp_path / "checkpoint", dtype=torch.bfloat16, config=config)
    backbone = load_backbone(checkpoint, linear_kernel="native")
    assert backbone._model.get_input_embeddings().weight.numel() > 0
    assert 0 < backbone.linears.twice_bytes < backbone.linears.packed_bytes


def test_the_report_names_the_kernel_and_counts_projections_gates_and_head(mixtral: Path) -> None:
    backbone = load_backbone(mixtral, linear_kernel="native")
    layers = (4 + 1) * len(backbone.gates) + 1  # query, key, value, output and gate; the head
    assert backbone.linears.layers == {"native": layers}
    assert backbone.linears.words().startswith(f"native ({layers} layers), ")


def test_deterministic_mode_takes_the_kernel_that_needs_no_tiles(mixtral: Path) -> None:
    report = load_backbone(mixtral, deterministic=True).linears
    assert (set(report.layers), report.invariant) == ({"native"}, True)


def test_a_named_kernel_that_can_t_run_is_an_error_with_the_reason(
    mixtral: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(backends._unavailable, "native", lambda: "no compiler at set-up")
    with pytest.raises(UnsupportedBackboneError, match=r"--linear-kernel.*no compiler at set-up"):
        load_backbone(mixtral, linear_kernel="native")


def test_deterministic_mode_without_it_goes_in_tiles_and_says_so(
    mixtral: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(backends._unavailable, "native", lambda: "no compiler at set-up")
    report = load_backbone(mixtral, deterministic=True).linears
    assert set(report.layers) == {"torch"}
    assert "in tiles, as native can't run here: no compiler at set-up" in report.words()


def test_a_packed_weight_multiplies_packed_and_is_a_tensor_otherwise() -> None:
    weight, rows = torch.randn(6, 4), torch.randn(3, 4)
    packed = PackedWeight.of(weight, PackedLinear(weight, backend="native"))
    assert torch.equal(F.linear(rows, packed), PackedLinear(weight, backend="native")(rows))
    assert type(packed.float() + 1) is Tensor


ALONG_ROWS = {
    "mean of squares": lambda rows: rows.pow(2).mean(-1, keepdim=True),
    "softmax": lambda rows: torch.softmax(rows, -1),
    "float32 softmax": lambda rows: torch.softmax(rows, -1, dtype=torch.float32),
    "layer norm": lambda rows: F.layer_norm(rows, rows.shape[-1:]),
}


@pytest.mark.parametrize("name", ALONG_ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [8, 60, 64, 576, 1000, 2048, 2880, 4096])
def test_what_is_summed_along_a_row_does_not_depend_on_the_number_of_rows(
    name: str, dtype: torch.dtype, width: int
) -> None:
    function, rows = ALONG_ROWS[name], torch.randn(70, width).to(dtype)
    alone = torch.cat([function(rows[i : i + 1].clone()[None])[0] for i in range(70)])
    for count in (2, 3, 7, 16, 17, 33, 70):  # around whole vectors and tiles
        assert torch.equal(function(rows[:count].clone()[None])[0], alone[:count])


def test_siblings_are_one_product_with_the_columns_of_each() -> None:
    weights = [torch.randn(out, 6) for out in (4, 2, 2)]
    layer = PackedLinear(torch.cat(weights), backend="native")
    joined = JoinedLinear(layer, [4, 2, 2])
    forwards = [joined.forward_of(place) for place in range(3)]
    for rows in (torch.randn(1, 3, 6), torch.randn(1, 5, 6)):
        for forward, weight in zip(forwards, weights, strict=True):
            assert torch.equal(forward(rows), PackedLinear(weight, backend="native")(rows))


def test_a_sibling_that_sees_another_tensor_answers_for_that_one() -> None:
    joined = JoinedLinear(PackedLinear(torch.eye(4), backend="native"), [2, 2])
    first, second = joined.forward_of(0), joined.forward_of(1)
    a, b = torch.randn(1, 4), torch.randn(1, 4)
    first(a)
    assert torch.equal(second(b), b[:, 2:])
    assert torch.equal(first(b), b[:, :2])
    assert torch.equal(first(a), a[:, :2])
