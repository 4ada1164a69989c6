"""What goes wrong with models, as one tree of exceptions.

    ModelsError
    ├── PackageError              a directory is no sound model package (always names the file)
    │   ├── PackageNotFoundError       there is no package at the path or of the name
    │   └── PackageVersionError   written in a schema that this version doesn't understand
    ├── ConversionError           a checkpoint can't become a package
    │   ├── CheckpointError       the source's files are damaged, incomplete or unsafe (names the file or tensor)
    │   ├── UnsupportedModelError the source is sound, but what it holds can't be served (gives the reason)
    │   ├── OutputError           the target exists already or can't be written
    │   └── DiskFullError         the target's disk lacks room (gives the bytes)

Messages name the thing, the value and the remedy; callers print them as they are.
"""

from pathlib import Path


class ModelsError(Exception):
    """Root of everything that moe.models raises on purpose."""


class PackageError(ModelsError):
    """A package can't be used; `file` is the offending file where there is one."""

    def __init__(self, message: str, *, file: Path | None = None) -> None:
        super().__init__(message if file is None else f"file {file}: {message}")
        self.file = file


class PackageNotFoundError(PackageError):
    """No package at the path, or none of the name."""


class PackageVersionError(PackageError):
    """The manifest's schema is not one that this version reads."""


class ConversionError(ModelsError):
    """A checkpoint can't be turned into a package."""


class CheckpointError(ConversionError):
    """The source checkpoint's files are damaged, incomplete or unsafe."""


class UnsupportedModelError(ConversionError):
    """The checkpoint is sound, but it can't be served; the message gives the reason."""


class OutputError(ConversionError):
    """The target directory exists already or can't be written."""


class DiskFullError(ConversionError):
    """The target's disk lacks room; `needed` and `free` are bytes."""

    def __init__(self, directory: Path, *, needed: int, free: int) -> None:
        super().__init__(
            f"not enough disk space in {directory}: the package needs {needed:,} bytes and {free:,} are free; "
            "free some space or choose another target"
        )
        self.needed = needed
        self.free = free
