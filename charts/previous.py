"""Keeps the chart as it was before its last change, from which tests/kubernetes upgrades to the present one.

History has it too, but not the shallow clone that a CI machine may have, and a test that upgrades from nothing where
history is missing would prove nothing there. The kept files are the very blobs of the history, so that they cost git
nothing. `make manifests` runs this; where history does not reach back far enough it says so and leaves what is kept.
"""

import io
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHART = "charts/moe"
KEPT = ROOT / "tests" / "kubernetes" / "previous_chart"


def main() -> int:
    """Returns 0."""
    try:
        commit = before_last_change()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{KEPT.relative_to(ROOT)} is left as it is, there is no history to read: {error}", file=sys.stderr)
        return 0
    if commit is None:
        print(f"{KEPT.relative_to(ROOT)} is left as it is: this clone's history has one {CHART}", file=sys.stderr)
    else:
        keep(commit)
    return 0


def before_last_change() -> str | None:
    """The last commit whose chart is not that of the working tree. Raises OSError, CalledProcessError."""
    if git("status", "--porcelain", "--", CHART):
        return "HEAD"
    commits = git("log", "--format=%H", "--", CHART).decode().split()
    present = tree("HEAD")
    return next((each for each in commits if tree(each) != present), None)


def keep(commit: str) -> None:
    """Replaces what is kept by the chart of that commit, unless it is that."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, CHART))) as archive:
        members = [(each, archive.extractfile(each)) for each in archive.getmembers() if each.isfile()]
        wanted = {str(Path(each.name).relative_to("charts")): file.read() for each, file in members if file}
    if wanted == dict(kept()):
        return
    shutil.rmtree(KEPT, ignore_errors=True)
    for name, content in wanted.items():
        path = KEPT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    print(f"wrote {KEPT.relative_to(ROOT)} as of {git('rev-parse', '--short', commit).decode().strip()}")


def kept() -> Iterator[tuple[str, bytes]]:
    """The files there are now, by path."""
    for path in KEPT.rglob("*"):
        if path.is_file():
            yield str(path.relative_to(KEPT)), path.read_bytes()


def tree(commit: str) -> bytes:
    """What names the chart's content in that commit."""
    return git("rev-parse", f"{commit}:{CHART}")


def git(*words: str) -> bytes:
    """What it printed. Raises OSError, CalledProcessError."""
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
