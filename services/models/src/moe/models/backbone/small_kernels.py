"""What attention and norms compute with, and the norms themselves.

A family's root-mean-square norm is a handful of torch's operators on short rows, whose calls cost more than their
arithmetic. Families write it in several ways (what is rounded when, one added to the weight or not), so a module is
replaced only where one of moe.kernels' ways gives its own numbers for trial rows; the others stay the family's.
"""

from typing import Any, Literal

import torch
from moe.kernels.attention import backends as attention_backends
from moe.kernels.rms_norm import RmsNorm
from moe.models.seams.errors import UnsupportedBackboneError
from torch import Tensor, nn

AttentionKernel = Literal["auto", "torch", "native"]
"""auto: native where it is built, else torch."""

TRIAL_ROWS = 4
SAME_SHARE = 0.99
"""Of the trial's numbers that have to be the module's to the bit, in bfloat16 and float16: sums differ at the end."""

SAME_FLOAT32 = 1e-6
"""Largest relative difference in float32."""


def attention_kernel_here(wanted: AttentionKernel) -> Literal["torch", "native"]:
    """What runs. Raises UnsupportedBackboneError when `native` is wanted and can't run."""
    if wanted == "torch":
        return "torch"
    why = attention_backends.why_not("native")
    if why is None:
        return "native"
    if wanted == "native":
        raise UnsupportedBackboneError(f"attention kernel native (--attention-kernel): {why}")
    return "torch"


def connect_norms(model: nn.Module) -> int:
    """Gives the norms that a kernel of ours equals its forward; how many they are."""
    connected = 0
    for module in model.modules():
        kernel = _equal_kernel(module)
        if kernel is not None:
            _replace(module, kernel)
            connected += 1
    return connected


def _replace(module: Any, kernel: RmsNorm) -> None:
    module.forward = kernel.__call__


def _equal_kernel(module: Any) -> RmsNorm | None:
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    named = type(module).__name__.endswith("RMSNorm")
    if not named or not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(epsilon, float):
        return None
    rows = _trial_rows(weight)
    with torch.inference_mode():
        try:
            wanted = module(rows)
        except Exception:  # a norm that wants more than rows (a gate, say) is none of ours
            return None
        for added in (0.0, 1.0):
            for round_first in (True, False):
                kernel = RmsNorm(weight.detach().float() + added, epsilon, round_first=round_first, backend="native")
                if _same(kernel(rows), wanted):
                    return kernel
    return None


def _trial_rows(weight: Tensor) -> Tensor:
    """[TRIAL_ROWS, width] of different sizes, the same each time."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(TRIAL_ROWS, weight.shape[0], generator=generator)
    return (rows * torch.tensor([1.0, 0.01, 30.0, 1.0])[:, None]).to(weight.dtype)


def _same(got: Tensor, wanted: Tensor) -> bool:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return False
    if got.dtype == torch.float32:
        return bool(torch.allclose(got, wanted, rtol=SAME_FLOAT32, atol=0.0))
    return float((got == wanted).float().mean()) >= SAME_SHARE
