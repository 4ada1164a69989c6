"""How the program talks to an engine that it measures: JSON lines on standard input and output.

In:  {"id": 1, "prompt": [5, 6], "new": 64} submits a request, at any time.    Its end: the input's end.
Out: {"ready": {fact: value}} once; {"absent": reason} instead when it can't run; {"id": 1, "at": s, "ids": [7]} when
more tokens of a request are there, `at` in time.monotonic() seconds, which all processes of a machine share.

Only the standard library is imported here: every engine runs in an environment of its own.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO


@dataclass(frozen=True)
class Request:
    """prompt: token ids. new: tokens to generate, greedily, past every end token."""

    id: int
    prompt: Sequence[int]
    new: int


class Talk:
    """An engine's end. Whatever its libraries print goes to standard error, so that lines stay JSON."""

    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._ended = False

    def ready(self, **facts: object) -> None:
        """Says that requests may come, and reads them from now on."""
        self._say({"ready": facts})
        threading.Thread(target=self._read, daemon=True).start()

    def absent(self, reason: str) -> None:
        """Says that this engine can't run here."""
        self._say({"absent": reason})

    def tokens(self, request: int, ids: Sequence[int]) -> None:
        """These tokens of a request are new."""
        self._say({"id": request, "at": time.monotonic(), "ids": list(ids)})

    def take(self, *, wait: bool) -> list[Request] | None:
        """The requests that came since; None when no more will come. wait: for at least one."""
        taken: list[Request] = []
        while not self._ended and (wait or not self._waiting.empty()):
            request = self._waiting.get()
            if request is None:
                self._ended = True
            else:
                taken.append(request)
            wait = False
        return None if self._ended and not taken else taken

    def _read(self) -> None:
        for line in sys.stdin:
            fields = json.loads(line)
            self._waiting.put(Request(fields["id"], fields["prompt"], fields["new"]))
        self._waiting.put(None)

    def _say(self, fields: dict[str, Any]) -> None:
        with self._lock:
            self._out.write(json.dumps(fields) + "\n")


def run_engine(start: Callable[[Sequence[str], Talk], None]) -> None:
    """Runs an engine's program. Whatever keeps it from running is told as its absence, with the reason."""
    talk = Talk()
    try:
        start(sys.argv[1:], talk)
    except Exception as error:
        talk.absent(f"{type(error).__name__}: {error}"[:600])
        raise
