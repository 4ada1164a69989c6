"""Where the weights of a dense feed-forward network go when its neurons are split among experts.

A gated FFN is a sum over neurons, down[:, n] * act(gate[n] x) * (up[n] x), so any partition of the neurons into a
shared expert and routed experts adds up to the dense FFN. Qwen2-MoE weighs a routed expert by its softmax
probability, 1/experts under a zero router, and the shared one by sigmoid(gate x), 1/2 under a zero gate; scaling the
down projections by `experts` and 2 makes up for that, exactly when both are powers of two. Pure functions on tensors.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SHARED = 255
"""Label of a neuron that belongs to the shared expert; other labels are expert ids."""


@dataclass(frozen=True)
class FeedForward:
    """A gated FFN: gate and up [neurons, hidden], down [hidden, neurons]."""

    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Partition:
    """Which expert owns each neuron, and how tokens are routed.

    labels uint8 [neurons], SHARED or an expert's id; router [experts, hidden]; shared_gate [hidden], zeros for a
    shared expert that is always added in full.
    """

    labels: Tensor
    router: Tensor
    shared_gate: Tensor

    @property
    def experts(self) -> int:
        """Number of routed experts."""
        return int(self.router.shape[0])


def owned_by(ffn: FeedForward, labels: Tensor, owner: int) -> FeedForward:
    """The neurons with one label, in their dense order."""
    chosen = (labels == owner).nonzero()[:, 0]
    return FeedForward(ffn.gate[chosen], ffn.up[chosen], ffn.down[:, chosen])


def expert_tensors(prefix: str, ffn: FeedForward, scale: int) -> dict[str, Tensor]:
    """An expert under Qwen2-MoE's names, its down projection scaled by a power of two (exact in any float type)."""
    return {
        f"{prefix}.gate_proj.weight": ffn.gate.contiguous(),
        f"{prefix}.up_proj.weight": ffn.up.contiguous(),
        f"{prefix}.down_proj.weight": (ffn.down * scale).contiguous(),
    }


def split_tensors(layer: int, ffn: FeedForward, partition: Partition) -> dict[str, Tensor]:
    """One layer's split FFN under Qwen2-MoE's names, in the FFN's dtype."""
    prefix = f"model.layers.{layer}.mlp"
    dtype = ffn.gate.dtype
    tensors = {
        f"{prefix}.gate.weight": partition.router.to(dtype).contiguous(),
        f"{prefix}.shared_expert_gate.weight": partition.shared_gate.to(dtype)[None].contiguous(),
    }
    tensors |= expert_tensors(f"{prefix}.shared_expert", owned_by(ffn, partition.labels, SHARED), scale=2)
    for expert in range(partition.experts):
        owned = owned_by(ffn, partition.labels, expert)
        tensors |= expert_tensors(f"{prefix}.experts.{expert}", owned, scale=partition.experts)
    return tensors


def empty_expert(prefix: str, hidden: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """A shared expert of one neuron that adds nothing, for a family that can't do without one."""
    row = torch.zeros(1, hidden, dtype=dtype)
    return expert_tensors(prefix, FeedForward(row, row.clone(), row.T), scale=1)
