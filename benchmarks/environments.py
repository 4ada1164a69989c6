"""Environments of the peers: where their interpreters are, why one is absent, what a process in one needs."""

from ctypes.util import find_library

from benchmarks.places import WHOLE, peers_home
from benchmarks.wires import AbsentError


def peer_python(name: str, place: str) -> str:
    """The interpreter of environment `place`. Raises AbsentError with the peer's name and the reason."""
    reason = peers_home() / f"{place}.absent"
    if reason.exists():
        raise AbsentError(f"{name}: {reason.read_text(encoding='utf-8').strip()}")
    environment = peers_home() / place
    if not (environment / WHOLE).exists():
        raise AbsentError(f"{name}: there is no environment at {environment}, or no whole one; run make bench-peers")
    return str(environment / "bin" / "python")


def vllm_environment() -> dict[str, str]:
    """What vLLM's guide to CPUs asks for: Intel's OpenMP, which lies in its environment, and tcmalloc where it is
    installed, both preloaded; threads that wait for five milliseconds before they sleep."""
    places = [str(peers_home() / "vllm" / "lib" / "libiomp5.so"), find_library("tcmalloc_minimal")]
    return {"LD_PRELOAD": " ".join(place for place in places if place), "KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}
