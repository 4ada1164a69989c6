"""What an expert says became of a dispatch, and what that means to the router."""

from moe.api.expert.v1 import expert_pb2
from moe.wire.port import FailureKind, PartFailure

PUSHED = expert_pb2.PART_STATUS_PUSHED

_KINDS: dict[expert_pb2.PartStatus.ValueType, FailureKind] = {
    expert_pb2.PART_STATUS_OVERLOADED: FailureKind.OVERLOADED,
    expert_pb2.PART_STATUS_EXPIRED: FailureKind.EXPIRED,
    expert_pb2.PART_STATUS_NO_COLLECTOR: FailureKind.NO_COLLECTOR,
    expert_pb2.PART_STATUS_INVALID: FailureKind.INVALID,
    expert_pb2.PART_STATUS_DRAINING: FailureKind.DRAINING,
    expert_pb2.PART_STATUS_FAILED: FailureKind.FAILED,
}
_STATUSES = {kind: status for status, kind in _KINDS.items()}


def status_of(kind: FailureKind) -> expert_pb2.PartStatus.ValueType:
    """The wire's status of a failure that an expert reports. KeyError for one that it can't report."""
    return _STATUSES[kind]


def failure_of(receipt: expert_pb2.Receipt, endpoint: str) -> PartFailure | None:
    """The failure that a receipt reports; None when the part was pushed. An unknown status is a failure."""
    if receipt.status == PUSHED:
        return None
    kind = _KINDS.get(receipt.status, FailureKind.FAILED)
    message = receipt.message or f"status {receipt.status}"
    return PartFailure(receipt.part, endpoint, kind, message, receipt.retry_after_us / 1_000_000)
