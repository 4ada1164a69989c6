"""The one image that the cluster runs: empty folders, on which containerd binds the machine's own programs, read-only.

Nothing is built and nothing is pulled: a pod of this image sees /usr, this Python and this checkout with its virtual
environment at their usual places, and runs what was edited a second ago. It has no more rights for that: pods run as
their own user, and what the machine forbids to others they can't read.
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
_SYSTEM_FOLDERS = ("usr", "bin", "sbin", "lib", "lib64")
_ETC = {
    "etc/passwd": f"root:x:0:0::/root:/usr/sbin/nologin\nmoe:x:{USER}:{USER}::/home/moe:/bin/sh\n",
    "etc/group": f"root:x:0:\nmoe:x:{USER}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def binds() -> list[Path]:
    """What of the machine the containers see, at the same place."""
    folders = [Path("/", each) for each in _SYSTEM_FOLDERS]
    real = [each for each in folders if each.is_dir() and not each.is_symlink()]
    python = Path(sys.base_prefix).resolve()
    wanted = sorted({python, CHECKOUT, ENVIRONMENT})
    outside = [each for each in wanted if not any(each != above and each.is_relative_to(above) for above in wanted)]
    return [*real, *(each for each in outside if not each.is_relative_to("/usr"))]


def write(path: Path, pause: Path) -> None:
    """An archive that `ctr images import` takes, with both names. pause: the static program of sandboxes."""
    layer = _layer(pause)
    search = [ENVIRONMENT / "bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    environ = [f"PATH={':'.join(map(str, search))}", "HOME=/home/moe", "PYTHONDONTWRITEBYTECODE=1", "LANG=C.UTF-8"]
    checkout = {"User": f"{USER}:{USER}", "WorkingDir": "/home/moe", "Env": environ}
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
        # sandboxes start without the binds: containerd gives the base specification to containers alone
        _add(layer, "pause", pause.read_bytes(), 0o755)
    return raw.getvalue()


def _folders() -> list[str]:
    wanted = {"tmp", "etc", "proc", "sys", "dev", "run", "var", "home", "home/moe"}
    for bind in binds():
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
