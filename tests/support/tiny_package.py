"""Small model packages with random experts, written without a model: for tests of whatever reads packages."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from moe.kernels.ffn import ExpertWeights, FfnSpec, ffn
from moe.models.manifest import (
    MANIFEST_NAME,
    PROBES_NAME,
    ExpertFacts,
    FileFacts,
    Manifest,
    expert_file,
    expert_tensor,
)
from moe.models.package import expert_tensor_specs
from moe.models.probe import probe_rows, sketch
from moe.models.safetensors_stream import DTYPE_NAMES, SafetensorsWriter
from support.ffn_cases import weights, widened

HIDDEN, INNER = 24, 10
SILU = FfnSpec("silu", gated=True, bias=False)
MOE_LAYERS = {0: 4, 2: 3}
"""Two layers of experts with a dense one between them; the second has one expert less."""

_NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def expert_weights(layer: int, expert: int, spec: FfnSpec = SILU, dtype: str = "float32") -> ExpertWeights:
    """The weights that `write_package` gives an expert."""
    return weights(spec, HIDDEN, INNER, _NAMES[dtype], seed=1000 * layer + expert)


def write_package(
    out: Path,
    *,
    spec: FfnSpec = SILU,
    dtype: str = "float32",
    moe_layers: Mapping[int, int] = MOE_LAYERS,
    poison: tuple[int, int, str] | None = None,
) -> Path:
    """Writes a package named `tiny`.

    poison (layer, expert, part): that tensor gets a NaN, under a sha256 that is right.
    """
    (out / "experts").mkdir(parents=True)
    (out / "backbone").mkdir()
    (out / "backbone" / "config.json").write_text("{}")
    manifest = _manifest(spec, dtype, dict(moe_layers), {})
    for expert in range(manifest.expert_count):
        _write_expert(out, manifest, expert, poison)
    (out / PROBES_NAME).write_text(json.dumps(_probes(manifest)))
    files = {
        str(path.relative_to(out)): FileFacts(hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }
    (out / MANIFEST_NAME).write_bytes(_manifest(spec, dtype, dict(moe_layers), files).to_bytes())
    return out


def _manifest(spec: FfnSpec, dtype: str, moe_layers: dict[int, int], files: dict[str, FileFacts]) -> Manifest:
    return Manifest(
        name="tiny",
        family="mixtral",
        architecture="MixtralForCausalLM",
        dtype=dtype,
        hidden=HIDDEN,
        vocabulary=32,
        layers=max(moe_layers) + 1,
        moe_layers=moe_layers,
        topk=2,
        experts=ExpertFacts(HIDDEN, INNER, spec),
        has_tokenizer=False,
        source="random numbers",
        licence="Apache-2.0",
        notice="",
        files=files,
        tools={},
    )


def _write_expert(out: Path, manifest: Manifest, expert: int, poison: tuple[int, int, str] | None) -> None:
    specs = expert_tensor_specs(manifest, expert, DTYPE_NAMES[manifest.torch_dtype])
    writer = SafetensorsWriter(out / expert_file(expert), specs)
    for layer in manifest.layers_of(expert):
        held = expert_weights(layer, expert, manifest.ffn, manifest.dtype)
        for part in manifest.experts.shapes():
            tensor = getattr(held, part)
            if poison == (layer, expert, part):
                tensor.view(-1)[-1] = float("nan")
            writer.write(expert_tensor(layer, part), tensor)
    writer.close()


def _probes(manifest: Manifest) -> dict[str, list[list[float]]]:
    return {
        str(layer): [
            sketch(
                ffn(
                    probe_rows(HIDDEN, layer).double(),
                    widened(expert_weights(layer, expert, manifest.ffn, manifest.dtype)),
                    manifest.ffn,
                    backend="reference",
                )
            )
            for expert in range(count)
        ]
        for layer, count in manifest.moe_layers.items()
    }
