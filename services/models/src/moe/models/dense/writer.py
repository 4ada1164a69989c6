"""Writes a Hugging Face checkpoint directory shard by shard, whole or not at all.

Everything goes to a hidden directory beside the target, which gets its name in one rename at the end; an interrupted
run leaves nothing that looks like a checkpoint, and the next one cleans up. The same tensors give the same bytes.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moe.models.errors import DiskFullError, OutputError
from moe.models.leftovers import remove_leftovers, side_name
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

PARTIAL_PREFIX = ".moe-partial-"


class CheckpointWriter:
    """A context manager: write_shard() as often as announced, then finish(); leaving without finish() removes all."""

    def __init__(self, out: Path, *, shards: int, needed: int) -> None:
        """needed: bytes that the checkpoint will take. Raises OutputError and DiskFullError."""
        self._out = out
        self._partial = out.with_name(side_name(PARTIAL_PREFIX, f"-{out.name}"))
        self._shards = shards
        self._files: dict[str, str] = {}
        self._written = 0
        self._bytes = 0
        check_target(out, needed)

    def __enter__(self) -> Self:
        """Makes the hidden directory. Raises OutputError."""
        remove_leftovers(self._partial.parent, PARTIAL_PREFIX)
        try:
            self._partial.mkdir(parents=True)
        except OSError as error:
            raise OutputError(f"{self._partial}: can't be made: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._partial, ignore_errors=True)

    def write_shard(self, tensors: dict[str, Tensor]) -> int:
        """Writes the next shard; returns its bytes. Raises OutputError."""
        self._written += 1
        name = f"model-{self._written:05d}-of-{self._shards:05d}.safetensors"
        try:
            save_file(dict(sorted(tensors.items())), self._partial / name, metadata={"format": "pt"})
            (self._partial / name).chmod(0o644)  # the library makes files that only their owner can read
        except (OSError, SafetensorError) as error:
            raise OutputError(f"{self._out / name}: can't be written: {error}") from error
        self._files |= dict.fromkeys(tensors, name)
        size = sum(tensor.nbytes for tensor in tensors.values())
        self._bytes += size
        return size

    def write_text(self, name: str, text: str) -> None:
        """Adds a text file."""
        (self._partial / name).write_text(text, encoding="utf-8")

    def finish(self, config: dict[str, Any], copies: Iterable[Path] = ()) -> None:
        """Adds index, config.json and the copies, and gives the directory its name. Raises OutputError."""
        if self._written != self._shards:
            raise OutputError(f"{self._out}: {self._written} shards written of {self._shards} announced")
        index = {"metadata": {"total_size": self._bytes}, "weight_map": dict(sorted(self._files.items()))}
        try:
            self.write_text("model.safetensors.index.json", as_json(index))
            self.write_text("config.json", as_json(config))
            for path in copies:
                shutil.copyfile(path, self._partial / path.name)
            if self._out.is_dir():
                self._out.rmdir()  # empty, or check_target() had refused it
            self._partial.rename(self._out)
        except OSError as error:
            raise OutputError(f"{self._out}: can't be completed: {error}") from error


def check_target(out: Path, needed: int) -> None:
    """Raises OutputError when `out` holds something and DiskFullError when `needed` bytes don't fit."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"{out}: exists already; remove it or choose another target")
    parent = next(path for path in (out.absolute(), *out.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise DiskFullError(parent, needed=needed, free=free)


def as_json(value: dict[str, Any]) -> str:
    """Indented JSON with a final newline and sorted keys, so that equal values are equal files."""
    return json.dumps(value, indent=2, sort_keys=True) + "\n"
