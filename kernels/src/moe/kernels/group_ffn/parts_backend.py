"""A group put together from moe.kernels' other operators: sort slots by expert, each expert's rows through it, sum."""

from collections.abc import Mapping

import torch
from moe.kernels.ffn import ExpertWeights, FfnSpec, ffn
from moe.kernels.group_ffn.weights import Expert, QuantisedExpert, plain
from moe.kernels.permute import group_slots
from moe.kernels.slot_sum import slot_sum
from torch import Tensor


class PartsGroup:
    """As moe.kernels.group_ffn.PackedGroup. name: the back end of every operator that is used."""

    def __init__(self, name: str, experts: Mapping[int, Expert], spec: FfnSpec, tile_rows: int | None) -> None:
        self._name, self._spec, self._tile_rows = name, spec, tile_rows
        self._experts = {expert: _widened(weights, name) for expert, weights in experts.items()}
        some = next(iter(experts.values()))
        self._hidden, self._dtype = some.hidden, some.dtype

    @property
    def bytes(self) -> int:
        """Bytes of the matrices."""
        return sum(weights.up.nbytes + weights.down.nbytes for weights in self._experts.values())

    def __call__(
        self, rows: Tensor, slot_rows: Tensor, slot_experts: Tensor, slot_weights: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """As PackedGroup's; rows are of the experts' dtype."""
        groups = group_slots(slot_experts, backend=self._name)
        if len(groups.experts) == 1:
            outputs = self._expert(_gather(rows, slot_rows), groups.experts[0])
        else:
            outputs = rows.new_empty(len(slot_experts), self._hidden)
            for expert, places in groups:
                gathered = _gather(rows, slot_rows.index_select(0, places))
                outputs.index_copy_(0, places, self._expert(gathered, expert))
        return slot_sum(outputs, slot_rows, slot_weights, len(rows), dtype, backend=self._name)

    def _expert(self, rows: Tensor, expert: int) -> Tensor:
        weights = self._experts[expert]
        out = ffn(rows.to(weights.dtype), weights, self._spec, backend=self._name, tile_rows=self._tile_rows)
        return out.to(self._dtype)


def reference_group(experts: Mapping[int, Expert], spec: FfnSpec, tile_rows: int | None) -> PartsGroup:
    """The group written out."""
    return PartsGroup("reference", experts, spec, tile_rows)


def torch_group(experts: Mapping[int, Expert], spec: FfnSpec, tile_rows: int | None) -> PartsGroup:
    """The group in torch's operators."""
    return PartsGroup("torch", experts, spec, tile_rows)


def _widened(weights: Expert, name: str) -> ExpertWeights:
    """torch has no kernel for quantised matrices: they are kept in float32, or in float64 for the reference."""
    if not isinstance(weights, QuantisedExpert):
        return weights
    return plain(weights, torch.float64 if name == "reference" else torch.float32)


def _gather(rows: Tensor, index: Tensor) -> Tensor:
    """The rows of an index; without a copy when it names each in order, as when every row goes to the expert."""
    every = len(index) == len(rows) and torch.equal(index, torch.arange(len(rows), dtype=index.dtype))
    return rows if every else rows.index_select(0, index)
