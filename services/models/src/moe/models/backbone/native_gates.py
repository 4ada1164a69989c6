"""Gates whose scoring and choice are one native call, while nothing changes their logits.

Taken over are classes whose forward is: product, softmax over all experts, the k largest, normalised or not. A gate
with patches (experts that are masked) goes through the family's own forward, operator by operator.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from moe.kernels.linear.native_backend import NativeLinear
from moe.kernels.softmax_gate import Chosen, SoftmaxGate
from moe.models.backbone.linears import PackedWeight
from moe.models.seams.gates import Gate
from torch import Tensor

_NORMALISES: dict[str, Callable[[Any], bool]] = {
    "MixtralTopKRouter": lambda module: True,
    "OlmoeTopKRouter": lambda module: bool(module.norm_topk_prob),
    "Qwen2MoeTopKRouter": lambda module: bool(module.norm_topk_prob),
    "Qwen3MoeTopKRouter": lambda module: bool(module.norm_topk_prob),
}
"""Classes of transformers whose forward was read and is that sequence -> whether weights are divided by their sum."""

_FLOAT32_WEIGHTS = frozenset({"MixtralTopKRouter"})
"""Of them those whose weights stay float32; the others round them to the logits' dtype."""


def connect_native_gates(gates: Iterable[Gate]) -> int:
    """Takes over the gates that can be, after their weights were packed; how many they are."""
    connected = 0
    for gate in gates:
        kind, weight = type(gate.module).__name__, gate.module.weight
        if kind not in _NORMALISES or not isinstance(weight, PackedWeight):
            continue
        if isinstance(weight.layer.layer, NativeLinear):
            kernel = SoftmaxGate(weight.layer, normalise=_NORMALISES[kind](gate.module))
            gate.module.forward = NativeGate(gate, kernel, torch.float32 if kind in _FLOAT32_WEIGHTS else None).forward
            connected += 1
    return connected


class NativeGate:
    """The forward of one gate. dtype: of the weights, None for the rows' own."""

    def __init__(self, gate: Gate, kernel: SoftmaxGate, dtype: torch.dtype | None) -> None:
        self._gate, self._kernel, self._dtype = gate, kernel, dtype
        self._family: Callable[[Tensor], Chosen] = gate.module.forward

    def forward(self, hidden_states: Tensor) -> Chosen:
        """As the gate's own: rows [..., hidden] to logits, weights and ids."""
        if self._gate.patches:
            return self._family(hidden_states)
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        return self._kernel(rows, self._gate.topk, self._dtype or rows.dtype)
