"""Attention and norms in native code: which modules are taken over, the same logits, what can't be had."""

from pathlib import Path

import pytest
import torch
from moe.kernels.attention import backends
from moe.kernels.rms_norm import RmsNorm
from moe.models.backbone import TransformersBackbone, UnsupportedBackboneError, load_backbone
from moe.models.backbone.native_gates import NativeGate
from moe.models.backbone.native_layers import PlainBlock, PlainLayer
from moe.models.backbone.native_projection import PlainAttention
from moe.models.contract import PackedBatch, Segment
from support.families import FAMILIES, family_config, write_checkpoint
from torch import Tensor

TAKEN_OVER = {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "phimoe", "glm4_moe", "gpt_oss"}
"""Families whose attention is projections, norms of query and key, angles, attention and output, and nothing else."""


def owners(backbone: TransformersBackbone, kind: type) -> int:
    return sum(isinstance(getattr(m.forward, "__self__", None), kind) for m in backbone._model.modules())


def logits(backbone: TransformersBackbone) -> Tensor:
    """Of a prompt in a long and a short chunk beside another sequence, then of a token each."""
    backbone.allocate(2, 64)
    steps = (
        PackedBatch([Segment(1, 0, 20), Segment(0, 0, 3)], torch.arange(5, 28), torch.arange(23)),
        PackedBatch([Segment(1, 20, 4), Segment(0, 3, 1)], torch.arange(30, 35), torch.arange(5)),
        PackedBatch([Segment(0, 4, 1), Segment(1, 24, 1)], torch.tensor([7, 9]), torch.arange(2)),
    )
    return torch.cat([backbone.step(s, lambda layer, hidden, index, weights, rows: hidden / 2) for s in steps])


@pytest.mark.parametrize("family", FAMILIES)
def test_native_attention_and_norms_give_the_library_s_logits_within_float32_s_rounding(
    family: str, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(family, tmp_path / "checkpoint", dtype=torch.float32)
    plain, native = (
        logits(load_backbone(checkpoint, linear_kernel=kernel, attention_kernel=kernel))
        for kernel in ("torch", "native")
    )
    assert float((plain - native).abs().max()) <= 1e-4 * float(plain.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_families_that_are_that_sequence_are_taken_over_and_no_others(family: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(family, tmp_path / "checkpoint", dtype=torch.bfloat16)
    backbone = load_backbone(checkpoint, linear_kernel="native")
    layers = len(backbone.geometry.attention) if family in TAKEN_OVER else 0
    assert owners(backbone, PlainAttention) == layers


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_layers_are_taken_over_where_norms_are_root_mean_squares(family: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(family, tmp_path / "checkpoint", dtype=torch.bfloat16)
    backbone = load_backbone(checkpoint, linear_kernel="native")
    # Granite scales its residuals, and PhiMoE's norms are LayerNorm.
    layers = len(backbone.geometry.attention) if family in TAKEN_OVER - {"granitemoe", "phimoe"} else 0
    assert owners(backbone, PlainLayer) == layers
    blocks = [PlainBlock.of(module.mlp) for module in backbone._model.modules() if hasattr(module, "mlp")]
    assert sum(block is not None for block in blocks) == (layers if family in {"mixtral", "olmoe", "qwen3_moe"} else 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_gates_that_are_softmax_and_choice_are_taken_over_and_choose_the_same(family: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(family, tmp_path / "checkpoint", dtype=torch.bfloat16)
    backbone = load_backbone(checkpoint, linear_kernel="native")
    taken_over = len(backbone.gates) if family in {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe"} else 0
    assert owners(backbone, NativeGate) == taken_over
    for gate in list(backbone.gates.values())[:taken_over]:
        rows = torch.randn(9, gate.module.hidden_dim, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
        logits, weights, index = gate.module.forward(rows)
        gate.patches.append(lambda logits: logits)  # the family's own way
        wanted_logits, wanted_weights, wanted_index = gate.module.forward(rows)
        assert torch.equal(logits, wanted_logits)
        # Of equal logits torch takes any, the kernel the lowest id.
        assert torch.equal(logits.gather(1, index), logits.gather(1, wanted_index))
        assert weights.dtype == wanted_weights.dtype
        torch.testing.assert_close(weights, wanted_weights, rtol=2**-7, atol=0.0)


def test_a_family_that_clips_its_projections_keeps_its_own_attention(tmp_path: Path) -> None:
    config = family_config("olmoe", clip_qkv=8.0)
    checkpoint = write_checkpoint("olmoe", tmp_path / "checkpoint", dtype=torch.bfloat16, config=config)
    assert owners(load_backbone(checkpoint, linear_kernel="native"), PlainAttention) == 0


def test_norms_are_replaced_where_a_kernel_gives_their_numbers(tmp_path: Path) -> None:
    checkpoint = write_checkpoint("qwen3_moe", tmp_path / "checkpoint", dtype=torch.bfloat16)
    backbone = load_backbone(checkpoint)
    layers = len(backbone.geometry.attention)
    assert owners(backbone, RmsNorm) == 4 * layers + 1  # before attention and experts, of query and key; the last
    assert owners(load_backbone(checkpoint, attention_kernel="torch"), RmsNorm) == 0


def test_a_kernel_that_is_not_there_is_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = write_checkpoint("mixtral", tmp_path / "checkpoint", dtype=torch.float32)
    monkeypatch.setitem(backends._unavailable, "native", lambda: "it has not been built; build it")
    assert load_backbone(checkpoint).attention_kernel == "torch"
    with pytest.raises(UnsupportedBackboneError, match=r"attention kernel native \(--attention-kernel\): it has not"):
        load_backbone(checkpoint, attention_kernel="native")
