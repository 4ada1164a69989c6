"""The one image that the cluster runs: empty folders, on which containerd binds the machine's own programs, read-only.

Nothing is built and nothing is pulled: a pod of this image sees /usr and this Python at their usual places, this
checkout and its virtual environment below /opt/moe (a checkout may lie in /tmp, where pods have a folder of their own),
and runs what was edited a second ago. It has no more rights for that: pods run as their own user, and what the machine
forbids to others they can't read.
"""

import hashlib
import io
import json
import platform
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from .places import CHECKOUT

NAME = "moe.dev/checkout:1"
"""Of pods that run the checkout's services."""

PAUSE = "moe.dev/pause:1"
"""Of each pod's sandbox: the same folders, another command."""

ENVIRONMENT = Path(sys.prefix).resolve()
"""The virtual environment that this very process runs from."""

USER = 65532
_CHECKOUT_THERE = Path("/opt/moe/checkout")
_ENVIRONMENT_THERE = Path("/opt/moe/environment")
_COMMANDS_THERE = Path("/opt/moe/bin")
_MOE = """#!/bin/sh
exec python -c 'from moe.cli.main import main; main()' "$@"
"""
"""The console script, whose own first line names a place of this machine."""

_SOURCES = ("kernels/src", "operator/src", "proto/src", "services/*/src")
"""Of the project's parts, below a checkout."""

_SYSTEM_FOLDERS = ("usr", "bin", "sbin", "lib", "lib64")
_ETC = {
    "etc/passwd": f"root:x:0:0::/root:/usr/sbin/nologin\nmoe:x:{USER}:{USER}::/home/moe:/bin/sh\n",
    "etc/group": f"root:x:0:\nmoe:x:{USER}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def binds() -> dict[Path, Path]:
    """What of the machine the containers see: place there -> place here."""
    folders = [Path("/", each) for each in _SYSTEM_FOLDERS]
    seen = {each: each for each in folders if each.is_dir() and not each.is_symlink()}
    python = Path(sys.base_prefix).resolve()
    if not python.is_relative_to("/usr"):
        seen[python] = python
    return {**seen, _CHECKOUT_THERE: CHECKOUT, _ENVIRONMENT_THERE: ENVIRONMENT}


def _variables() -> list[str]:
    """The environment of containers. The virtual environment's own links to the sources lead to their place here."""
    search = [_COMMANDS_THERE, _ENVIRONMENT_THERE / "bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    sources = [each for pattern in _SOURCES for each in sorted(CHECKOUT.glob(pattern))]
    there = [_CHECKOUT_THERE / each.relative_to(CHECKOUT) for each in sources]
    return [
        f"PATH={':'.join(map(str, search))}",
        f"PYTHONPATH={':'.join(map(str, there))}",
        "HOME=/home/moe",
        "PYTHONDONTWRITEBYTECODE=1",
        "LANG=C.UTF-8",
    ]


def write(path: Path, pause: Path) -> None:
    """An archive that `ctr images import` takes, with both names. pause: the static program of sandboxes."""
    layer = _layer(pause)
    checkout = {"User": f"{USER}:{USER}", "WorkingDir": "/home/moe", "Env": _variables()}
    with tarfile.open(path, "w") as archive:
        diff = hashlib.sha256(layer).hexdigest()
        _add(archive, f"{diff}.tar", layer)
        entries = [
            _entry(archive, diff, NAME, checkout),
            _entry(archive, diff, PAUSE, {"Entrypoint": ["/pause"], "User": f"{USER}:{USER}"}),
        ]
        _add(archive, "manifest.json", json.dumps(entries).encode())


def _entry(archive: tarfile.TarFile, diff: str, name: str, config: Mapping[str, object]) -> dict[str, object]:
    machine = platform.machine()
    document = {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}"]},
    }
    text = json.dumps(document).encode()
    file = f"{hashlib.sha256(text).hexdigest()}.json"
    _add(archive, file, text)
    return {"Config": file, "RepoTags": [name], "Layers": [f"{diff}.tar"]}


def _layer(pause: Path) -> bytes:
    """A folder for each bind and what stands above it, symlinks where the machine has them (/bin to usr/bin)."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as layer:
        for name in _folders():
            _add_folder(layer, name, 0o1777 if name in {"tmp", "home/moe"} else 0o755)
        for each in _SYSTEM_FOLDERS:
            if Path("/", each).is_symlink():
                link = tarfile.TarInfo(each)
                link.type, link.linkname = tarfile.SYMTYPE, str(Path("/", each).readlink())
                layer.addfile(link)
        for name, text in _ETC.items():
            _add(layer, name, text.encode())
        _add(layer, str((_COMMANDS_THERE / "moe").relative_to("/")), _MOE.encode(), 0o755)
        # sandboxes start without the binds: containerd gives the base specification to containers alone
        _add(layer, "pause", pause.read_bytes(), 0o755)
    return raw.getvalue()


def _folders() -> list[str]:
    wanted = {"tmp", "etc", "proc", "sys", "dev", "run", "var", "home", "home/moe"}
    for bind in (*binds(), _COMMANDS_THERE):
        wanted.update(str(each.relative_to("/")) for each in (bind, *bind.parents) if each != Path("/"))
    return sorted(wanted)


def _add_folder(archive: tarfile.TarFile, name: str, mode: int) -> None:
    folder = tarfile.TarInfo(name)
    folder.type, folder.mode = tarfile.DIRTYPE, mode
    archive.addfile(folder)


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    file = tarfile.TarInfo(name)
    file.size, file.mode = len(content), mode
    archive.addfile(file, io.BytesIO(content))
