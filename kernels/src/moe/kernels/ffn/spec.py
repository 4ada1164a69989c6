"""What an expert computes (FfnSpec) and what it computes with (ExpertWeights).

One feed-forward network over rows: a projection up, an activation (gated or not), a projection down. The layout is one
for all families: gate rows before up rows, nothing interleaved, nothing transposed; the converter brings weights there.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Activation = Literal["silu", "gelu", "gelu_tanh", "relu2", "clamped_swiglu"]
ACTIVATIONS: tuple[str, ...] = get_args(Activation)


@dataclass(frozen=True)
class FfnSpec:
    """The formula of an expert.

    gated: activation(gate) * up, where the up projection holds gate rows and up rows; else activation(up).
    clamped_swiglu (GPT-OSS; always gated): gate' = min(gate, limit), up' = clamp(up, -limit, limit),
    (up' + 1) * gate' * sigmoid(alpha * gate'). limit and alpha belong to it alone.
    Raises ValueError for a combination that no formula is given for.
    """

    activation: Activation
    gated: bool
    bias: bool
    limit: float | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation: got {self.activation!r}, want one of {', '.join(ACTIVATIONS)}")
        if self.activation == "clamped_swiglu":
            self._check_clamped()
        elif self.limit is not None or self.alpha is not None:
            raise ValueError(f"limit and alpha belong to clamped_swiglu, not to {self.activation}")

    def _check_clamped(self) -> None:
        if not self.gated:
            raise ValueError("clamped_swiglu: gated must be true")
        if self.limit is None or self.alpha is None:
            raise ValueError("clamped_swiglu: limit and alpha must be given")
        if not self.limit > 0:
            raise ValueError(f"clamped_swiglu: limit must be above 0, got {self.limit}")


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """The tensors of one expert in one layer, all of one floating dtype.

    up [2 * inner, hidden] with the gate's rows first, or [inner, hidden] when not gated; down [hidden, inner];
    up_bias [2 * inner] or [inner] and down_bias [hidden], both or neither.
    """

    up: Tensor
    down: Tensor
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """What the expert computes in."""
        return self.up.dtype

    @property
    def hidden(self) -> int:
        """Columns of the rows that go in and come out."""
        return self.down.shape[0]

    @property
    def inner(self) -> int:
        """Columns between the activation and the projection down."""
        return self.down.shape[1]

    def check(self, spec: FfnSpec) -> None:
        """Raises ValueError naming the tensor when shapes, dtypes or biases don't fit the spec or each other."""
        if self.up.dim() != 2 or self.down.dim() != 2:
            raise ValueError(f"up and down must be matrices, got {list(self.up.shape)} and {list(self.down.shape)}")
        up_rows = self.inner * (2 if spec.gated else 1)
        wanted: dict[str, tuple[int, ...]] = {"up": (up_rows, self.hidden), "down": (self.hidden, self.inner)}
        if spec.bias:
            wanted |= {"up_bias": (up_rows,), "down_bias": (self.hidden,)}
        for name in ("up", "down", "up_bias", "down_bias"):
            self._check_tensor(name, wanted.get(name))

    def _check_tensor(self, name: str, shape: tuple[int, ...] | None) -> None:
        tensor: Tensor | None = getattr(self, name)
        if shape is None and tensor is None:
            return
        if shape is None or tensor is None:
            raise ValueError(f"{name}: {'missing' if tensor is None else 'given, but the spec has no bias'}")
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: got shape {list(tensor.shape)}, want {list(shape)}")
        if tensor.dtype != self.up.dtype or not tensor.is_floating_point():
            raise ValueError(f"{name}: got dtype {tensor.dtype}, want {self.up.dtype} and floating")
