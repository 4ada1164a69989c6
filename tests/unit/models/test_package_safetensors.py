"""The streamed safetensors files: what they write the library reads, and what is damaged they refuse by name."""

import json
import struct
from pathlib import Path

import pytest
import torch
from moe.models.safetensors_stream import (
    SafetensorsError,
    SafetensorsWriter,
    TensorSpec,
    read_chunks,
    read_header,
    read_tensor,
)
from safetensors.torch import load_file, save_file


def write(path: Path, tensors: dict[str, torch.Tensor]) -> str:
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.bool: "BOOL"}
    writer = SafetensorsWriter(path, {k: TensorSpec(names[v.dtype], tuple(v.shape)) for k, v in tensors.items()})
    for name, tensor in tensors.items():
        writer.write(name, tensor)
    return writer.close()


def raw_file(path: Path, header: object, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


TENSORS = {
    "counts": torch.tensor([1, -2, 1 << 40]),
    "scalar": torch.tensor(2.5),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "half": torch.tensor([[1.5, -0.25, 3.0]], dtype=torch.bfloat16),
    "none": torch.empty(0, 4, dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
}


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", TENSORS)

    read = load_file(tmp_path / "x.safetensors")

    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in TENSORS.items()}, tmp_path / "x.safetensors")

    entries = read_header(tmp_path / "x.safetensors")

    assert all(torch.equal(read_tensor(tmp_path / "x.safetensors", entries[n]), t) for n, t in TENSORS.items())


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    import hashlib

    digest = write(tmp_path / "x.safetensors", TENSORS)

    assert digest == hashlib.sha256((tmp_path / "x.safetensors").read_bytes()).hexdigest()


def test_a_tensor_is_copied_in_pieces(tmp_path: Path) -> None:
    tensor = torch.arange(1000, dtype=torch.float32)
    save_file({"a": tensor}, tmp_path / "source.safetensors")
    entry = read_header(tmp_path / "source.safetensors")["a"]

    pieces = [bytes(piece) for piece in read_chunks(tmp_path / "source.safetensors", entry, chunk_bytes=1024)]

    whole = tensor.numpy().tobytes()
    assert pieces == [whole[:1024], whole[1024:2048], whole[2048:3072], whole[3072:]]


def test_tensors_out_of_the_declared_order_are_refused(tmp_path: Path) -> None:
    spec = TensorSpec("F32", (1,))
    writer = SafetensorsWriter(tmp_path / "x", {"a": spec, "b": spec})

    with pytest.raises(SafetensorsError, match="'b'"):
        writer.write("b", torch.zeros(1))


def test_a_file_that_lacks_a_declared_tensor_is_not_closed(tmp_path: Path) -> None:
    writer = SafetensorsWriter(tmp_path / "x", {"a": TensorSpec("F32", (1,))})

    with pytest.raises(SafetensorsError, match="'a' was declared but not written"):
        writer.close()


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "data", "complaint"),
    [
        (b"{", b"", "not readable JSON"),
        (b"\xff\xfe", b"", "not readable JSON"),
        (b"[" * 100_000, b"", "not readable JSON"),
        (b"[]", b"", "not a JSON object"),
        ({"a": 3}, b"", "'a'"),
        ({"a": GOOD}, b"1234", "describes"),
        ({"a": GOOD}, b"123456789", "describes"),
        ({"a": GOOD | {"shape": [3]}}, b"12345678", "claims bytes 0..8"),
        ({"a": GOOD | {"shape": [-2]}}, b"12345678", "no valid shape"),
        ({"a": GOOD | {"shape": [1 << 40, 1 << 40]}}, b"12345678", "no valid shape"),
        ({"a": GOOD | {"shape": [True, 2]}}, b"12345678", "no valid shape"),
        ({"a": GOOD | {"data_offsets": [8, 0]}}, b"12345678", "no valid byte range"),
        ({"a": GOOD | {"data_offsets": [1 << 70, 1 << 71]}}, b"12345678", "claims bytes"),
        ({"a": GOOD | {"dtype": "F99"}}, b"12345678", "dtype 'F99'"),
        ({"a": GOOD, "b": GOOD}, b"12345678", "claims bytes"),
        (b'{"a":{},"a":{}}', b"", "twice"),
    ],
)
def test_a_damaged_header_is_refused_with_the_file(tmp_path: Path, header: object, data: bytes, complaint: str) -> None:
    path = raw_file(tmp_path / "bad.safetensors", header, data)

    with pytest.raises(SafetensorsError, match=f"bad.safetensors.*{complaint}"):
        read_header(path)


@pytest.mark.parametrize("content", [b"", b"1234567", struct.pack("<Q", 1 << 63), struct.pack("<Q", 100) + b"{}"])
def test_a_file_too_short_for_its_header_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.safetensors").write_bytes(content)

    with pytest.raises(SafetensorsError, match=r"bad\.safetensors"):
        read_header(tmp_path / "bad.safetensors")
