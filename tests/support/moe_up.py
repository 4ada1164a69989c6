"""`moe up` as a process of its own, followed by its JSON events; and the `moe` command beside it."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

MOE = (sys.executable, "-m", "moe.cli.main")
_TIED = (
    "import sys; from moe.runtime.process import die_with_parent; die_with_parent()\n"
    "from moe.cli.main import main; sys.exit(main())\n"
)
"""`moe` that dies with the test run, so that a run that is killed leaves no deployment behind."""

PATIENCE_S = 240


def environment(runtime: Path, **more: str) -> dict[str, str]:
    """What a `moe` command of a test sees: a runtime folder of its own, one thread."""
    return {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": "1", **more}


def moe(runtime: Path, *argv: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, which must be the exit code."""
    done = subprocess.run(
        [*MOE, *argv],
        env=environment(runtime),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, f"exit code {done.returncode}: {done.stdout}{done.stderr}"
    return done


class MoeUp:
    """A running `moe up --json`, in a process group of its own as a shell would make it."""

    def __init__(self, runtime: Path, *argv: str) -> None:
        self.events: list[dict] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TIED, "up", *argv, "--json"],
            env=environment(runtime),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def kill(self, process: str) -> None:
        """Kills a process and waits until it was started again and is ready."""
        os.kill(self.pid(process), signal.SIGKILL)
        self.until("ready", process, after=self.until("starting", process, after=len(self.events)))

    def until(self, event: str, process: str = "", *, after: int = 0) -> int:
        """The number of events up to the first such one after the first `after`, once it has come."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self._found(event, process, after)):
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            if line is None:
                raise AssertionError(f"ended before {process} {event}: {self.events[-3:]} {self.process.stderr.read()}")
            self.events.append(json.loads(line))
        return found[0]

    def all_events(self) -> list[dict]:
        """Every event of its life, after its end."""
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            self.events.append(json.loads(line))
        return self.events

    def up(self) -> "MoeUp":
        """Waits until everything is ready."""
        self.until("up")
        return self

    def family(self) -> list[psutil.Process]:
        """Everything it has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def pid(self, process: str) -> int:
        """The pid of a process, as its last event told."""
        return next(e["pid"] for e in reversed(self.events) if e.get("process") == process and "pid" in e)

    def interrupt(self) -> int:
        """What Ctrl-C does in a terminal: SIGINT for the whole foreground process group. Returns the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        """The exit code, when it has ended."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def stderr(self) -> str:
        """All of its standard error, after its end."""
        return self.process.stderr.read()

    def close(self) -> None:
        """Ends it, however it stands."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def _found(self, event: str, process: str, after: int) -> list[int]:
        wanted = (event, process)
        numbered = enumerate(self.events[after:], start=after + 1)
        return [number for number, each in numbered if (each["event"], each.get("process", "")) == wanted]

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)
