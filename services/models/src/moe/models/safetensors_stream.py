"""Safetensors files read and written as streams: one tensor at a time, never a whole file in memory.

The format (an 8-byte little-endian header length, a JSON header of names, dtypes, shapes and byte ranges, then the
bytes) is as described at https://huggingface.co/docs/safetensors. The library's own writer wants all tensors at once,
and its reader maps files whose touched pages then count as resident; hence this module. Writing is deterministic:
the same tensors give the same bytes. It knows nothing of models.
"""

import hashlib
import json
import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import TypeIs

MAX_HEADER_BYTES = 100_000_000
DATA_ALIGNMENT = 64
COPY_BYTES = 8 << 20
MAX_ELEMENTS = 1 << 60

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""Format names of the dtypes that can be read and written."""

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class SafetensorsError(ValueError):
    """A file is no sound safetensors file, or is written against its declaration; names the file."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's dtype (as the format names it) and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor's data in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies in a file: `offset` counts from the start of the file, in bytes."""

    spec: TensorSpec
    offset: int


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a file in the order of their bytes; every byte range is checked against the file.

    Raises SafetensorsError naming the file; OSError when it can't be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise SafetensorsError(f"{path}: too short to be a safetensors file ({size} bytes)")
        (length,) = struct.unpack("<Q", start)
        if length > MAX_HEADER_BYTES or length > size - 8:
            raise SafetensorsError(f"{path}: header of {length} bytes does not fit the file of {size} bytes")
        raw = file.read(length)
    header = _parse_header(path, raw)
    return _place(path, header, data_start=8 + length, size=size)


def _parse_header(path: Path, raw: bytes) -> dict[str, object]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise SafetensorsError(f"{path}: a name occurs twice in the header")
        return found

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError, ValueError) as error:
        raise SafetensorsError(f"{path}: header is not readable JSON: {error}") from error
    if not isinstance(header, dict):
        raise SafetensorsError(f"{path}: header is not a JSON object")
    header.pop("__metadata__", None)
    return header


def _place(path: Path, header: Mapping[str, object], *, data_start: int, size: int) -> dict[str, TensorEntry]:
    found = [(name, *_entry(path, name, value)) for name, value in header.items()]
    found.sort(key=lambda item: (item[2], item[3]))
    position = 0
    for name, spec, begin, end in found:
        if begin != position or end - begin != spec.nbytes:
            raise SafetensorsError(
                f"{path}: tensor {name!r} claims bytes {begin}..{end}; expected {position}..{position + spec.nbytes}"
            )
        position = end
    if data_start + position != size:
        raise SafetensorsError(f"{path}: holds {size} bytes; its header describes {data_start + position}")
    return {name: TensorEntry(spec, data_start + begin) for name, spec, begin, _ in found}


def _entry(path: Path, name: str, value: object) -> tuple[TensorSpec, int, int]:
    if not isinstance(value, dict):
        raise SafetensorsError(f"{path}: entry {name!r} of the header is not an object")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise SafetensorsError(f"{path}: tensor {name!r} has dtype {dtype!r}; understood are {', '.join(DTYPES)}")
    if not _is_counts(shape) or len(shape) > 16 or math.prod(shape) > MAX_ELEMENTS:
        raise SafetensorsError(f"{path}: tensor {name!r} has no valid shape")
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[1] < offsets[0]:
        raise SafetensorsError(f"{path}: tensor {name!r} has no valid byte range")
    return TensorSpec(dtype, tuple(shape)), offsets[0], offsets[1]


def _is_counts(value: object) -> TypeIs[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def read_tensor(path: Path, entry: TensorEntry) -> Tensor:
    """Reads one tensor into memory of its own. Raises SafetensorsError when the file ends early.

    The memory is mapped for it alone, so that it goes back to the system with the tensor: many megabyte-sized pieces of
    the allocator's heap would leave it fragmented and the process far larger than what it holds.
    """
    if not entry.spec.nbytes:
        return torch.empty(entry.spec.shape, dtype=DTYPES[entry.spec.dtype])
    buffer = mmap.mmap(-1, entry.spec.nbytes)
    with path.open("rb", buffering=0) as file, memoryview(buffer) as view:
        _read_into(path, file.fileno(), view, entry.offset)
    return torch.frombuffer(buffer, dtype=DTYPES[entry.spec.dtype]).view(entry.spec.shape)


def _read_into(path: Path, descriptor: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise SafetensorsError(f"{path}: ends at byte {offset + done}, inside a tensor")
        done += count


def read_chunks(path: Path, entry: TensorEntry, chunk_bytes: int = COPY_BYTES) -> Iterator[memoryview]:
    """A tensor's bytes in pieces of at most `chunk_bytes`; a piece is valid until the next is asked for."""
    buffer = memoryview(bytearray(min(chunk_bytes, entry.spec.nbytes)))
    with path.open("rb", buffering=0) as file:
        for start in range(0, entry.spec.nbytes, chunk_bytes):
            piece = buffer[: min(chunk_bytes, entry.spec.nbytes - start)]
            _read_into(path, file.fileno(), piece, entry.offset + start)
            yield piece


def finite(piece: memoryview, dtype: torch.dtype) -> bool:
    """Whether bytes of a tensor hold finite numbers only; `piece` is writable and a whole count of elements."""
    if not dtype.is_floating_point or not len(piece):
        return True
    values = torch.frombuffer(piece, dtype=dtype)
    # float8 types have no isfinite of their own.
    return bool(torch.isfinite(values if dtype.itemsize > 1 else values.to(torch.float32)).all())


def header_bytes(tensors: Mapping[str, TensorSpec]) -> bytes:
    """The start of a file that holds the tensors in the mapping's order, padded so that the data is aligned.

    Raises SafetensorsError when a tensor would start unaligned to its element size.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, spec in tensors.items():
        if position % DTYPES[spec.dtype].itemsize:
            raise SafetensorsError(f"tensor {name!r} would start unaligned; put wider dtypes first")
        header[name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [position, position + spec.nbytes],
        }
        position += spec.nbytes
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    raw += b" " * (-(len(raw) + 8) % DATA_ALIGNMENT)
    return struct.pack("<Q", len(raw)) + raw


class SafetensorsWriter:
    """Writes a file's tensors in the declared order, hashing on the way.

    The file is opened for each addition only, so that hundreds of writers cost no descriptors.
    """

    def __init__(self, path: Path, tensors: Mapping[str, TensorSpec]) -> None:
        self.path = path
        self._expected = iter(list(tensors.items()))
        self._hash = hashlib.sha256()
        self.size = 0
        path.touch(exist_ok=False)
        with path.open("ab", buffering=0) as file:
            self._append(file.fileno(), memoryview(header_bytes(tensors)))

    def write(self, name: str, tensor: Tensor) -> None:
        """Appends a tensor, which must be the next one declared, of the declared dtype and shape."""
        spec = TensorSpec(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))
        self._expect(name, spec)
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        with self.path.open("ab", buffering=0) as file:
            self._append(file.fileno(), raw.data)

    def copy(self, name: str, source: Path, entry: TensorEntry) -> Iterator[memoryview]:
        """Appends a tensor's bytes from another file; yields each piece when it is written, valid until the next."""
        self._expect(name, entry.spec)
        with self.path.open("ab", buffering=0) as file:
            for piece in read_chunks(source, entry):
                self._append(file.fileno(), piece)
                yield piece

    def close(self) -> str:
        """Ends the file, flushes it to disk and returns its sha256 in hexadecimal."""
        missing = next(self._expected, None)
        if missing is not None:
            raise SafetensorsError(f"{self.path}: tensor {missing[0]!r} was declared but not written")
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        return self._hash.hexdigest()

    def _expect(self, name: str, spec: TensorSpec) -> None:
        expected = next(self._expected, None)
        if expected != (name, spec):
            raise SafetensorsError(f"{self.path}: got {name!r} {spec}; the next declared is {expected}")

    def _append(self, descriptor: int, data: memoryview) -> None:
        done = 0
        while done < len(data):
            done += os.write(descriptor, data[done:])
        self._hash.update(data)
        self.size += len(data)
