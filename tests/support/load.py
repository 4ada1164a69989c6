"""A steady, bounded load on a router, under which a test disturbs the system: nothing of it may get lost.

One client for each prompt, at most one request a client at a time, each begun no sooner than a set time after the last.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from support.streams import Answer, Clients, request

EVERY_S = 0.5
"""Between the beginnings of a client's requests: a load that leaves the machine room for what disturbs it."""


@dataclass(frozen=True)
class Asked:
    """A prompt's answer, and how long it took."""

    prompt: int
    answer: Answer
    took_s: float


@dataclass
class Load:
    """Asks for as long as the block runs. prompts: token ids; length: tokens of each answer."""

    clients: Clients
    prompts: Sequence[Sequence[int]]
    length: int
    every_s: float = EVERY_S
    asked: list[Asked] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Load":
        self._threads = [threading.Thread(target=self._ask, args=(each,)) for each in range(len(self.prompts))]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        slowest = max((each.took_s for each in self.asked), default=0.0)
        print(f"load: {len(self.asked)} requests, the slowest took {slowest:.1f} s")

    def answered(self) -> int:
        """Requests that have come to their end, well or not."""
        return len(self.asked)

    def check(self, wanted: Sequence[Sequence[int]] | None = None) -> None:
        """Every request was answered, with those tokens of each prompt where they are given."""
        assert self.asked
        assert [each.answer.error for each in self.asked if each.answer.error] == []
        if wanted is not None:
            wrong = [each for each in self.asked if each.answer.tokens != list(wanted[each.prompt][: self.length])]
            assert wrong == []

    def _ask(self, prompt: int) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            answer = self.clients.ask(request(self.prompts[prompt], self.length))
            took_s = time.monotonic() - began
            self.asked.append(Asked(prompt, answer, took_s))
            self._over.wait(self.every_s - took_s)
