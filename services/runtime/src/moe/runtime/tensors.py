"""Tensors as messages: raw little-endian bytes, read with no copy but protobuf's own.

Protobuf copies the bytes out of a message at each access of `data`, so they are read once; the tensor then lies over
that bytes object. It is read-only by convention, as bytes are.
"""

import math
import sys
import warnings
from collections.abc import Collection, Sequence
from typing import TypeAlias

import torch
from moe.api.tensor.v1 import tensor_pb2
from moe.runtime.errors import InvalidRequest
from torch import Tensor

if sys.byteorder != "little":
    raise ImportError("moe needs a little-endian machine: tensors travel as raw little-endian bytes")

WireDtype: TypeAlias = "tensor_pb2.Dtype.ValueType"
"""An element type as the wire numbers it."""

DTYPES: dict[WireDtype, torch.dtype] = {
    tensor_pb2.DTYPE_FLOAT32: torch.float32,
    tensor_pb2.DTYPE_BFLOAT16: torch.bfloat16,
    tensor_pb2.DTYPE_FLOAT16: torch.float16,
    tensor_pb2.DTYPE_INT32: torch.int32,
    tensor_pb2.DTYPE_INT64: torch.int64,
}
"""Element types on the wire and what they are in torch."""

_WIRE_DTYPES = {dtype: wire for wire, dtype in DTYPES.items()}

Shape = Sequence[int | None]
"""A wanted shape; None stands for any extent."""


def to_wire_dtype(dtype: torch.dtype) -> WireDtype:
    """The wire's name of a torch dtype. Raises TypeError for one that does not travel."""
    try:
        return _WIRE_DTYPES[dtype]
    except KeyError:
        raise TypeError(f"{dtype} does not travel; one of {_names(_WIRE_DTYPES)} does") from None


def from_wire_dtype(value: WireDtype, *, field: str) -> torch.dtype:
    """The torch dtype of a wire's value. Raises InvalidRequest naming the field for an unset or unknown one."""
    try:
        return DTYPES[value]
    except KeyError:
        raise InvalidRequest(
            f"unknown dtype {_wire_name(value)}; want one of {_names(DTYPES.values())}", field=field
        ) from None


def to_message(tensor: Tensor) -> tensor_pb2.Tensor:
    """A message with the tensor's dtype, shape and elements, row-major. Raises TypeError for other dtypes."""
    wire_dtype = to_wire_dtype(tensor.dtype)
    flat = tensor.detach().cpu().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return tensor_pb2.Tensor(dtype=wire_dtype, shape=tuple(tensor.shape), data=data)


def from_message(
    message: tensor_pb2.Tensor,
    *,
    field: str,
    dtype: torch.dtype | Collection[torch.dtype] | None = None,
    shape: Shape | None = None,
) -> Tensor:
    """The tensor in a message, over its bytes (copied again only where they are not aligned to the element).

    dtype: what it has to be, or a set of those allowed. shape: what it has to be, None for any extent.
    Raises InvalidRequest naming the field, what came and what is wanted, also for a wrong number of bytes.
    """
    got_dtype = from_wire_dtype(message.dtype, field=f"{field}.dtype")
    got_shape = tuple(message.shape)
    _check_dtype(got_dtype, dtype, field)
    _check_shape(got_shape, shape, field)
    data = message.data
    _check_length(len(data), got_shape, got_dtype, field)
    return _view(data, got_dtype).reshape(got_shape)


def _check_dtype(got: torch.dtype, want: torch.dtype | Collection[torch.dtype] | None, field: str) -> None:
    allowed = (want,) if isinstance(want, torch.dtype) else want
    if allowed is not None and got not in allowed:
        raise InvalidRequest(f"got {_name(got)}, want {_names(allowed)}", field=f"{field}.dtype")


def _check_shape(got: tuple[int, ...], want: Shape | None, field: str) -> None:
    if want is None:
        return
    fits = len(got) == len(want) and all(w is None or g == w for g, w in zip(got, want, strict=True))
    if not fits:
        raise InvalidRequest(f"got {list(got)}, want {_shape_name(want)}", field=f"{field}.shape")


def _check_length(got: int, shape: tuple[int, ...], dtype: torch.dtype, field: str) -> None:
    """Python's integers don't overflow, so a hostile shape only makes a number that no data equals."""
    want = math.prod(shape) * dtype.itemsize
    if got != want:
        raise InvalidRequest(
            f"got {got} bytes, want {want} for {list(shape)} elements of {_name(dtype)}", field=f"{field}.data"
        )
    if not want and math.prod(extent for extent in shape if extent) > _LARGEST_EMPTY:
        raise InvalidRequest(
            f"got {list(shape)}, want extents that multiply to {_LARGEST_EMPTY}", field=f"{field}.shape"
        )


def _view(data: bytes, dtype: torch.dtype) -> Tensor:
    """The bytes as elements. A view through uint8 works for every dtype, bfloat16 too."""
    if not data:
        return torch.empty(0, dtype=dtype)
    octets = torch.frombuffer(data, dtype=torch.uint8)
    aligned = octets.data_ptr() % dtype.itemsize == 0
    return (octets if aligned else octets.clone()).view(dtype)


def _accept_read_only_buffers() -> None:
    """Takes torch's once-a-process warning about read-only buffers here, where reading them is meant.

    Silencing it at each read would change the interpreter's warning filters, which is neither cheap nor thread-safe.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        torch.frombuffer(b"\0", dtype=torch.uint8)


_accept_read_only_buffers()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _names(dtypes: Collection[torch.dtype]) -> str:
    return " or ".join(sorted(_name(dtype) for dtype in dtypes))


def _wire_name(value: int) -> str:
    known = tensor_pb2.Dtype.DESCRIPTOR.values_by_number
    return str(known[value].name) if value in known else str(value)


def _shape_name(shape: Shape) -> str:
    return "[" + ", ".join("any" if extent is None else str(extent) for extent in shape) + "]"


_LARGEST_EMPTY = 2**31 - 1
"""Bound of an empty tensor's other extents: they cost no bytes, and torch's strides overflow beyond 2**63."""
