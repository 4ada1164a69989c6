"""What loading a backbone reads, refuses and reports."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from moe.models.backbone import BackboneWeightsError, UnsupportedBackboneError, load_backbone
from moe.models.convert import convert_checkpoint
from moe.models.package import Package
from safetensors.torch import load_file, save_file
from support.families import FAMILIES, family_config, load_reference, make_model, write_checkpoint
from support.local_experts import LocalExperts
from support.packed_loop import generate, random_prompts

MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("mixtral", tmp_path_factory.mktemp("mixtral"))


@pytest.fixture
def edited(mixtral: Path, tmp_path: Path) -> Callable[[Callable[[dict[str, torch.Tensor]], None]], Path]:
    """Makes a copy of the checkpoint whose tensors were changed."""

    def edit(change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
        tensors = load_file(mixtral / "model.safetensors")
        change(tensors)
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        (tmp_path / "config.json").write_bytes((mixtral / "config.json").read_bytes())
        return tmp_path

    return edit


def write_config(directory: Path, **values: Any) -> Path:
    (directory / "config.json").write_text(json.dumps(values))
    return directory


MEASURE = """
import sys, pathlib
from moe.models.backbone import load_backbone

def status(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

warm, measured = map(pathlib.Path, sys.argv[1:])
load_backbone(warm)
before = status("VmRSS")
load_backbone(measured)
print(status("VmHWM") - before)
"""


def test_a_large_model_s_experts_never_reach_memory(mixtral: Path, tmp_path: Path) -> None:
    config = family_config("mixtral", intermediate_size=8_000)  # 3 layers x 8 experts x 6 MiB, backbone below 1 MiB
    write_checkpoint("mixtral", tmp_path, config=config)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) > 120 * MEBIBYTE

    command = [sys.executable, "-c", MEASURE, str(mixtral), str(tmp_path)]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout)

    assert peak < 20 * MEBIBYTE


def test_a_missing_tensor_is_named(edited: Callable[..., Path]) -> None:
    directory = edited(lambda tensors: tensors.__delitem__("model.layers.1.self_attn.k_proj.weight"))

    with pytest.raises(BackboneWeightsError, match=r"are missing: model\.layers\.1\.self_attn\.k_proj\.weight"):
        load_backbone(directory)


def test_an_unknown_tensor_is_named(edited: Callable[..., Path]) -> None:
    directory = edited(lambda tensors: tensors.update({"model.surprise.weight": torch.zeros(2)}))

    with pytest.raises(BackboneWeightsError, match=r"have no place in the model: model\.surprise\.weight"):
        load_backbone(directory)


def test_a_tensor_of_another_shape_is_named(edited: Callable[..., Path]) -> None:
    directory = edited(lambda tensors: tensors.update({"model.norm.weight": torch.zeros(3)}))

    with pytest.raises(BackboneWeightsError, match=r"have a wrong shape: model\.norm\.weight"):
        load_backbone(directory)


def test_a_directory_without_experts_tensors_loads_like_one_with_them(
    mixtral: Path, edited: Callable[..., Path]
) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".experts." in name]:
            del tensors[name]

    assert load_backbone(edited(drop)).info == load_backbone(mixtral).info


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_package_s_backbone_answers_like_the_checkpoint_s(tmp_path: Path, family: str) -> None:
    checkpoint = write_checkpoint(family, tmp_path / "checkpoint")
    package = convert_checkpoint(checkpoint, tmp_path / "package")
    experts = LocalExperts(load_reference(checkpoint))

    answers = []
    for source in (Package.open(package), package, checkpoint):
        # Deterministic, as BLAS may round by where its operands lie in memory, which differs from load to load.
        backbone = load_backbone(source, deterministic=True)
        backbone.allocate(1, 16)
        answers.append(generate(backbone, experts, random_prompts((5,)), 2)[0].logits)

    assert all(torch.equal(torch.stack(answer), torch.stack(answers[2])) for answer in answers[:2])


def test_a_directory_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackboneWeightsError, match=r"config\.json is missing"):
        load_backbone(tmp_path)


def test_a_dense_model_is_told_how_to_become_one_with_experts(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)

    with pytest.raises(UnsupportedBackboneError, match="llama has no routed experts; make some with"):
        load_backbone(tmp_path)


def test_a_quantised_checkpoint_is_refused_by_its_method(tmp_path: Path) -> None:
    directory = write_config(tmp_path, model_type="mixtral", quantization_config={"quant_method": "awq"})

    with pytest.raises(UnsupportedBackboneError, match=r"quantised checkpoints \(awq\)"):
        load_backbone(directory)


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    directory = write_config(tmp_path, model_type="switch_transformers")

    with pytest.raises(UnsupportedBackboneError, match="switch_transformers is an encoder-decoder"):
        load_backbone(directory)


def test_an_unknown_model_type_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedBackboneError, match="no_such_model"):
        load_backbone(write_config(tmp_path, model_type="no_such_model"))


def test_state_space_layers_are_refused_by_their_class(tmp_path: Path) -> None:
    config = transformers.JambaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_experts=2,
        attn_layer_period=3,
        attn_layer_offset=2,
        use_mamba_kernels=False,
        mamba_dt_rank=4,
        mamba_d_state=4,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)

    with pytest.raises(UnsupportedBackboneError, match="layer 0: JambaMambaMixer keeps a recurrent state"):
        load_backbone(tmp_path)


def test_the_text_part_of_a_multimodal_checkpoint_is_served(tmp_path: Path) -> None:
    config = transformers.Llama4Config(
        text_config=family_config("llama4_text").to_dict(),
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "vision_output_dim": 64,
            "image_size": 28,
            "patch_size": 14,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
        },
    )
    transformers.Llama4ForConditionalGeneration(config).save_pretrained(tmp_path)

    assert load_backbone(tmp_path).info.family == "llama4_text"


def test_the_facts_are_the_configuration_s(mixtral: Path) -> None:
    info = load_backbone(mixtral).info

    facts = (info.family, info.vocabulary, info.hidden, info.topk, info.max_context, info.eos_token_ids)
    assert facts == ("mixtral", 128, 64, 2, 512, frozenset({2}))


def test_layers_with_experts_are_counted(mixtral: Path) -> None:
    assert load_backbone(mixtral).info.moe_layers == {0: 8, 1: 8, 2: 8}


def test_a_token_s_bytes_are_keys_and_values_of_all_layers(mixtral: Path) -> None:
    # 3 layers x 2 heads x (16 + 16) numbers of 4 bytes.
    assert load_backbone(mixtral).info.kv_bytes_per_token == 768


def test_latent_attention_counts_latents(tmp_path: Path) -> None:
    # 3 layers x (a latent of 32 + a rotary key of 16) numbers of 4 bytes.
    assert load_backbone(write_checkpoint("deepseek_v3", tmp_path)).info.kv_bytes_per_token == 576


def test_a_dtype_can_be_asked_for(mixtral: Path) -> None:
    assert load_backbone(mixtral, dtype=torch.bfloat16).info.kv_bytes_per_token == 384


def test_the_generation_configuration_s_ends_come_first(tmp_path: Path) -> None:
    write_checkpoint("olmoe", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))

    assert load_backbone(tmp_path).info.eos_token_ids == frozenset({7, 9})


def test_rotary_frequencies_that_shift_limit_the_context_to_the_length_before(tmp_path: Path) -> None:
    rotary = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "short_mscale": 1.0,
        "long_mscale": 1.2,
        "original_max_position_embeddings": 64,
    }
    config = family_config("phimoe", rope_parameters=rotary, max_position_embeddings=256)
    write_checkpoint("phimoe", tmp_path, config=config)

    assert load_backbone(tmp_path).info.max_context == 64


def test_windows_are_read_from_what_the_library_applies(tmp_path: Path) -> None:
    windowed = write_checkpoint("gpt_oss", tmp_path)

    kinds = [layer.visibility for _, layer in sorted(load_backbone(windowed).geometry.attention.items())]

    library = load_reference(windowed).config.layer_types
    assert [kind.kind for kind in kinds] == ["window" if "sliding" in name else "full" for name in library]


def test_loading_leaves_the_library_s_class_as_it_was(mixtral: Path) -> None:
    load_backbone(mixtral)

    assert any("experts" in name for name, _ in make_model("mixtral").named_parameters())
