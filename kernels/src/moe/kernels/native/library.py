"""libmoe_kernels.so through ctypes: its functions' types, its messages as exceptions, its instruction sets.

ctypes costs a microsecond or two a call, releases the interpreter meanwhile, and starts at once.
"""

import ctypes
import functools
import os
import threading
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

PATH_VARIABLE = "MOE_KERNELS_LIBRARY"
"""Environment variable that names another build of the library, such as the one with sanitizers."""

PATH = Path(os.environ.get(PATH_VARIABLE) or Path(__file__).with_name("libmoe_kernels.so"))
ABI = 8
"""MOE_KERNELS_ABI of csrc/abi.h that this Python speaks."""

_REMEDY = "build it with `make kernels-native`"
_ERROR_BYTES = 512


class NativeError(RuntimeError):
    """The library is not there, is another version's, or refused a call; the message says why."""


class MatrixStruct(ctypes.Structure):
    """moe_matrix: a matrix before it is packed."""

    _fields_ = (
        ("data", c_void_p),
        ("scale", c_void_p),
        ("offset", c_void_p),
        ("out", c_int64),
        ("in_", c_int64),
        ("out_stride", c_int64),
        ("in_stride", c_int64),
        ("group", c_int64),
        ("dtype", c_int32),
    )


class FfnStruct(ctypes.Structure):
    """moe_ffn: an expert's formula and sizes."""

    _fields_ = (
        ("hidden", c_int64),
        ("inner", c_int64),
        ("dtype", c_int32),
        ("activation", c_int32),
        ("gated", c_int32),
        ("limit", c_float),
        ("alpha", c_float),
    )


class CacheStruct(ctypes.Structure):
    """moe_cache: one layer's keys and values."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("sinks", c_void_p),
        ("heads", c_int64),
        ("groups", c_int64),
        ("key_size", c_int64),
        ("value_size", c_int64),
        ("key_slot_stride", c_int64),
        ("key_head_stride", c_int64),
        ("key_token_stride", c_int64),
        ("value_slot_stride", c_int64),
        ("value_head_stride", c_int64),
        ("value_token_stride", c_int64),
        ("scale", c_float),
        ("dtype", c_int32),
    )


class ProjectionStruct(ctypes.Structure):
    """moe_projection: from hidden states into the cache."""

    _fields_ = (
        ("qkv", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("query_heads", c_int64),
        ("key_heads", c_int64),
        ("head_size", c_int64),
        ("epsilon", c_float),
        ("whole_norm", c_int32),
        ("round_first", c_int32),
    )


class NormStruct(ctypes.Structure):
    """moe_norm: a root-mean-square norm of rows."""

    _fields_ = (("weight", c_void_p), ("epsilon", c_float), ("round_first", c_int32))


class LayerStruct(ctypes.Structure):
    """moe_layer: the attention half of a decoder layer."""

    _fields_ = (
        ("projection", ProjectionStruct),
        ("before", NormStruct),
        ("after", NormStruct),
        ("output", c_void_p),
        ("hidden", c_int64),
    )


class RotaryStruct(ctypes.Structure):
    """moe_rotary: the angles of each row's position."""

    _fields_ = (
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("row_stride", c_int64),
        ("half", c_int64),
        ("second", c_int64),
    )


_ERROR = (c_char_p, c_int64)
_RUN = (c_void_p, c_void_p, c_int32, c_int64, c_int64, c_void_p, c_int32, c_int64, c_int32)
_SLOTS = (c_void_p, c_void_p, c_void_p, c_int32, c_int64)
_GROUP = (c_void_p, c_void_p, c_int64, c_int64, *_SLOTS, c_void_p, c_int32)
_ATTEND = (c_int32, POINTER(CacheStruct), c_void_p, c_int64, c_int64, c_int64, *(c_void_p,) * 4, c_int64, c_int32)
_STORE = (POINTER(CacheStruct), *(c_void_p, c_int64, c_int64) * 2, c_int64, c_void_p, c_void_p)
_WAY = (c_int32, POINTER(ProjectionStruct), POINTER(CacheStruct), POINTER(RotaryStruct), c_void_p, c_int64, c_int64)
_PROJECT = (*_WAY, *(c_void_p,) * 3, c_int32)
_THROUGH = (c_int32, POINTER(LayerStruct), POINTER(CacheStruct), POINTER(RotaryStruct), c_void_p, c_int64, c_int64)
_LAYER = (*_THROUGH, *(c_void_p,) * 7, c_int32)
_ADD = (c_int32, c_void_p, c_void_p, c_int32, c_int64, c_int64, c_void_p, c_int32)
_NORM = (c_int32, c_void_p, c_int32, c_int64, c_int64, c_int64, c_void_p, c_float, c_int32, c_void_p, c_int32)
_GATE = (c_void_p, c_void_p, c_int32, *(c_int64,) * 3, c_int32, c_void_p, c_void_p, c_int32, c_void_p, c_int32)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "moe_kernels_abi": (c_int32, ()),
    "moe_variants": (c_int32, ()),
    "moe_variant_name": (c_char_p, (c_int32,)),
    "moe_linear_pack": (c_int32, (c_int32, POINTER(MatrixStruct), POINTER(c_float), POINTER(c_void_p), *_ERROR)),
    "moe_linear_free": (None, (c_void_p,)),
    "moe_linear_bytes": (c_int64, (c_void_p,)),
    "moe_linear_run": (c_int32, (*_RUN, *_ERROR)),
    "moe_gate": (c_int32, (*_GATE, *_ERROR)),
    "moe_read_memory": (c_uint64, (c_void_p, c_int64, c_int32)),
    "moe_group_new": (c_int32, (c_int32, POINTER(FfnStruct), POINTER(c_void_p), *_ERROR)),
    "moe_group_add": (c_int32, (c_void_p, c_int32, *(POINTER(MatrixStruct),) * 2, c_void_p, c_void_p, *_ERROR)),
    "moe_group_free": (None, (c_void_p,)),
    "moe_group_bytes": (c_int64, (c_void_p,)),
    "moe_group_run": (c_int32, (*_GROUP, c_int32, *_ERROR)),
    "moe_attend": (c_int32, (*_ATTEND, *_ERROR)),
    "moe_store": (c_int32, (*_STORE, *_ERROR)),
    "moe_project": (c_int32, (*_PROJECT, *_ERROR)),
    "moe_layer_attend": (c_int32, (*_LAYER, *_ERROR)),
    "moe_rms_norm": (c_int32, (*_NORM, *_ERROR)),
    "moe_add": (c_int32, (*_ADD, *_ERROR)),
}


class _Messages(threading.local):
    """Where functions of this thread write what went wrong: kept, as making it costs more than a short call."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(_ERROR_BYTES)


_messages = _Messages()


class Library:
    """The opened library. Raises NativeError when it can't be opened or is another version's."""

    def __init__(self, path: Path = PATH) -> None:
        if not path.exists():
            raise NativeError(f"{path.name} has not been built; {_REMEDY} (needs a C++17 compiler)")
        try:
            self._functions = ctypes.CDLL(str(path))
            abi = int(self._functions.moe_kernels_abi())
        except (OSError, AttributeError) as error:
            raise NativeError(f"{path.name} can't be opened ({error}); {_REMEDY}") from error
        if abi != ABI:
            raise NativeError(f"{path.name} is of version {abi}, this needs {ABI}; {_REMEDY}")
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._functions, name, None)
            if function is None:
                raise NativeError(f"{path.name} lacks {name}, it is another version's; {_REMEDY}")
            function.restype, function.argtypes = result, arguments

    def function(self, name: str) -> Any:
        """A function of the C ABI, typed. For calls whose result is no error code."""
        return getattr(self._functions, name)

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function that ends in (error, error_size). Raises NativeError with its message."""
        message = _messages.buffer
        if getattr(self._functions, name)(*arguments, message, _ERROR_BYTES):
            raise NativeError(message.value.decode("utf-8", "replace"))


@functools.cache
def library() -> Library:
    """The library, opened once per process. Raises NativeError."""
    return Library()


@functools.cache
def unavailable() -> str | None:
    """Why the library can't be used, None when it can. Looked up once per process."""
    try:
        library()
    except NativeError as error:
        return str(error)
    return None


@functools.cache
def variants() -> tuple[str, ...]:
    """Instruction sets that were built and that this processor runs, worst first. Raises NativeError."""
    opened = library()
    names = (opened.function("moe_variant_name")(place) for place in range(opened.function("moe_variants")()))
    return tuple(name.decode() for name in names)


def variant_number(name: str | None) -> int:
    """The number of an instruction set; of the best for None. Raises NativeError for one that can't run here."""
    known = variants()
    if name is not None and name not in known:
        raise NativeError(f"no instruction set {name!r}; this processor runs {', '.join(known)}")
    return len(known) - 1 if name is None else known.index(name)
