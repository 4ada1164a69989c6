"""Deterministic mode: while the library's model runs, its products and functions go through `tiles`.

Everything that the model calls is seen here, gates and odd families included. Operations that mix rows in a way not
known to be independent of the batch are refused instead of being passed on in silence. Attention, which fixes its
own shapes, and the experts' callback run with the mode paused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from moe.models.backbone.linears import PackedWeight
from moe.models.backbone.tiles import in_vectors, tiled_linear
from moe.models.seams.errors import UnsupportedBackboneError
from torch import Tensor
from torch.overrides import TorchFunctionMode

ELEMENTWISE: frozenset[Any] = frozenset(
    {F.silu, F.gelu, F.softplus, F.sigmoid, F.tanh, F.relu}
    | {torch.sigmoid, torch.tanh, torch.exp, torch.cos, torch.sin, torch.log1p, torch.rsqrt}
    | {Tensor.sigmoid, Tensor.tanh, Tensor.exp, Tensor.cos, Tensor.sin, Tensor.log1p, Tensor.rsqrt}
)
"""Functions that torch computes in vectors as far as they go."""

REFUSED: frozenset[Any] = frozenset(
    {torch.matmul, torch.mm, torch.bmm, torch.einsum, torch.addmm, torch.baddbmm, F.scaled_dot_product_attention}
    | {Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.__matmul__, Tensor.addmm, Tensor.baddbmm}
)
"""Products that the library's own code may not do in this mode."""


class FixedShapes(TorchFunctionMode):
    """Active around the model's forward in deterministic mode."""

    def __init__(self) -> None:
        super().__init__()
        self._paused = False

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Lets everything through for a while; may be nested."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    @contextmanager
    def resume(self) -> Iterator[None]:
        """Ends a pause for a while."""
        before, self._paused = self._paused, False
        try:
            yield
        finally:
            self._paused = before

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch for every function; the mode is off while it runs."""
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        if func is F.linear:
            if isinstance(args[1], PackedWeight) and args[1].layer.batch_invariant:
                return func(*args, **kwargs)
            return tiled_linear(*args, **kwargs)
        if func in ELEMENTWISE:
            return in_vectors(partial(_swapped, func, args[1:], kwargs), args[0])
        if func in REFUSED:
            raise UnsupportedBackboneError(
                f"deterministic mode: the model calls {func.__name__}, whose bits may depend on the batch; "
                "serve it without deterministic mode"
            )
        return func(*args, **kwargs)


def _swapped(func: Callable[..., Tensor], rest: tuple[Any, ...], kwargs: dict[str, Any], values: Tensor) -> Tensor:
    return func(values, *rest, **kwargs)
