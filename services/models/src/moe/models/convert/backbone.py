"""Writes the backbone's directory: everything but the experts, under the checkpoint's own names and byte for byte.

Tensors stream through a small buffer into shards of a settable size, laid out as Hugging Face lays out checkpoints, so
that the library's own loader reads them.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from moe.models.convert.source import Checkpoint
from moe.models.errors import CheckpointError
from moe.models.manifest import BACKBONE_DIRECTORY, FileFacts
from moe.models.safetensors_stream import DTYPES, SafetensorsError, SafetensorsWriter, finite

COMPANION_LIMIT_BYTES = 1 << 30


def backbone_bytes(checkpoint: Checkpoint, names: Sequence[str]) -> int:
    """Size of the backbone's tensors."""
    return sum(checkpoint.tensors[name].entry.spec.nbytes for name in names)


def write_backbone(
    checkpoint: Checkpoint, names: Sequence[str], root: Path, shard_bytes: int, report: Callable[[int, str], None]
) -> dict[str, FileFacts]:
    """Writes the tensors and the companions below `root`; returns the files' facts.

    Raises CheckpointError for a tensor that can't be read or holds a number that is not finite.
    """
    directory = root / BACKBONE_DIRECTORY
    directory.mkdir()
    shards = list(_shards(checkpoint, names, shard_bytes))
    files = {}
    for number, shard in enumerate(shards, start=1):
        files[f"{BACKBONE_DIRECTORY}/{_shard_name(number, len(shards))}"] = _write_shard(
            checkpoint, shard, directory / _shard_name(number, len(shards)), report
        )
    if len(shards) > 1:
        index = _index(checkpoint, shards)
        files[f"{BACKBONE_DIRECTORY}/model.safetensors.index.json"] = write_file(
            directory / "model.safetensors.index.json", index
        )
    return files | _copy_companions(checkpoint, directory)


def _shards(checkpoint: Checkpoint, names: Sequence[str], shard_bytes: int) -> Iterator[list[str]]:
    """Names in order, cut where a shard would grow beyond its size; a larger tensor gets a shard of its own."""
    shard: list[str] = []
    size = 0
    for name in names:
        count = checkpoint.tensors[name].entry.spec.nbytes
        if shard and size + count > shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(name)
        size += count
    yield shard


def _shard_name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def _write_shard(
    checkpoint: Checkpoint, names: Sequence[str], path: Path, report: Callable[[int, str], None]
) -> FileFacts:
    # Wider dtypes first, so that every tensor starts aligned.
    ordered = sorted(names, key=lambda name: -DTYPES[checkpoint.tensors[name].entry.spec.dtype].itemsize)
    writer = SafetensorsWriter(path, {name: checkpoint.tensors[name].entry.spec for name in ordered})
    for name in ordered:
        place = checkpoint.tensors[name]
        try:
            for piece in writer.copy(name, place.path, place.entry):
                if not finite(piece, DTYPES[place.entry.spec.dtype]):
                    raise CheckpointError(f"{place.path}: tensor {name!r} holds a number that is not finite")
                report(len(piece), "backbone")
        except SafetensorsError as error:
            raise CheckpointError(str(error)) from error
    return FileFacts(writer.close(), writer.size)


def _index(checkpoint: Checkpoint, shards: Sequence[Sequence[str]]) -> bytes:
    places = {name: _shard_name(number, len(shards)) for number, shard in enumerate(shards, start=1) for name in shard}
    total = sum(checkpoint.tensors[name].entry.spec.nbytes for name in places)
    content = {"metadata": {"total_size": total}, "weight_map": places}
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode("utf-8")


def _copy_companions(checkpoint: Checkpoint, directory: Path) -> dict[str, FileFacts]:
    files = {}
    for name in checkpoint.companions:
        source = checkpoint.directory / name
        if source.stat().st_size > COMPANION_LIMIT_BYTES:
            raise CheckpointError(f"{source} is larger than {COMPANION_LIMIT_BYTES} bytes")
        target = directory / name
        target.parent.mkdir(exist_ok=True)
        files[f"{BACKBONE_DIRECTORY}/{name}"] = write_file(target, source.read_bytes())
    return files


def write_file(path: Path, content: bytes) -> FileFacts:
    """Writes a small file through to the disk and returns its facts."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return FileFacts(hashlib.sha256(content).hexdigest(), len(content))
