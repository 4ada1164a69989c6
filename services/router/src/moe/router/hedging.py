"""How long a part may stay silent before another replica is asked too: a process may hang and keep its streams open.

Pure: durations come in, a moment comes out. The router sees when a whole call was answered, not each part, so a group's
history holds the durations of the calls that it had a part in: an upper bound of its own. Sent twice, a part is counted
once by the combiner, whichever copy comes first.
"""

from collections import deque
from collections.abc import Iterable

LEAST_S = 0.3
"""Below it an extra dispatch costs more than it wins: a busy core or a collected heap explains such a silence."""

UNKNOWN_S = 2.0
"""While a group has too little history."""

P99_TIMES = 4.0
"""How many times the 99th percentile counts as silence; prompts take longer than the decoding that fills a history."""

_WINDOW = 512
_ENOUGH = 50


class Patience:
    """By expert group. after_s: a fixed time, 0 to derive it from what calls took."""

    def __init__(self, after_s: float = 0.0) -> None:
        self._fixed_s = after_s
        self._durations: dict[str, deque[float]] = {}
        self.least_s = after_s or LEAST_S

    def note(self, groups: Iterable[str], seconds: float) -> None:
        """A call with parts for these groups was answered, nothing having gone wrong."""
        if self._fixed_s:
            return
        for group in groups:
            known = self._durations.get(group)
            if known is None:
                known = self._durations[group] = deque(maxlen=_WINDOW)
            known.append(seconds)

    def seconds(self, group: str) -> float:
        """How long to wait for this group."""
        if self._fixed_s:
            return self._fixed_s
        known = self._durations.get(group, ())
        if len(known) < _ENOUGH:
            return UNKNOWN_S
        return max(LEAST_S, P99_TIMES * sorted(known)[int(0.99 * (len(known) - 1))])
