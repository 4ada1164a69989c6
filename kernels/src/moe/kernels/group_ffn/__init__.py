"""All experts of a group for one layer in one call: `PackedGroup(experts, spec)`, then `group(rows, slots …)`.

It is what an expert process makes of a dispatch: each row through the experts of its slots, weighed and summed. Back
ends: `reference` and `torch` put moe.kernels' own permute, ffn and slot_sum together; `native` is kernels/csrc, packed
once, batch-invariant (a row's bits depend on the row and its slots alone) and callable without the interpreter
(`entry`). `native_w8a8` also rounds the rows of quantised experts to bytes (moe.kernels.quantised), which is
approximate and never taken by `auto`. All round where torch's operators do: to the experts' dtype after each product,
bias, curve and product of gate and up, to the promoted dtype after the routing weight, and once to the partial's dtype
after a sum in float32.
"""

from collections.abc import Mapping

import torch
from moe.kernels.dtypes import float_number
from moe.kernels.ffn import FfnSpec
from moe.kernels.group_ffn import choice
from moe.kernels.group_ffn.native_backend import NativeGroup, native_w8a8_group
from moe.kernels.group_ffn.parts_backend import reference_group, torch_group
from moe.kernels.group_ffn.weights import Expert, QuantisedExpert, plain
from moe.kernels.native import unavailable as native_unavailable
from moe.kernels.registry import AUTO, Registry
from torch import Tensor

W8A8 = "native_w8a8"
"""The back end that rounds rows, too."""

backends: Registry[choice.Factory] = Registry(
    "group_ffn",
    ("native", "torch"),
    {"reference": reference_group, "torch": torch_group, "native": NativeGroup, W8A8: native_w8a8_group},
    unavailable={"native": native_unavailable, W8A8: native_unavailable},
    batch_invariant=frozenset({"native", W8A8, "reference"}),
)


class PackedGroup:
    """A group's experts of one layer.

    experts: id -> ExpertWeights or QuantisedExpert, of one dtype and the spec's shapes. backend: a name in
    `backends.names()`; `native` copies the weights into its own layout and keeps no view of them. tile_rows: as for
    moe.kernels.ffn.ffn, for back ends that are not batch-invariant. The back end taken is in `backend`, the reason in
    `why`. Raises ValueError for weights that don't fit, UnknownBackendError, UnavailableBackendError.
    """

    def __init__(
        self, experts: Mapping[int, Expert], spec: FfnSpec, *, backend: str = AUTO, tile_rows: int | None = None
    ) -> None:
        self.dtype, self.hidden = _checked(experts, spec)
        self.experts = tuple(sorted(experts))
        self.backend, self.why = choice.choose(backends, backend, experts, spec, tile_rows)
        self._group = backends.get(self.backend)(experts, spec, tile_rows)

    @property
    def bytes(self) -> int:
        """Bytes kept resident for the weights."""
        return self._group.bytes

    @property
    def batch_invariant(self) -> bool:
        """Whether a row's bits depend on the row and its slots alone, without tiles."""
        return self.backend in backends.batch_invariant

    def __call__(
        self, rows: Tensor, slot_rows: Tensor, slot_experts: Tensor, slot_weights: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Each row's weighted sum over its slots, [n, hidden] in `dtype`; zero for a row without slots.

        rows [n, hidden], any float dtype (rounded to the experts'). slot_rows int32 or int64 [slots], not decreasing;
        slot_experts [slots], ids that are held; slot_weights float [slots]. Raises ValueError naming what doesn't fit,
        KeyError for an expert that is not held.
        """
        self._check(rows, slot_rows, slot_experts, slot_weights, dtype)
        return self._group(rows.to(self.dtype), slot_rows, slot_experts, slot_weights, dtype)

    def entry(self) -> tuple[int, int]:
        """Address of `moe_group_run` (csrc/abi.h) and of this group's handle, for callers without the interpreter.

        The group stays in memory until the process ends. Raises ValueError unless the back end is a native one.
        """
        if not isinstance(self._group, NativeGroup):
            raise ValueError(f"entry: back end {self.backend!r} has no C entry; take 'native'")
        _entered.append(self)
        return self._group.entry()

    def _check(
        self, rows: Tensor, slot_rows: Tensor, slot_experts: Tensor, slot_weights: Tensor, dtype: torch.dtype
    ) -> None:
        if rows.dim() != 2 or rows.shape[1] != self.hidden:
            raise ValueError(f"rows: got shape {list(rows.shape)}, want [n, {self.hidden}]")
        float_number(rows.dtype, "rows")
        float_number(slot_weights.dtype, "slot_weights")
        float_number(dtype, "dtype")
        shapes = [list(tensor.shape) for tensor in (slot_rows, slot_experts, slot_weights)]
        if shapes[0] != shapes[1] or shapes[0] != shapes[2] or len(shapes[0]) != 1:
            raise ValueError(f"slot_rows, slot_experts and slot_weights: got shapes {shapes}, want one [slots] for all")
        for name, index in (("slot_rows", slot_rows), ("slot_experts", slot_experts)):
            if index.dtype not in (torch.int32, torch.int64):
                raise ValueError(f"{name}: got {index.dtype}, want int32 or int64")


_entered: list[PackedGroup] = []
"""Groups whose address has been given away."""


def _checked(experts: Mapping[int, Expert], spec: FfnSpec) -> tuple[torch.dtype, int]:
    if not experts:
        raise ValueError("experts: none given")
    for expert, weights in experts.items():
        try:
            plain(weights).check(spec)
        except ValueError as error:
            raise ValueError(f"expert {expert}: {error}") from error
    found = {(weights.dtype, weights.hidden, weights.inner) for weights in experts.values()}
    if len(found) > 1:
        raise ValueError(f"experts: differ in (dtype, hidden, inner): {sorted(map(str, found))}")
    dtype, hidden, _ = found.pop()
    float_number(dtype, "experts")
    return dtype, hidden


__all__ = ["AUTO", "W8A8", "Expert", "PackedGroup", "QuantisedExpert", "backends"]
