"""Upcycling: the new model answers as the dense one does, whatever the experts."""

import json
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from moe.models.dense import upcycle, writer
from moe.models.errors import CheckpointError, ConversionError, DiskFullError, OutputError, UnsupportedModelError
from safetensors.torch import load_file, save_file
from support.tiny_dense import load, logits_of, write_dense

ROUNDING = 1e-4  # fp32, two layers; the order of additions differs


@pytest.mark.parametrize(
    ("family", "fields", "target"),
    [
        ("llama", {}, "mixtral"),
        ("llama", {"tie_word_embeddings": True, "head_dim": 8, "rope_theta": 1234.0}, "mixtral"),
        ("llama", {"rms_norm_eps": 0.1, "hidden_act": "gelu"}, "mixtral"),
        ("mistral", {"sliding_window": 16}, "mixtral"),
        ("qwen2", {}, "qwen2_moe"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, "qwen2_moe"),
    ],
)
def test_upcycled_model_gives_the_dense_logits(tmp_path: Path, family: str, fields: dict, target: str) -> None:
    dense = write_dense(tmp_path / "dense", family, **fields)
    upcycle(dense, tmp_path / "moe", experts=4, topk=2)
    sparse = load(tmp_path / "moe")
    difference = (logits_of(sparse) - logits_of(load(dense))).abs().max()
    assert (sparse.config.model_type, bool(difference < ROUNDING)) == (target, True)


def test_tokens_spread_over_all_experts(tmp_path: Path) -> None:
    upcycle(write_dense(tmp_path / "dense"), tmp_path / "moe", experts=4, topk=1)
    model, chosen = load(tmp_path / "moe"), []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda _, __, result: chosen.append(result[2]))
    logits_of(model)
    assert torch.cat(chosen).unique().tolist() == [0, 1, 2, 3]


def test_sharded_source_gives_the_same_bytes_as_a_single_file(tmp_path: Path) -> None:
    sharded = write_dense(tmp_path / "sharded", max_shard_size="4KB")
    upcycle(write_dense(tmp_path / "single"), tmp_path / "a", experts=2, topk=1)
    upcycle(sharded, tmp_path / "b", experts=2, topk=1)
    assert (sharded / "model.safetensors.index.json").is_file()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    dense = write_dense(tmp_path / "dense")
    upcycle(dense, tmp_path / "moe", experts=2, topk=1, progress=lambda done, total, _: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0


@pytest.mark.parametrize(("experts", "topk", "named"), [(1, 1, "experts=1"), (4, 5, "topk=5"), (4, 0, "topk=0")])
def test_senseless_counts_are_refused_by_name(tmp_path: Path, experts: int, topk: int, named: str) -> None:
    with pytest.raises(ConversionError, match=named):
        upcycle(tmp_path, tmp_path / "moe", experts=experts, topk=topk)


@pytest.mark.parametrize(
    ("family", "fields", "named"),
    [
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("gpt2", {}, "'gpt2'"),
        ("mixtral", {}, "'mixtral'"),
    ],
)
def test_what_experts_have_no_place_for_is_refused_by_name(
    tmp_path: Path, family: str, fields: dict, named: str
) -> None:
    dense = write_dense(tmp_path / "dense", family, **fields)
    with pytest.raises(UnsupportedModelError, match=named):
        upcycle(dense, tmp_path / "moe", experts=2, topk=1)


def test_missing_tensor_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    dense = write_dense(tmp_path / "dense", max_shard_size="4KB")
    index = dense / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"]["model.layers.1.mlp.up_proj.weight"]
    kept = {name: tensor for name, tensor in shards_of(dense).items() if name in content["weight_map"]}
    index.unlink()
    save_file(kept, dense / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj"):
        upcycle(dense, tmp_path / "moe", experts=2, topk=1)
    assert [path.name for path in tmp_path.iterdir()] == ["dense"]


def test_truncated_weights_are_named(tmp_path: Path) -> None:
    dense = write_dense(tmp_path / "dense")
    weights = dense / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        upcycle(dense, tmp_path / "moe", experts=2, topk=1)


def test_shard_outside_the_directory_is_refused(tmp_path: Path) -> None:
    dense = write_dense(tmp_path / "dense")
    (dense / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": "../secret.safetensors"}}')
    with pytest.raises(CheckpointError, match="secret"):
        upcycle(dense, tmp_path / "moe", experts=2, topk=1)


def test_existing_target_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "moe"
    target.mkdir()
    (target / "precious").touch()
    with pytest.raises(OutputError, match="exists already"):
        upcycle(write_dense(tmp_path / "dense"), target, experts=2, topk=1)


def shards_of(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in directory.glob("*.safetensors") for name, tensor in load_file(path).items()}


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = tmp_path / f".moe-partial-{socket.gethostname()}@{dead.pid}-moe"
    left.mkdir()
    upcycle(write_dense(tmp_path / "dense"), tmp_path / "moe", experts=2, topk=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dense", "moe"]


def test_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    dense = write_dense(tmp_path / "dense")
    monkeypatch.setattr(writer, "save_file", fail)
    with pytest.raises(OutputError, match="no space left"):
        upcycle(dense, tmp_path / "moe", experts=2, topk=1)
    assert [path.name for path in tmp_path.iterdir()] == ["dense"]


def test_full_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = write_dense(tmp_path / "dense")
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(DiskFullError, match="1,000 are free"):
        upcycle(dense, tmp_path / "moe", experts=2, topk=1)
