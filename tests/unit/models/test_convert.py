"""Conversion of checkpoints: every family's weights arrive in the standard layout, and nothing else happens to them."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from moe.kernels.ffn import ExpertWeights, ffn
from moe.models.convert import convert_checkpoint, package_name
from moe.models.errors import ConversionError
from moe.models.manifest import MANIFEST_NAME
from moe.models.package import Package
from safetensors import safe_open
from support.families import FAMILIES, family_config, load_reference, write_checkpoint
from torch import nn

FUSED_NAMES = (".experts.", "block_sparse_moe.input_linear", "block_sparse_moe.output_linear")
"""What the names of routed experts' tensors have on disk; `shared_experts.` does not contain `.experts.`."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("convert")


def checkpoint_of(made: Path, family: str) -> Path:
    path = made / f"{family}-checkpoint"
    return path if path.exists() else write_checkpoint(family, path, torch.bfloat16, shard_size="150KB")


def package_of(made: Path, family: str) -> Package:
    path = made / family.replace("_", "-")
    if not path.exists():
        convert_checkpoint(checkpoint_of(made, family), path, shard_bytes=100_000)
    return Package.open(path, "sha256")


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def experts_modules(model: nn.Module) -> dict[int, nn.Module]:
    """The fused experts of a whole model by layer, found by what they hold."""
    found = {}
    for name, module in model.named_modules():
        if hasattr(module, "down_proj") and isinstance(module.down_proj, nn.Parameter) and module.down_proj.dim() == 3:
            found[int(name.split("layers.")[1].split(".")[0])] = module
    return found


def expected_weights(family: str, module: nn.Module, expert: int) -> ExpertWeights:
    """The standard layout written out by hand for each of the three layouts among the families."""
    up, down = module.gate_up_proj[expert], module.down_proj[expert]
    if family == "gpt_oss":
        bias = module.gate_up_proj_bias[expert]
        return ExpertWeights(
            torch.cat([up[:, ::2].T, up[:, 1::2].T]),
            down.T,
            torch.cat([bias[::2], bias[1::2]]),
            module.down_proj_bias[expert],
        )
    return ExpertWeights(up.T, down.T) if family == "llama4_text" else ExpertWeights(up, down)


def same(left: ExpertWeights, right: ExpertWeights) -> bool:
    pairs = [(getattr(left, part), getattr(right, part)) for part in ("up", "down", "up_bias", "down_bias")]
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_experts_weights_are_those_that_transformers_loads(made: Path, family: str) -> None:
    modules = experts_modules(load_reference(checkpoint_of(made, family)))
    package = package_of(made, family)

    matches = [
        same(weights, expected_weights(family, modules[layer], expert))
        for expert in range(package.manifest.expert_count)
        for layer, weights in package.expert_weights(expert).items()
    ]

    assert matches == [True] * sum(module.num_experts for module in modules.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_backbone_is_everything_else_byte_for_byte(made: Path, family: str) -> None:
    source = tensors_of(checkpoint_of(made, family))
    wanted = {name: tensor for name, tensor in source.items() if not any(part in name for part in FUSED_NAMES)}

    backbone = tensors_of(package_of(made, family).backbone_dir)

    assert backbone.keys() == wanted.keys()
    assert all(torch.equal(backbone[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_manifest_tells_the_models_sizes(made: Path, family: str) -> None:
    config = transformers.AutoConfig.from_pretrained(checkpoint_of(made, family))
    modules = experts_modules(transformers.AutoModelForCausalLM.from_config(config))

    manifest = package_of(made, family).manifest

    assert (manifest.family, manifest.dtype, manifest.hidden, manifest.vocabulary, manifest.layers, manifest.topk) == (
        family,
        "bfloat16",
        64,
        128,
        3,
        config.num_experts_per_tok,
    )
    assert manifest.moe_layers == {layer: module.num_experts for layer, module in modules.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_expert_answers_its_probe_and_its_neighbour_does_not(made: Path, family: str) -> None:
    package = package_of(made, family)
    answers = {
        (layer, expert): ffn(package.probe(layer, expert).rows, weights, package.manifest.ffn)
        for expert in range(package.manifest.expert_count)
        for layer, weights in package.expert_weights(expert).items()
    }

    verdicts = {
        (
            package.probe(layer, expert).matches(answer),
            package.probe(layer, (expert + 1) % package.manifest.moe_layers[layer]).matches(answer),
        )
        for (layer, expert), answer in answers.items()
    }

    assert verdicts == {(True, False)}


def test_the_backbone_is_cut_into_shards_of_the_asked_size(made: Path) -> None:
    shards = list(package_of(made, "qwen2_moe").backbone_dir.glob("model-*.safetensors"))

    assert len(shards) > 1
    assert max(path.stat().st_size for path in shards) < 110_000


def test_a_backbone_below_the_shard_size_is_one_file(made: Path, tmp_path: Path) -> None:
    convert_checkpoint(checkpoint_of(made, "olmoe"), tmp_path / "olmoe")

    assert [path.name for path in (tmp_path / "olmoe" / "backbone").glob("*.safetensors*")] == ["model.safetensors"]


def test_the_same_checkpoint_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    source = checkpoint_of(made, "gpt_oss")
    convert_checkpoint(source, tmp_path / "first", name="same")
    convert_checkpoint(source, tmp_path / "second", name="same")

    hashes = [
        {path.relative_to(root): hashlib.sha256(path.read_bytes()).hexdigest() for path in files_of(root)}
        for root in (tmp_path / "first", tmp_path / "second")
    ]

    assert hashes[0] == hashes[1]


def files_of(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_how_a_checkpoint_is_sharded_changes_nothing(made: Path, tmp_path: Path) -> None:
    whole = write_checkpoint("gpt_oss", tmp_path / "whole", torch.bfloat16)
    sharded = checkpoint_of(made, "gpt_oss")
    convert_checkpoint(whole, tmp_path / "first", name="same", source_label="s")
    convert_checkpoint(sharded, tmp_path / "second", name="same", source_label="s")

    first, second = (Package.open(tmp_path / name).manifest for name in ("first", "second"))

    assert first == second


def test_the_manifests_hashes_are_those_of_the_files(made: Path) -> None:
    package = package_of(made, "mixtral")

    assert {
        path.relative_to(package.path).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files_of(package.path)
        if path.name != MANIFEST_NAME
    } == {name: facts.sha256 for name, facts in package.manifest.files.items()}


def test_labels_go_into_the_manifest(made: Path, tmp_path: Path) -> None:
    convert_checkpoint(
        checkpoint_of(made, "olmoe"),
        tmp_path / "out",
        name="my-model",
        licence="Apache-2.0",
        notice="© those who made it",
        source_label="somewhere/something",
    )

    manifest = Package.open(tmp_path / "out").manifest

    assert (manifest.name, manifest.licence, manifest.notice, manifest.source) == (
        "my-model",
        "Apache-2.0",
        "© those who made it",
        "somewhere/something",
    )


def test_a_wider_checkpoint_is_stored_in_the_dtype_it_asks_for(tmp_path: Path) -> None:
    source = write_checkpoint("olmoe", tmp_path / "source", torch.float32)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    convert_checkpoint(source, tmp_path / "out")

    weights = Package.open(tmp_path / "out").expert_weights(2)[1]

    assert torch.equal(weights.down, experts_modules(load_reference(source))[1].down_proj[2])


def test_layers_that_the_family_leaves_out_are_left_out(made: Path, tmp_path: Path) -> None:
    source = shutil.copytree(checkpoint_of(made, "qwen3_next"), tmp_path / "source")
    from safetensors.torch import save_file

    index_path = source / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    index["weight_map"]["mtp.layers.0.mlp.experts.0.down_proj.weight"] = "mtp.safetensors"
    index_path.write_text(json.dumps(index))
    save_file({"mtp.layers.0.mlp.experts.0.down_proj.weight": torch.zeros(2)}, source / "mtp.safetensors")
    convert_checkpoint(source, tmp_path / "out")

    assert not any("mtp" in name for name in tensors_of(tmp_path / "out" / "backbone"))


def test_only_what_a_backbone_needs_is_taken_along(made: Path, tmp_path: Path) -> None:
    source = shutil.copytree(checkpoint_of(made, "olmoe"), tmp_path / "source")
    for name in ("modeling.py", "pytorch_model.bin", "README.md", "tokenizer.json", "chat_template.jinja", "x.pt"):
        (source / name).write_text("{}")
    convert_checkpoint(source, tmp_path / "out")

    copied = {path.name for path in files_of(tmp_path / "out" / "backbone")}

    assert copied == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
    }


def test_a_tokenizer_is_told(made: Path, tmp_path: Path) -> None:
    source = shutil.copytree(checkpoint_of(made, "olmoe"), tmp_path / "source")
    (source / "tokenizer.json").write_text("{}")
    convert_checkpoint(source, tmp_path / "out")

    told = (Package.open(tmp_path / "out").manifest.has_tokenizer, package_of(made, "olmoe").manifest.has_tokenizer)

    assert told == (True, False)


def test_progress_never_falls_and_ends_at_the_total(made: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert_checkpoint(
        checkpoint_of(made, "olmoe"), tmp_path / "out", progress=lambda done, total, label: seen.append((done, total))
    )

    assert seen == sorted(seen)
    assert (len(seen) > 10, seen[-1][0], {total for _, total in seen}) == (True, seen[-1][1], {seen[-1][1]})


def test_layers_with_another_activation_are_told_apart(tmp_path: Path) -> None:
    config = family_config("mixtral", hidden_act="gelu_pytorch_tanh")
    source = write_checkpoint("mixtral", tmp_path / "source", config=config)
    convert_checkpoint(source, tmp_path / "out")

    assert Package.open(tmp_path / "out").manifest.ffn.activation == "gelu_tanh"


@pytest.mark.parametrize(
    ("text", "name"),
    [("Mixtral-8x7B v0.1", "mixtral-8x7b-v0-1"), ("demo", "demo"), ("7B", "b"), ("ä", "model"), ("x" * 99, "x" * 40)],
)
def test_a_name_is_made_of_any_text(text: str, name: str) -> None:
    assert package_name(text) == name


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "-a", "a-", "1a", "a" * 41, "a.b", "a\n"])
def test_a_name_that_could_not_be_part_of_a_host_name_is_refused(made: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConversionError, match="lower-case letters"):
        convert_checkpoint(checkpoint_of(made, "olmoe"), tmp_path / "out", name=name)
