"""Drives an engine through a workload: submits requests when they are due, notes which tokens come and when."""

import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.end_to_end.engines import Engine
from benchmarks.end_to_end.workloads import Sent, Times
from benchmarks.places import CHECKOUT
from benchmarks.wires import AbsentError

_START_S = 1800.0
"""vLLM compiles the model when it starts: a minute on a quiet machine, eight at a load of 20 on two cores."""


@dataclass
class Coming:
    """Of one request, as it goes on."""

    ids: list[int] = field(default_factory=list)
    counts: list[tuple[float, int]] = field(default_factory=list)

    def note(self, at: float, ids: Sequence[int]) -> None:
        """These came at that time."""
        self.ids += ids
        self.counts.append((at, len(self.ids)))

    def times(self, submitted: float) -> Times:
        """When all are there."""
        return Times(submitted, tuple(self.counts), tuple(self.ids))


class Running:
    """A started engine. Raises AbsentError when it says that it can't run, or ends before it is ready."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self._log = tempfile.NamedTemporaryFile(prefix="moe-bench-", suffix=".log")  # noqa: SIM115 - closed with it
        self._process = subprocess.Popen(
            engine.command,
            env={**os.environ, **engine.environment, "PYTHONPATH": str(CHECKOUT)},
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._ids = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.facts = self._until_ready()

    def run(self, workload: Sequence[Sent], timeout_s: float) -> list[Times]:
        """Submits all when they are due; the times of each. Raises AbsentError when they aren't done in time."""
        start = time.monotonic()
        first_id = self._ids
        due = list(workload)
        submitted: dict[int, float] = {}
        came: dict[int, Coming] = {}
        missing = {first_id + number: sent.request.new for number, sent in enumerate(workload)}
        while missing:
            while due and time.monotonic() - start >= due[0].after_s:
                sent = due.pop(0)
                submitted[self._ids] = time.monotonic()
                self._submit(sent)
                came[self._ids] = Coming()
                self._ids += 1
            wait = due[0].after_s - (time.monotonic() - start) if due else 0.5
            if time.monotonic() - start > timeout_s:
                raise AbsentError(
                    f"{self.name}: {len(missing)} of {len(workload)} requests not done in {timeout_s:g} s"
                )
            self._note(max(0.0, min(wait, 0.5)), came, missing)
        return [came[number].times(at) for number, at in submitted.items()]

    def close(self) -> None:
        """Ends it."""
        if self._process.stdin:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._log.close()

    def _submit(self, sent: Sent) -> None:
        assert self._process.stdin is not None, "opened as a pipe"
        fields = {"id": self._ids, "prompt": sent.request.prompt, "new": sent.request.new}
        with suppress(BrokenPipeError):  # what it said last is told when its output has ended
            self._process.stdin.write(json.dumps(fields) + "\n")
            self._process.stdin.flush()

    def _note(self, wait_s: float, came: dict[int, Coming], missing: dict[int, int]) -> None:
        try:
            fields = self._lines.get(timeout=wait_s)
        except queue.Empty:
            return
        if fields is None or "absent" in fields:
            raise AbsentError(f"{self.name}: {fields['absent'] if fields else self._last_words()}")
        request = came[fields["id"]]
        request.note(fields["at"], fields["ids"])
        if len(request.ids) >= missing[fields["id"]]:
            del missing[fields["id"]]

    def _until_ready(self) -> dict[str, Any]:
        try:
            fields = self._lines.get(timeout=_START_S)
        except queue.Empty:
            fields = {"absent": f"not ready within {_START_S:g} s"}
        if fields is None or "absent" in fields:
            reason = fields["absent"] if fields else self._last_words()
            self.close()
            raise AbsentError(f"{self.name}: {reason}")
        ready: dict[str, Any] = fields["ready"]
        return ready

    def _last_words(self) -> str:
        lines = Path(self._log.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"ended with {self._process.wait()}: {' / '.join(lines[-2:])[-400:]}"

    def _read(self) -> None:
        assert self._process.stdout is not None, "opened as a pipe"
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(json.loads(line))
        self._lines.put(None)
