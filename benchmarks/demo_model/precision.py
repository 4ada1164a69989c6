"""The precision that the recipe computes in, an option of its programs.

bfloat16 is what the demo is served in and the default; a CPU without bfloat16 arithmetic (lscpu names neither
avx512_bf16 nor amx_bf16) is thirty times faster in float32.
"""

import click
import torch

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def as_dtype(_context: click.Context, _parameter: click.Parameter, name: str) -> torch.dtype:
    """click's callback: the name as torch's dtype."""
    return DTYPES[name]


dtype_option = click.option(
    "--dtype", type=click.Choice(list(DTYPES)), default="bfloat16", show_default=True, callback=as_dtype,
    help="Compute in; float32 is faster on a CPU without bfloat16 arithmetic.",
)  # fmt: skip
