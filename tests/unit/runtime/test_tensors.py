"""Tensors as messages and back."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moe.api.tensor.v1 import tensor_pb2
from moe.runtime.errors import InvalidRequest
from moe.runtime.tensors import DTYPES, from_message, from_wire_dtype, to_message, to_wire_dtype

BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def same_bits(left, right):
    view = BITS.get(left.dtype, left.dtype)
    return left.dtype == right.dtype and torch.equal(left.view(view), right.view(view))


def message(dtype=tensor_pb2.DTYPE_FLOAT32, shape=(2, 3), data=bytes(24)):
    return tensor_pb2.Tensor(dtype=dtype, shape=shape, data=data)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (5, 7), (2, 3, 4)], ids=str)
def test_a_tensor_comes_back_bit_for_bit(dtype, shape):
    tensor = (torch.arange(torch.Size(shape).numel()).reshape(shape) * 3 - 7).to(dtype)
    again = from_message(to_message(tensor), field="rows")
    assert again.shape == tensor.shape
    assert same_bits(again, tensor)


def test_non_finite_values_and_negative_zero_travel_unchanged():
    tensor = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])
    assert same_bits(from_message(to_message(tensor), field="rows"), tensor)


def test_elements_are_little_endian_and_row_major():
    assert to_message(torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)).data == struct.pack("<4i", 1, 2, 3, 4)


def test_bfloat16_is_the_upper_half_of_float32():
    assert to_message(torch.tensor([1.5], dtype=torch.bfloat16)).data == struct.pack("<f", 1.5)[2:]


def test_a_transposed_view_is_written_in_its_own_order():
    tensor = torch.arange(6, dtype=torch.int64).reshape(2, 3).t()
    assert to_message(tensor).data == struct.pack("<6q", 0, 3, 1, 4, 2, 5)


def test_a_tensor_that_needs_gradients_can_be_written():
    assert to_message(torch.ones(2, requires_grad=True)).data == struct.pack("<2f", 1, 1)


def test_reading_lies_over_the_bytes_of_the_message():
    class Message:
        """Of a message, what reading touches; protobuf's own would hand out a new bytes object each time."""

        dtype, shape, data = tensor_pb2.DTYPE_INT32, (16,), struct.pack("<16i", *range(16))

    address = torch.frombuffer(Message.data, dtype=torch.uint8).data_ptr()
    assert from_message(Message(), field="rows").data_ptr() == address


def test_bytes_that_are_not_aligned_to_the_element_are_read_all_the_same():
    class Message:
        """A message whose data begins one byte into a buffer, as in a frame."""

        dtype, shape, data = tensor_pb2.DTYPE_INT32, (2,), memoryview(b"?" + struct.pack("<2i", 5, -6))[1:]

    tensor = from_message(Message(), field="rows")
    assert (tensor.tolist(), tensor.data_ptr() % 4) == ([5, -6], 0)


def test_a_tensor_outlives_its_message():
    received = message(tensor_pb2.DTYPE_INT32, (1000,), struct.pack("<1000i", *range(1000)))
    tensor = from_message(received, field="rows")
    del received
    assert tensor.sum().item() == 499500


def test_a_dtype_that_does_not_travel_is_refused_by_name():
    with pytest.raises(TypeError, match=r"torch.float64 does not travel; one of .*float32"):
        to_message(torch.ones(1, dtype=torch.float64))


def test_wire_names_and_dtypes_are_one_to_one():
    assert [from_wire_dtype(to_wire_dtype(dtype), field="x") for dtype in DTYPES.values()] == list(DTYPES.values())


REFUSED = {
    "unset dtype": ({"dtype": 0}, {}, "rows.dtype: unknown dtype DTYPE_UNSPECIFIED; want one of bfloat16"),
    "unknown dtype": ({"dtype": 77}, {}, "rows.dtype: unknown dtype 77; want one of bfloat16"),
    "other dtype": ({}, {"dtype": torch.int32}, "rows.dtype: got float32, want int32"),
    "none of the dtypes": (
        {},
        {"dtype": {torch.int32, torch.bfloat16}},
        "rows.dtype: got float32, want bfloat16 or int32",
    ),
    "other extent": ({}, {"shape": (None, 4)}, "rows.shape: got [2, 3], want [any, 4]"),
    "other rank": ({}, {"shape": (6,)}, "rows.shape: got [2, 3], want [6]"),
    "missing byte": ({"data": bytes(23)}, {}, "rows.data: got 23 bytes, want 24 for [2, 3] elements of float32"),
    "extra byte": ({"data": bytes(25)}, {}, "rows.data: got 25 bytes, want 24"),
    "no data": ({"data": b""}, {}, "rows.data: got 0 bytes, want 24"),
    "overflowing shape": (
        {"shape": (2**32 - 1,) * 4, "data": b""},
        {},
        f"rows.data: got 0 bytes, want {4 * (2**32 - 1) ** 4}",
    ),
    "empty but huge": ({"shape": (0, 2**32 - 1), "data": b""}, {}, "rows.shape: got [0, 4294967295], want extents"),
}


@pytest.mark.parametrize(("parts", "wanted", "text"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_message_is_refused_with_field_and_values(parts, wanted, text):
    with pytest.raises(InvalidRequest) as refusal:
        from_message(message(**parts), field="rows", **wanted)
    assert refusal.value.message.startswith(text)


@given(
    dtype=st.integers(-1, 7),
    shape=st.lists(st.integers(0, 2**32 - 1), max_size=5),
    data=st.binary(max_size=64),
)
@settings(max_examples=300, deadline=None)
def test_any_message_is_read_or_refused_and_never_breaks(dtype, shape, data):
    received = tensor_pb2.Tensor(dtype=dtype, shape=shape, data=data)
    try:
        tensor = from_message(received, field="rows")
    except InvalidRequest:
        return
    assert (list(tensor.shape), tensor.numel() * tensor.element_size()) == (shape, len(data))
