"""Plans and answers as messages between a router and its aggregator."""

from typing import TypeAlias

import torch
from moe.api.aggregator.v1 import aggregator_pb2
from moe.runtime.errors import InvalidRequest
from moe.runtime.tensors import from_message, from_wire_dtype, to_message, to_wire_dtype
from moe.wire.combining import Answered, CallKey, CallPlan, PlannedPart
from moe.wire.deadlines import from_timeout_us, to_timeout_us
from moe.wire.port import Combined, LayerCall, MissingPart, MissingPolicy, Part
from torch import Tensor

PlanMessage: TypeAlias = aggregator_pb2.Plan

_POLICIES: dict[MissingPolicy, aggregator_pb2.MissingPolicy.ValueType] = {
    MissingPolicy.WAIT: aggregator_pb2.MISSING_POLICY_WAIT,
    MissingPolicy.RENORMALISE: aggregator_pb2.MISSING_POLICY_RENORMALISE,
    MissingPolicy.FAIL: aggregator_pb2.MISSING_POLICY_FAIL,
}
_FROM_WIRE = {wire: policy for policy, wire in _POLICIES.items()}


def plan_of(call: LayerCall) -> CallPlan:
    """The plan of a call, for a combiner in this process."""
    parts = sorted(call.parts, key=lambda part: part.part)
    return CallPlan(
        key=CallKey(call.call_id, call.layer),
        tokens=call.hidden.shape[0],
        hidden=call.hidden.shape[1],
        dtype=call.hidden.dtype,
        policy=call.policy,
        deadline=call.deadline,
        parts=tuple(PlannedPart(part.part, part.token_index, _row_weights(part, call.policy)) for part in parts),
    )


def _row_weights(part: Part, policy: MissingPolicy) -> Tensor | None:
    """Each row's routing weights in this part, summed; only `renormalise` pays for them."""
    if policy is not MissingPolicy.RENORMALISE:
        return None
    sums = torch.zeros(len(part.token_index), dtype=torch.float32)
    return sums.index_add_(0, part.slot_rows, part.slot_weights.to(torch.float32))


def write_plan(plan: CallPlan, now: float) -> PlanMessage:
    """The message for a plan."""
    return PlanMessage(
        call_id=plan.key.call_id,
        layer=plan.key.layer,
        tokens=plan.tokens,
        hidden=plan.hidden,
        dtype=to_wire_dtype(plan.dtype),
        timeout_us=0 if plan.deadline is None else to_timeout_us(plan.deadline, now),
        policy=_POLICIES[plan.policy],
        parts=[_write_part(part) for part in plan.parts],
    )


def _write_part(part: PlannedPart) -> aggregator_pb2.PlannedPart:
    weights = None if part.row_weights is None else to_message(part.row_weights)
    return aggregator_pb2.PlannedPart(part=part.part, token_index=to_message(part.token_index), row_weights=weights)


def read_plan(message: PlanMessage, now: float) -> CallPlan:
    """The plan in a message; whether it makes sense is the combiner's. Raises InvalidRequest naming the field."""
    if message.policy not in _FROM_WIRE:
        raise InvalidRequest(f"got {message.policy}, want wait, renormalise or fail", field="plan.policy")
    return CallPlan(
        key=CallKey(message.call_id, message.layer),
        tokens=message.tokens,
        hidden=message.hidden,
        dtype=from_wire_dtype(message.dtype, field="plan.dtype"),
        policy=_FROM_WIRE[message.policy],
        deadline=from_timeout_us(message.timeout_us, now),
        parts=tuple(_read_part(part) for part in message.parts),
    )


def _read_part(message: aggregator_pb2.PlannedPart) -> PlannedPart:
    name = f"plan.parts[part={message.part}]"
    index = from_message(message.token_index, field=f"{name}.token_index", dtype=torch.int32, shape=(None,))
    if not message.HasField("row_weights"):
        return PlannedPart(message.part, index)
    weights = from_message(message.row_weights, field=f"{name}.row_weights", dtype=torch.float32, shape=(None,))
    return PlannedPart(message.part, index, weights)


def write_answer(event: Answered) -> aggregator_pb2.Combined:
    """The message for an answer."""
    return aggregator_pb2.Combined(
        call_id=event.key.call_id,
        layer=event.key.layer,
        rows=to_message(event.rows),
        missing=[aggregator_pb2.MissingPart(part=m.part, reason=m.reason, rows=m.rows) for m in event.missing],
    )


def read_answer(message: aggregator_pb2.Combined) -> Combined:
    """The answer in a message. Raises InvalidRequest."""
    missing = tuple(MissingPart(m.part, m.reason, m.rows) for m in message.missing)
    return Combined(from_message(message.rows, field="combined.rows", shape=(None, None)), missing)
