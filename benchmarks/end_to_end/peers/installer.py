"""Makes one environment and runs installers for it: what they say goes to a log, how far they are to the terminal."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_EVERY_S = 20.0
_WIDTH = 100


class Installer:
    """place: the environment, made anew. log: what installers say, from the beginning."""

    def __init__(self, name: str, place: Path, log: Path) -> None:
        self.name = name
        self.python = place / "bin" / "python"
        self._place = place
        self._started = time.monotonic()
        self._log = log.open("w", encoding="utf-8")

    def __enter__(self) -> Self:
        self.run([sys.executable, "-m", "venv", self._place])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._log.close()

    @property
    def site(self) -> Path:
        """Its site-packages."""
        return next(self._place.glob("lib/python*/site-packages"))

    def uv(self, *words: str | Path) -> None:
        """`uv pip install` into it; files are linked to uv's cache where both lie on one file system."""
        self.run([sys.executable, "-m", "uv", "pip", "install", "--python", self.python, *words])

    def run(self, words: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        """Runs to its end, telling its last line now and then. Raises RuntimeError with the last of what it said."""
        lines: list[str] = []
        told = time.monotonic()
        with subprocess.Popen(
            [str(word) for word in words],
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None, "opened as a pipe"
            for line in process.stdout:
                self._log.write(line)
                if line.strip():
                    lines = [*lines[-19:], line.strip()]
                if lines and time.monotonic() - told > _EVERY_S:
                    told = time.monotonic()
                    print(f"bench-peers: {self.name} {self._elapsed()} {lines[-1][:_WIDTH]}", flush=True)
        self._log.flush()
        if process.returncode:
            last = " / ".join(lines[-3:])[-500:]
            code = process.returncode
            raise RuntimeError(f"installing it ended with {code}: {last}; all of it is in {self._log.name}")

    def _elapsed(self) -> str:
        seconds = int(time.monotonic() - self._started)
        return f"{seconds // 60}:{seconds % 60:02}"
