"""Which directory a setting opens."""

from pathlib import Path

import pytest
from moe.discovery.directory import Snapshot
from moe.discovery.file import write
from moe.discovery.source import open_directory
from moe.runtime.errors import StartupError


def test_a_file_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "d.json", Snapshot(4, "demo", ()))
    directory = open_directory(f"file:{tmp_path}/d.json")
    try:
        assert directory.current().version == 4
    finally:
        directory.close()


@pytest.mark.parametrize(
    "source", ["", "file:", "/tmp/d.json", "kubernetes:", "kubernetes:demo", "kubernetes:A/b", "x:y"]
)
def test_anything_else_is_refused_with_what_is_wanted(source: str) -> None:
    with pytest.raises(StartupError, match="want file:PATH or kubernetes:NAMESPACE/MODEL"):
        open_directory(source)
