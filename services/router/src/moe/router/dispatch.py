"""Cuts a layer's routing into the parts of a layer call, one for each expert group that has work.

Pure and vectorised: the only Python loop runs over the groups. Dropped slots (index >= the layer's experts) are never
sent; a row all of whose slots are dropped is in no part.
"""

import numpy as np
import torch
from moe.wire.port import Part
from numpy.typing import NDArray
from torch import Tensor


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
    slot_ends = [*begins[1:].tolist(), len(part)]
    first_rows = number[begins].tolist()
    row_ends = [*first_rows[1:], int(number[-1]) + 1]
    number -= np.repeat(number[begins], np.diff([*begins, len(part)]))
    token_index, slot_rows, slot_experts = (torch.from_numpy(a) for a in (row[starts_row], number, expert))
    return tuple(
        Part(p, token_index[r0:r1], slot_rows[s0:s1], slot_experts[s0:s1], weight[s0:s1])
        for p, r0, r1, s0, s1 in zip(
            part[begins].tolist(), first_rows, row_ends, begins.tolist(), slot_ends, strict=True
        )
    )
