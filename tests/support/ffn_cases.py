"""Shapes, weights and tolerances that the kernel tests share."""

import torch
from moe.kernels.ffn import ExpertWeights, FfnSpec

SPECS = {
    "silu": FfnSpec("silu", gated=True, bias=False),
    "gelu": FfnSpec("gelu", gated=True, bias=False),
    "gelu_tanh": FfnSpec("gelu_tanh", gated=True, bias=True),
    "ungated_relu2": FfnSpec("relu2", gated=False, bias=False),
    "ungated_gelu_biased": FfnSpec("gelu", gated=False, bias=True),
    "clamped_swiglu": FfnSpec("clamped_swiglu", gated=True, bias=True, limit=7.0, alpha=1.702),
}

ROWS = {"none": 0, "one": 1, "two": 2, "below a tile": 15, "a tile": 16, "a tile and one": 17, "odd": 53}
"""Remainders on both sides of the tile of 16, and the two ends."""

SIZES = {"aligned": (32, 64), "odd": (13, 7), "wide": (40, 130)}
"""(hidden, inner): multiples of a vector register, neither, and several registers with a tail."""


def weights(spec: FfnSpec, hidden: int, inner: int, dtype: torch.dtype, seed: int = 0) -> ExpertWeights:
    """Random weights whose outputs have about the inputs' size."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(dtype)

    up_rows = inner * (2 if spec.gated else 1)
    return ExpertWeights(
        up=draw(up_rows, hidden, scale=2 * hidden**-0.5),
        down=draw(hidden, inner, scale=inner**-0.5),
        up_bias=draw(up_rows, scale=0.5) if spec.bias else None,
        down_bias=draw(hidden, scale=0.5) if spec.bias else None,
    )


def rows(count: int, hidden: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    """Random rows of standard deviation 1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, hidden, generator=generator, dtype=torch.float64).to(dtype)


def widened(given: ExpertWeights) -> ExpertWeights:
    """The same weights in float64."""

    def wide(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.double()

    return ExpertWeights(given.up.double(), given.down.double(), wide(given.up_bias), wide(given.down_bias))


def tolerance(dtype: torch.dtype, spec: FfnSpec, wide: ExpertWeights, inputs: torch.Tensor) -> torch.Tensor:
    """Largest difference from float64 that rounding to `dtype` explains, for each output [rows, hidden].

    Each stage (product, bias, curve and gate's product: five roundings at most) moves an inner value by a few epsilon
    of the magnitudes that were added up for it. Those magnitudes, sent on through |down|, bound what an output moves.
    The factor 8 covers the stages, the sums' own float32 error (K * 2^-24, far below for these K) and the curves'
    slopes, which stay below 1.2 (relu2's below twice the value, which the square below accounts for).
    """
    magnitude = inputs.double().abs() @ wide.up.abs().T + (0 if wide.up_bias is None else wide.up_bias.abs())
    if spec.gated:
        gate, linear = magnitude.chunk(2, dim=-1)
        inner = gate * (linear + 1)
    else:
        inner = magnitude**2 if spec.activation == "relu2" else magnitude
    spread = inner @ wide.down.abs().T + (0 if wide.down_bias is None else wide.down_bias.abs())
    return 8 * torch.finfo(dtype).eps * spread + torch.finfo(dtype).tiny
