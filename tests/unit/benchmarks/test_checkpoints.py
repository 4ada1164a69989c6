import dataclasses
from pathlib import Path

import gguf
import pytest
import torch
from gguf.quants import dequantize
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.checkpoints import SIZES, Size, ensure_checkpoint, write_checkpoint
from benchmarks.end_to_end.peers.gguf_checkpoint import neighbours, write_gguf

TINY = Size("T", hidden=128, layers=2, experts=3, topk=2, ffn=64, vocabulary=64)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_checkpoint(TINY, tmp_path_factory.mktemp("bench"))


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}


def test_a_checkpoint_is_what_transformers_reads_as_mixtral(checkpoint: Path) -> None:
    model, info = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert sum(parameter.numel() for parameter in model.parameters()) == TINY.parameters
    assert bool(torch.isfinite(model(torch.tensor([[5, 9, 33]])).logits).all())


def test_its_tokenizer_has_a_word_for_every_id(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert tokenizer("w5 w63").input_ids == [5, 63]
    assert len(tokenizer) == 64


def test_the_same_seed_writes_the_same_weights(checkpoint: Path, tmp_path: Path) -> None:
    write_checkpoint(TINY, tmp_path / "again")
    first, second = tensors_of(checkpoint), tensors_of(tmp_path / "again")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_checkpoint_that_was_cut_off_is_written_anew(tmp_path: Path) -> None:
    half = tmp_path / "checkpoints" / "T"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{")
    assert tensors_of(ensure_checkpoint(TINY, tmp_path)).keys()


def test_a_checkpoint_of_another_size_is_written_anew(tmp_path: Path) -> None:
    before = tensors_of(ensure_checkpoint(TINY, tmp_path))
    same, other = ensure_checkpoint(TINY, tmp_path), dataclasses.replace(TINY, decided=4.0)
    gate = "model.layers.0.block_sparse_moe.gate.weight"
    assert torch.equal(tensors_of(same)[gate], before[gate])
    assert torch.equal(tensors_of(ensure_checkpoint(other, tmp_path))[gate], before[gate] * 4)


def test_models_with_more_experts_have_the_same_active_size() -> None:
    active = {(size.hidden, size.layers, size.topk, size.ffn) for name, size in SIZES.items() if name[0] == "E"}
    assert len(active) == 1
    assert [SIZES[name].experts for name in ("E8", "E64", "E256")] == [8, 64, 256]


@pytest.mark.parametrize("kind", ["bf16", "q8_0"])
def test_gguf_holds_the_weights_of_the_checkpoint(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    write_gguf(checkpoint, tmp_path / "t.gguf", kind)
    reader = gguf.GGUFReader(tmp_path / "t.gguf")
    read = {t.name: torch.from_numpy(dequantize(t.data, t.tensor_type).copy()) for t in reader.tensors}
    there = tensors_of(checkpoint)
    assert reader.fields["llama.expert_used_count"].contents() == 2
    down = torch.stack([there[f"model.layers.1.block_sparse_moe.experts.{e}.w2.weight"].float() for e in range(3)])
    # q8_0 keeps 127 steps to a block's largest weight, so a weight is off by at most half a step of the largest of all.
    bound = 0.0 if kind == "bf16" else float(down.abs().max()) / 127 * 0.51
    assert float((read["blk.1.ffn_down_exps.weight"] - down).abs().max()) <= bound
    gate = there["model.layers.0.block_sparse_moe.gate.weight"].float()
    assert torch.equal(read["blk.0.ffn_gate_inp.weight"], gate)


def test_halves_of_a_head_become_neighbours() -> None:
    weight = torch.arange(8.0)[:, None]
    assert neighbours(weight, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
