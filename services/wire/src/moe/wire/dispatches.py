"""Dispatches as messages: written by a router, read and checked whole by an expert."""

from collections.abc import Iterable
from typing import TypeAlias

import torch
from moe.api.expert.v1 import expert_pb2
from moe.api.tensor.v1 import tensor_pb2
from moe.runtime.errors import InvalidRequest
from moe.runtime.tensors import from_message, from_wire_dtype, to_message, to_wire_dtype
from moe.wire.deadlines import from_timeout_us, to_timeout_us
from moe.wire.port import ExpertLimits, LayerCall, Part, WorkItem
from torch import Tensor

Message: TypeAlias = expert_pb2.DispatchRequest

FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
LONGEST_AGGREGATOR_NAME = 256


def write_dispatch(call: LayerCall, part: Part, now: float) -> Message:
    """The message for one part of a call; the sender fills in the aggregator's name."""
    return Message(
        call_id=call.call_id,
        layer=call.layer,
        part=part.part,
        timeout_us=to_timeout_us(call.deadline, now),
        rows=to_message(_gather(call.hidden, part.token_index)),
        slot_rows=to_message(part.slot_rows),
        slot_experts=to_message(part.slot_experts),
        slot_weights=to_message(part.slot_weights),
        partial_dtype=to_wire_dtype(call.partial_dtype) if call.partial_dtype else tensor_pb2.DTYPE_UNSPECIFIED,
    )


def _gather(hidden: Tensor, token_index: Tensor) -> Tensor:
    """The rows of a part. An index that rises strictly and is as long as the rows are many is all of them."""
    return hidden if len(token_index) == len(hidden) else hidden.index_select(0, token_index)


def read_dispatch(message: Message, limits: ExpertLimits, now: float, ticket: object) -> WorkItem:
    """The work that a message asks for. Raises InvalidRequest naming the field, what came and what is wanted."""
    rows = from_message(message.rows, field="rows", dtype=limits.dtype, shape=(None, limits.hidden))
    if not 1 <= len(rows) <= limits.max_rows:
        raise InvalidRequest(f"got {len(rows)} rows, want 1 to {limits.max_rows} in a dispatch", field="rows")
    slot_rows = from_message(message.slot_rows, field="slot_rows", dtype=torch.int32, shape=(None,))
    slots = (len(slot_rows),)
    slot_experts = from_message(message.slot_experts, field="slot_experts", dtype=torch.int32, shape=slots)
    weight_dtypes = {torch.float32, limits.dtype}
    slot_weights = from_message(message.slot_weights, field="slot_weights", dtype=weight_dtypes, shape=slots)
    _check_experts(slot_experts, message.layer, limits)
    _check_slot_rows(slot_rows, len(rows), len(limits.experts_by_layer[message.layer]))
    return WorkItem(
        call_id=message.call_id,
        layer=message.layer,
        part=message.part,
        aggregator=_aggregator(message.aggregator),
        rows=rows,
        slot_rows=slot_rows,
        slot_experts=slot_experts,
        slot_weights=slot_weights,
        partial_dtype=_partial_dtype(message.partial_dtype, rows.dtype),
        deadline=from_timeout_us(message.timeout_us, now),
        ticket=ticket,
    )


def _aggregator(name: str) -> str:
    if not 1 <= len(name) <= LONGEST_AGGREGATOR_NAME:
        raise InvalidRequest(
            f"got {len(name)} characters, want the name of an aggregator, 1 to {LONGEST_AGGREGATOR_NAME}",
            field="aggregator",
        )
    return name


def _partial_dtype(value: tensor_pb2.Dtype.ValueType, default: torch.dtype) -> torch.dtype:
    if value == tensor_pb2.DTYPE_UNSPECIFIED:
        return default
    dtype = from_wire_dtype(value, field="partial_dtype")
    if dtype not in FLOATS:
        raise InvalidRequest(f"got {dtype}, want float32, bfloat16 or float16", field="partial_dtype")
    return dtype


def _check_experts(slot_experts: Tensor, layer: int, limits: ExpertLimits) -> None:
    held = limits.experts_by_layer.get(layer)
    if held is None:
        raise InvalidRequest(f"got {layer}, want one of {_ranges(limits.experts_by_layer)}", field="layer")
    strangers = set(slot_experts.tolist()) - held
    if strangers:
        raise InvalidRequest(
            f"got {min(strangers)}, want experts that are held here in layer {layer}: {_ranges(held)}",
            field="slot_experts",
        )


def _check_slot_rows(slot_rows: Tensor, rows: int, experts: int) -> None:
    """Each row needs a slot, or it had not been sent; and can't have more slots than there are experts."""
    if not rows <= len(slot_rows) <= rows * experts:
        raise InvalidRequest(
            f"got {len(slot_rows)} slots for {rows} rows, want {rows} to {rows * experts}", field="slot_rows"
        )
    steps = torch.diff(slot_rows.to(torch.int64))
    if int(slot_rows[0]) != 0 or int(slot_rows[-1]) != rows - 1 or bool(((steps < 0) | (steps > 1)).any()):
        raise InvalidRequest(
            f"got {_excerpt(slot_rows)}, want not decreasing from 0 to {rows - 1} with every row named",
            field="slot_rows",
        )


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers for a message: at most eight of them."""
    ordered = sorted(numbers)
    shown = ", ".join(map(str, ordered[:8]))
    return shown if len(ordered) <= 8 else f"{shown}, … {ordered[-1]} ({len(ordered)} in all)"


def _excerpt(numbers: Tensor) -> str:
    return str(numbers[:8].tolist()) if len(numbers) <= 8 else f"{numbers[:8].tolist()} and {len(numbers) - 8} more"
