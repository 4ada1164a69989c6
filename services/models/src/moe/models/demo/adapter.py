"""The demo's adapter: what splitting and distillation changed, as a safetensors file of a few megabytes.

For each layer i: `l{i}.labels` uint8 [neurons], the expert that owns a neuron or 255 for the shared one; `l{i}.router`
[experts, hidden]; for gate, up and down `l{i}.<part>.A` [out, rank] and `.B` [rank, in] with W = W_dense + A B; and,
where they were trained, `l{i}.shared_gate` [hidden] (else zeros), `l{i}.input_norm` and `l{i}.post_norm` [hidden]
(else the dense ones). Made by benchmarks/demo_model.
"""

from pathlib import Path

import torch
from moe.models.dense.layout import FeedForward, Partition
from moe.models.errors import CheckpointError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

NORM_NAMES = {"input_norm": "input_layernorm", "post_norm": "post_attention_layernorm"}


class Adapter:
    """A loaded adapter; all its methods are pure."""

    def __init__(self, tensors: dict[str, Tensor], name: str) -> None:
        """name: for messages."""
        self._tensors = tensors
        self._name = name

    @classmethod
    def load(cls, path: Path) -> "Adapter":
        """Read the file. Raises CheckpointError naming it."""
        try:
            return cls(load_file(path), str(path))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: the demo's adapter can't be read: {error}") from error

    def partition(self, layer: int) -> Partition:
        """Owners of the layer's neurons, its router and its shared expert's gate."""
        router = self._tensor(f"l{layer}.router")
        gate = self._tensors.get(f"l{layer}.shared_gate", torch.zeros(router.shape[1]))
        return Partition(self._tensor(f"l{layer}.labels"), router, gate)

    def corrected(self, layer: int, ffn: FeedForward) -> FeedForward:
        """The layer's FFN with its low-rank corrections, in the FFN's dtype (added in fp32, rounded once)."""
        return FeedForward(
            self._corrected(f"l{layer}.gate", ffn.gate),
            self._corrected(f"l{layer}.up", ffn.up),
            self._corrected(f"l{layer}.down", ffn.down),
        )

    def norms(self, layer: int) -> dict[str, Tensor]:
        """The trained norms under Hugging Face's names; none if they weren't trained."""
        return {
            f"model.layers.{layer}.{name}.weight": self._tensors[f"l{layer}.{key}"]
            for key, name in NORM_NAMES.items()
            if f"l{layer}.{key}" in self._tensors
        }

    def _corrected(self, key: str, weight: Tensor) -> Tensor:
        left, right = self._tensor(f"{key}.A"), self._tensor(f"{key}.B")
        if (left.shape[0], right.shape[1]) != tuple(weight.shape) or left.shape[1] != right.shape[0]:
            raise CheckpointError(
                f"{self._name}: {key}.A {tuple(left.shape)} and {key}.B {tuple(right.shape)} don't fit a weight of "
                f"{tuple(weight.shape)}; the adapter belongs to another model"
            )
        return (weight.float() + left.float() @ right.float()).to(weight.dtype)

    def _tensor(self, key: str) -> Tensor:
        if key not in self._tensors:
            raise CheckpointError(f"{self._name}: tensor {key!r} is missing; the adapter is incomplete")
        return self._tensors[key]
