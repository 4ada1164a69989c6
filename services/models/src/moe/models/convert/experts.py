"""Writes the experts' files, layer by layer: reads a layer's fused parameters, slices, brings to the standard layout.

All files grow together, one layer after the other, so that memory holds one layer's experts and little more however
many layers there are. Each expert's probe is computed on the way, while its weights are at hand.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from moe.kernels.ffn import ExpertWeights
from moe.models.convert.blueprint import Blueprint
from moe.models.convert.source import Checkpoint
from moe.models.errors import CheckpointError, UnsupportedModelError
from moe.models.formula import derive_ffn, prove, run_in_blocks, standard_weights
from moe.models.manifest import ExpertFacts, FileFacts, expert_file, expert_tensor
from moe.models.probe import probe_rows, sketch
from moe.models.safetensors_stream import DTYPE_NAMES, SafetensorsWriter, TensorSpec
from torch import Tensor

Probes = dict[int, list[list[float]]]


@dataclass(frozen=True)
class ExpertsPlan:
    """What the experts' files will hold. facts: formula and sizes, the same in every layer."""

    facts: ExpertFacts
    files: dict[int, dict[str, TensorSpec]]

    @property
    def total_bytes(self) -> int:
        """Size of all tensors."""
        return sum(spec.nbytes for tensors in self.files.values() for spec in tensors.values())


def plan_experts(blueprint: Blueprint) -> ExpertsPlan:
    """Derives the formula and lays out the files.

    Raises UnsupportedModelError when layers differ in formula or size.
    """
    facts = {layer: _facts(blueprint, layer) for layer in blueprint.experts}
    first, *others = facts.values()
    if any(other != first for other in others):
        raise UnsupportedModelError(f"layers differ in their experts' formula or size: {facts}")
    dtype = DTYPE_NAMES[blueprint.dtype]
    count = max(item.count for item in blueprint.experts.values())
    files = {
        expert: {
            expert_tensor(layer, part): TensorSpec(dtype, shape)
            for layer, item in blueprint.experts.items()
            if expert < item.count
            for part, shape in first.shapes().items()
        }
        for expert in range(count)
    }
    return ExpertsPlan(first, files)


def _facts(blueprint: Blueprint, layer: int) -> ExpertFacts:
    experts = blueprint.experts[layer]
    ffn = derive_ffn(experts)
    first, second = experts.module.get_parameter("down_proj").shape[1:]
    hidden, inner = (second, first) if experts.transposed else (first, second)
    return ExpertFacts(hidden=hidden, inner=inner, ffn=ffn)


class ExpertsWriting:
    """One run of writing all experts' files below `root`.

    report is told each piece of work: bytes written and a label.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        checkpoint: Checkpoint,
        plan: ExpertsPlan,
        root: Path,
        report: Callable[[int, str], None],
    ) -> None:
        self._blueprint = blueprint
        self._checkpoint = checkpoint
        self._facts = plan.facts
        self._report = report
        (root / expert_file(0)).parent.mkdir()
        self._writers = {
            expert: SafetensorsWriter(root / expert_file(expert), tensors) for expert, tensors in plan.files.items()
        }

    def write(self) -> Probes:
        """Writes all layers; returns the probes.

        Raises CheckpointError for missing, misshapen or non-finite weights, UnsupportedModelError when the formula
        doesn't reproduce the family's own forward.
        """
        return {layer: self._write_layer(layer) for layer in self._blueprint.experts}

    def files(self) -> dict[str, FileFacts]:
        """Closes the files and returns their facts."""
        return {expert_file(expert): FileFacts(writer.close(), writer.size) for expert, writer in self._writers.items()}

    def _write_layer(self, layer: int) -> list[list[float]]:
        experts = self._blueprint.experts[layer]
        fused = {name: self._blueprint.fused(self._checkpoint, layer, name) for name in experts.parameters}
        # Not always the first expert: a mistake that depends on the index would pass there.
        prove(experts, self._facts.ffn, fused, layer % experts.count)
        rows = probe_rows(self._facts.hidden, layer)
        sketches = []
        for expert in range(experts.count):
            weights = standard_weights(experts, fused, expert)
            self._report(self._write_expert(layer, expert, weights), f"experts of layer {layer}")
            sketches.append(sketch(run_in_blocks(rows, weights, self._facts.ffn)))
        return sketches

    def _write_expert(self, layer: int, expert: int, weights: ExpertWeights) -> int:
        written = 0
        for part in self._facts.shapes():
            tensor: Tensor = getattr(weights, part)
            if not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(
                    f"expert {expert} of layer {layer} has a weight that is no finite number (in {part})"
                )
            self._writers[expert].write(expert_tensor(layer, part), tensor)
            written += tensor.nbytes
        return written
