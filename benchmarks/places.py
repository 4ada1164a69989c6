"""Where benchmarks keep what can be made again: checkpoints, packages, GGUF files, environments of peers."""

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


def benchmarks_home() -> Path:
    """MOE_BENCH_HOME, else `benchmarks` beside the model store. Some 10 GB with the checkpoints S and M."""
    if chosen := os.environ.get("MOE_BENCH_HOME"):
        return Path(chosen).expanduser().absolute()
    store = os.environ.get("MOE_HOME") or "~/.local/share/moe/models"
    return Path(store).expanduser().absolute().parent / "benchmarks"


def peers_home() -> Path:
    """Environments of the peers, made by `make bench-peers`."""
    return CHECKOUT / ".cache" / "peers"
