"""Where each part of an open layer call was sent last, and which of them are known not to arrive: pure.

The router learns of a part's fate on three ways: the expert's receipt, the end of a stream, and the aggregator. A part
whose dispatch was acknowledged is the aggregator's business; until then it is lost with the Dispatch stream.
Reporting a part that arrives after all is harmless, as a second arrival is dropped; forgetting one is not.
"""

from collections import Counter
from dataclasses import dataclass

from moe.wire.port import FailureKind, PartFailure


@dataclass
class _Sent:
    endpoint: str
    instance: str | None


class CallLedger:
    """The sent parts of one layer call. endpoint: where to; instance: the process that answered there."""

    def __init__(self) -> None:
        self._sent: dict[int, _Sent] = {}
        self._unanswered: Counter[tuple[int, str]] = Counter()

    def sent(self, part: int, endpoint: str, instance: str | None) -> None:
        """A part was handed to the stream of an endpoint; instance is None while that stream is being opened."""
        self._sent[part] = _Sent(endpoint, instance)
        self._unanswered[part, endpoint] += 1

    def opened(self, endpoint: str, instance: str) -> None:
        """The stream to an endpoint opened: what waited for it goes to this process."""
        for sent in self._sent.values():
            if sent.endpoint == endpoint and sent.instance is None:
                sent.instance = instance

    def receipt(self, part: int, endpoint: str, failure: PartFailure | None) -> PartFailure | None:
        """A receipt came; returns the failure if it is about the part's last dispatch."""
        self._unanswered[part, endpoint] -= 1
        sent = self._sent.get(part)
        if failure is None or sent is None or sent.endpoint != endpoint or self._unanswered[part, endpoint] > 0:
            return None
        del self._sent[part]
        return failure

    def stream_lost(self, endpoint: str, kind: FailureKind, message: str) -> list[PartFailure]:
        """The Dispatch stream to an endpoint is gone: dispatches without a receipt are lost."""
        lost = [
            part
            for part, sent in self._sent.items()
            if sent.endpoint == endpoint and self._unanswered[part, endpoint] > 0
        ]
        for part, at in list(self._unanswered):
            if at == endpoint:
                del self._unanswered[part, at]
        return self._fail(lost, kind, message)

    def source_lost(self, instance: str, message: str) -> list[PartFailure]:
        """The aggregator may have missed what this process pushed."""
        lost = [part for part, sent in self._sent.items() if sent.instance == instance]
        return self._fail(lost, FailureKind.STREAM_LOST, message)

    def refused(self, part: int, reason: str) -> list[PartFailure]:
        """The combiner could not use the part that arrived."""
        return self._fail([part] if part in self._sent else [], FailureKind.REFUSED, reason)

    def _fail(self, parts: list[int], kind: FailureKind, message: str) -> list[PartFailure]:
        return [PartFailure(part, self._sent.pop(part).endpoint, kind, message) for part in parts]
