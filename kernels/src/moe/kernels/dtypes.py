"""Names of dtypes, and the numbers that the C ABI has for them (those of moe.tensor.v1.Dtype)."""

import torch

DTYPE_NUMBERS: dict[torch.dtype, int] = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
INT8_NUMBER = 100
"""Weights only: bytes with a scale and an offset per output channel."""
INT8_DYNAMIC_NUMBER = 101
"""The same, with rows rounded to bytes as well."""


def dtype_name(dtype: torch.dtype) -> str:
    """Such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def float_number(dtype: torch.dtype, what: str) -> int:
    """The C ABI's number of a float dtype. Raises ValueError, naming `what` has it."""
    if dtype not in DTYPE_NUMBERS:
        raise ValueError(f"{what}: got {dtype_name(dtype)}, want {', '.join(map(dtype_name, DTYPE_NUMBERS))}")
    return DTYPE_NUMBERS[dtype]
