"""Turns a Hugging Face MoE checkpoint into a model package: `convert_checkpoint`.

It puts the steps in order and writes the manifest; reading names (blueprint), formulas, experts, backbone and the
directory's atomic birth are modules of their own. The same checkpoint and arguments give the same bytes.
"""

import json
import re
from pathlib import Path

import transformers
from moe.models.convert.backbone import backbone_bytes, write_backbone, write_file
from moe.models.convert.blueprint import Blueprint, draw_blueprint
from moe.models.convert.experts import ExpertsPlan, ExpertsWriting, Probes, plan_experts
from moe.models.convert.output import check_target, partial_directory
from moe.models.convert.source import Checkpoint, open_checkpoint
from moe.models.errors import ConversionError
from moe.models.manifest import MANIFEST_NAME, NAME_PATTERN, PROBES_NAME, FileFacts, Manifest
from moe.models.progress import Meter, Progress, silent

DEFAULT_SHARD_BYTES = 4_000_000_000
"""Small enough for file systems and tools that dislike huge files, large enough for few of them."""

_HEADER_ALLOWANCE = 1 << 20


def convert_checkpoint(
    source: Path,
    out: Path,
    *,
    name: str | None = None,
    licence: str = "unknown",
    notice: str = "",
    source_label: str | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    replace: bool = False,
    progress: Progress = silent,
) -> Path:
    """Makes a package in `out` of the checkpoint in `source`; returns `out`.

    name: of the model, by default made of the target's name. licence, notice, source_label: whose it is and where it is
    from, as told to whoever looks at the package; source_label is the source directory's name by default. shard_bytes:
    size at which the backbone is cut into files. replace: whether a package at `out` may be replaced. Memory stays
    below two layers of the model. Raises ConversionError and its kinds; then nothing is left behind.
    """
    name = package_name(out.name) if name is None else check_name(name)
    check_target(out, replace=replace)
    checkpoint = open_checkpoint(source)
    blueprint = draw_blueprint(checkpoint)
    plan = plan_experts(blueprint)
    total = plan.total_bytes + backbone_bytes(checkpoint, blueprint.backbone)
    meter = Meter(progress, total)
    with partial_directory(out, total + _allowance(checkpoint, plan), replace=replace) as root:
        files = write_backbone(checkpoint, blueprint.backbone, root, shard_bytes, meter.add)
        experts = ExpertsWriting(blueprint, checkpoint, plan, root, meter.add)
        probes = experts.write()
        files |= experts.files()
        files[PROBES_NAME] = write_file(root / PROBES_NAME, _probes_bytes(probes))
        labels = {"name": name, "licence": licence, "notice": notice, "source": source_label or source.name}
        manifest = _manifest(blueprint, plan, files, labels, has_tokenizer=checkpoint.has_tokenizer)
        write_file(root / MANIFEST_NAME, manifest.to_bytes())
    meter.finish("done")
    return out


def package_name(text: str) -> str:
    """A valid package name made of any text: "Mixtral-8x7B v0.1" becomes "mixtral-8x7b-v0-1"."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = re.sub(r"^[^a-z]+", "", plain)[:40].strip("-")
    return plain or "model"


def check_name(name: str) -> str:
    """Returns a valid package name. Raises ConversionError for one that could not be part of host names."""
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise ConversionError(
            f"name {name[:100]!r}: use at most 40 lower-case letters, digits and hyphens, a letter first, "
            f"for example {package_name(name)!r}"
        )
    return name


def _allowance(checkpoint: Checkpoint, plan: ExpertsPlan) -> int:
    """Room for headers, companions, probes and the manifest, generously."""
    companions = sum((checkpoint.directory / name).stat().st_size for name in checkpoint.companions)
    headers = sum(200 * len(tensors) for tensors in plan.files.values())
    return companions + 2 * headers + _HEADER_ALLOWANCE


def _probes_bytes(probes: Probes) -> bytes:
    content = {str(layer): sketches for layer, sketches in probes.items()}
    return (json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n").encode("ascii")


def _manifest(
    blueprint: Blueprint,
    plan: ExpertsPlan,
    files: dict[str, FileFacts],
    labels: dict[str, str],
    *,
    has_tokenizer: bool,
) -> Manifest:
    return Manifest(
        name=labels["name"],
        source=labels["source"],
        licence=labels["licence"],
        notice=labels["notice"],
        family=blueprint.config.model_type,
        architecture=type(blueprint.model).__name__,
        dtype=str(blueprint.dtype).removeprefix("torch."),
        hidden=blueprint.text.hidden_size,
        vocabulary=blueprint.text.vocab_size,
        layers=blueprint.text.num_hidden_layers,
        moe_layers={layer: item.count for layer, item in blueprint.experts.items()},
        topk=blueprint.topk,
        experts=plan.facts,
        has_tokenizer=has_tokenizer,
        files=files,
        tools={"transformers": transformers.__version__},
    )
