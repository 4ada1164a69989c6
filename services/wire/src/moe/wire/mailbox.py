"""Where the engine's thread waits for news of a layer call that another thread brings."""

import threading
import time

from moe.wire.port import CallFailed, Incomplete, Outcome, PartFailure

GRACE_S = 0.5
"""How long after a call's deadline its answer, sent at the deadline, may take to get here."""


class Mailbox:
    """News of one call. Failures gather until they are fetched; a final outcome stands above them."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._changed = threading.Condition()
        self._failures: list[PartFailure] = []
        self._final: Outcome | None = None

    def fail(self, *failures: PartFailure) -> None:
        """Parts won't arrive."""
        if failures:
            with self._changed:
                self._failures += failures
                self._changed.notify()

    def finish(self, outcome: Outcome) -> None:
        """The call is closed; the first outcome stands."""
        with self._changed:
            self._final = self._final or outcome
            self._changed.notify()

    def fetch(self, until: float) -> Outcome:
        """Waits for news, until a moment of time.monotonic().

        Whoever waits up to the call's deadline waits the grace beyond it, for the answer or the end of the call.
        """
        last = self._deadline + GRACE_S
        moment = until if until < self._deadline else last
        with self._changed:
            while not (self._final or self._failures):
                left = moment - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            if self._final:
                return self._final
            failures, self._failures = tuple(self._failures), []
        if not failures and time.monotonic() >= last:
            return CallFailed("no answer came before the deadline of the layer call", deadline=True)
        return Incomplete(failures)
