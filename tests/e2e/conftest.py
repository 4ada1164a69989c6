"""Deployments made by `moe up`, and the demo model, converted once."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.families import write_package
from support.moe_up import MoeUp, moe
from support.streams import Clients


@pytest.fixture(scope="session")
def runtime() -> Iterator[Path]:
    """Short enough for unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="moe-e2e-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package("qwen2_moe", tmp_path_factory.mktemp("packages") / "tiny")


@pytest.fixture(scope="session")
def demo(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model's package, converted as `make demo` does."""
    out = tmp_path_factory.mktemp("store") / "demo"
    moe(runtime, "convert", "demo", str(out))
    return out


@pytest.fixture(scope="module")
def bring_up(runtime: Path) -> Iterator[Callable[..., tuple[MoeUp, Clients]]]:
    """Runs `moe up` and connects to its router; ends both after the module."""
    opened: list[MoeUp | Clients] = []

    def bring(package: Path, *argv: str) -> tuple[MoeUp, Clients]:
        name = f"e2e-{os.getpid()}-{len(opened)}"
        up = MoeUp(runtime, str(package), "--name", name, *argv)
        opened.append(up)
        clients = Clients(up.events[up.until("up") - 1]["address"])
        opened.append(clients)
        return up, clients

    yield bring
    for each in reversed(opened):
        each.close()
