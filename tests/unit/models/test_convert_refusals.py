"""What can't or must not be converted is refused with its name and the reason, and leaves nothing behind."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from moe.models.convert import convert_checkpoint
from moe.models.errors import CheckpointError, ConversionError, UnsupportedModelError
from safetensors.torch import load_file, save_file
from support.families import write_checkpoint

UP = "model.layers.1.mlp.experts.3.up_proj.weight"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("olmoe", tmp_path_factory.mktemp("refusals") / "source")


@pytest.fixture
def source(original: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(original, tmp_path / "source"))


def refuse(source: Path, kind: type[ConversionError], complaint: str) -> None:
    """Converts and expects a refusal that says `complaint`, with nothing left of the target."""
    out = source.with_name("out")
    with pytest.raises(kind, match=complaint):
        convert_checkpoint(source, out)
    assert list(out.parent.glob("out*")) == []


def edit_config(source: Path, **changes: Any) -> None:
    content = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(content | changes))


def edit_tensors(source: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})


def shard(source: Path) -> Path:
    """Names the single file by an index, as sharded checkpoints do; returns the index."""
    names = list(load_file(source / "model.safetensors"))
    (source / "model.safetensors").rename(source / "part.safetensors")
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "part.safetensors")}))
    return index


def test_a_dense_model_says_how_to_convert_it(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "source")

    refuse(tmp_path / "source", UnsupportedModelError, "dense.*--upcycle or --split")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt", "model.pkl"])
def test_a_checkpoint_of_pickles_only_is_refused_by_name(source: Path, name: str) -> None:
    (source / "model.safetensors").rename(source / name)

    refuse(source, CheckpointError, f"{name} is a pickle")


def test_a_directory_without_weights_says_what_is_missing(source: Path) -> None:
    (source / "model.safetensors").unlink()

    refuse(source, CheckpointError, r"neither model\.safetensors nor")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    refuse(tmp_path / "nothing", CheckpointError, "nothing")


@pytest.mark.parametrize("content", ["", "[]", "{", '{"model_type": "olmoe"', "[" * 100_000, "\udcff"])
def test_a_damaged_configuration_is_named(source: Path, content: str) -> None:
    (source / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))

    refuse(source, CheckpointError, r"config\.json")


def test_a_missing_configuration_is_named(source: Path) -> None:
    (source / "config.json").unlink()

    refuse(source, CheckpointError, r"config\.json is missing")


def test_a_model_that_brings_its_own_code_is_refused_and_the_code_not_run(source: Path) -> None:
    proof = source.with_name("ran")
    (source / "evil.py").write_text(f"open({str(proof)!r}, 'w')")
    edit_config(source, model_type="evil", auto_map={"AutoConfig": "evil.X", "AutoModelForCausalLM": "evil.Y"})

    refuse(source, UnsupportedModelError, "'evil' is not known.*never run")

    assert not proof.exists()


def test_code_beside_a_known_model_is_not_run(source: Path) -> None:
    proof = source.with_name("ran")
    (source / "evil.py").write_text(f"open({str(proof)!r}, 'w')")
    edit_config(source, auto_map={"AutoConfig": "evil.X", "AutoModelForCausalLM": "evil.Y"})
    convert_checkpoint(source, source.with_name("out"))

    assert not proof.exists()


def test_a_quantised_checkpoint_is_refused_by_its_method(source: Path) -> None:
    edit_config(source, quantization_config={"quant_method": "fp8"})

    refuse(source, UnsupportedModelError, "quantised.*'fp8'")


def test_experts_in_float8_are_refused_by_tensor(source: Path) -> None:
    edit_tensors(source, lambda tensors: tensors.update({UP: tensors[UP].to(torch.float8_e4m3fn)}))

    refuse(source, UnsupportedModelError, f"{UP}.*float8")


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": "3"},
        {"num_experts": 10**9},
        {"num_experts": -1},
        {"num_experts": 8.5},
    ],
)
def test_absurd_counts_are_refused_at_once(source: Path, changes: dict[str, object]) -> None:
    edit_config(source, **changes)

    refuse(source, CheckpointError, next(iter(changes)))


@pytest.mark.parametrize("changes", [{"hidden_size": -4}, {"num_attention_heads": 0}, {"hidden_act": "nonsense"}])
def test_a_configuration_that_builds_no_model_is_refused(source: Path, changes: dict[str, object]) -> None:
    edit_config(source, **changes)

    refuse(source, ConversionError, r"config\.json")


def test_an_activation_without_a_formula_is_refused(source: Path) -> None:
    edit_config(source, hidden_act="tanh")

    refuse(source, UnsupportedModelError, "OlmoeExperts computes an activation")


def test_an_expert_that_lacks_a_tensor_is_refused_by_parameter(source: Path) -> None:
    edit_tensors(source, lambda tensors: tensors.pop(UP))

    refuse(source, CheckpointError, r"model\.layers\.1\.mlp\.experts\.gate_up_proj")


def test_a_missing_tensor_of_the_backbone_is_named(source: Path) -> None:
    edit_tensors(source, lambda tensors: tensors.pop("model.layers.2.self_attn.k_proj.weight"))

    refuse(source, CheckpointError, r"no tensor for 'model\.layers\.2\.self_attn\.k_proj\.weight'")


def test_an_unknown_tensor_is_named(source: Path) -> None:
    edit_tensors(source, lambda tensors: tensors.update({"model.surprise.weight": torch.zeros(3)}))

    refuse(source, CheckpointError, r"'model\.surprise\.weight' has no place")


def test_a_misshapen_tensor_of_the_backbone_is_named(source: Path) -> None:
    edit_tensors(source, lambda tensors: tensors.update({"model.norm.weight": torch.ones(63)}))

    refuse(source, CheckpointError, r"'model\.norm\.weight' is \[63\].*\[64\]")


def test_misshapen_experts_are_refused_by_parameter(source: Path) -> None:
    edit_tensors(source, lambda tensors: tensors.update({UP: tensors[UP][:-1].clone()}))

    refuse(source, CheckpointError, r"model\.layers\.1\.mlp\.experts\.gate_up_proj")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_experts_weight_that_is_not_finite_is_told(source: Path, value: float) -> None:
    edit_tensors(source, lambda tensors: tensors[UP].view(-1).__setitem__(5, value))

    refuse(source, CheckpointError, "expert 3 of layer 1.*no finite number")


def test_a_weight_of_the_backbone_that_is_not_finite_is_told(source: Path) -> None:
    edit_tensors(source, lambda tensors: tensors["lm_head.weight"].view(-1).__setitem__(5, math.nan))

    refuse(source, CheckpointError, r"model\.safetensors: tensor 'lm_head\.weight'")


def test_a_truncated_file_is_named(source: Path) -> None:
    content = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(content[:-1])

    refuse(source, CheckpointError, r"model\.safetensors.*describes")


def test_an_index_naming_a_missing_file_names_it(source: Path) -> None:
    shard(source)
    (source / "part.safetensors").unlink()

    refuse(source, CheckpointError, r"part\.safetensors is missing")


@pytest.mark.parametrize("name", ["../part.safetensors", "/etc/x.safetensors", "part.bin", "", 5, "a/b.safetensors"])
def test_an_index_naming_something_else_is_refused(source: Path, name: object) -> None:
    index = shard(source)
    content = json.loads(index.read_text())
    content["weight_map"][UP] = name
    index.write_text(json.dumps(content))

    refuse(source, CheckpointError, r"index\.json: .* is no name of a safetensors file")


def test_a_tensor_in_two_files_is_named(source: Path) -> None:
    index = shard(source)
    save_file({UP: torch.zeros(48, 64)}, source / "twice.safetensors")
    content = json.loads(index.read_text())
    content["weight_map"]["more"] = "twice.safetensors"
    index.write_text(json.dumps(content))

    refuse(source, CheckpointError, f"'{UP}' is both in")
