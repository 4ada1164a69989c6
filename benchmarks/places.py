"""Where benchmarks keep what can be made again: checkpoints, packages, GGUF files, environments of peers."""

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


def benchmarks_home() -> Path:
    """MOE_BENCH_HOME, else `benchmarks` beside the model store. Some 15 GB with the peers."""
    if chosen := os.environ.get("MOE_BENCH_HOME"):
        return Path(chosen).expanduser().absolute()
    store = os.environ.get("MOE_HOME") or "~/.local/share/moe/models"
    return Path(store).expanduser().absolute().parent / "benchmarks"


WHOLE = ".whole"
"""A file in an environment that was made to its end; it says what the environment holds."""


def peers_home() -> Path:
    """Environments of the peers, made by `make bench-peers`; all checkouts share them."""
    return benchmarks_home() / "peers"


def made_from(mark: Path, source: str) -> bool:
    """Whether what this mark lies beside was made to its end from that source: the mark, written last, names it."""
    return mark.exists() and mark.read_text(encoding="utf-8") == source
