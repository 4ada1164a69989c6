"""The store of packages: found by name or path, listed with their faults, removed only from the store."""

from pathlib import Path

import pytest
from moe.models.catalog import find_package, list_packages, remove_package, store_directory
from moe.models.errors import PackageNotFoundError
from moe.models.manifest import MANIFEST_NAME, PROBES_NAME
from support.families import write_package


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two packages, one of which lacks a file, a leftover and something else."""
    write_package("olmoe", tmp_path / "made" / "olmoe-tiny")
    (tmp_path / "made" / "olmoe-tiny-checkpoint").rename(tmp_path / "checkpoint")
    write_package("mixtral", tmp_path / "made" / "mixtral-tiny")
    (tmp_path / "made" / "mixtral-tiny-checkpoint").rename(tmp_path / "checkpoint2")
    (tmp_path / "made" / "mixtral-tiny" / PROBES_NAME).unlink()
    leftover = tmp_path / "made" / "olmoe-tiny.partial-00ff00ff"
    leftover.mkdir()
    (leftover / MANIFEST_NAME).write_text("{}")
    (tmp_path / "made" / "notes").mkdir()
    return tmp_path / "made"


def test_packages_are_listed_by_name(store: Path) -> None:
    assert [summary.name for summary in list_packages(store)] == ["mixtral-tiny", "olmoe-tiny"]


def test_a_broken_package_is_listed_with_its_fault(store: Path) -> None:
    broken, sound = list_packages(store)

    assert (broken.manifest, sound.problem) == (None, None)
    assert broken.problem is not None
    assert "probes.json: is missing" in broken.problem


def test_the_size_is_that_of_the_files(store: Path) -> None:
    files = [path for path in (store / "olmoe-tiny").rglob("*") if path.is_file() and path.name != MANIFEST_NAME]

    assert list_packages(store)[1].total_bytes == sum(path.stat().st_size for path in files)


def test_an_absent_store_is_empty(tmp_path: Path) -> None:
    assert list_packages(tmp_path / "nothing") == []


def test_a_package_is_found_by_name(store: Path) -> None:
    assert find_package("olmoe-tiny", store) == store / "olmoe-tiny"


def test_a_package_is_found_by_path(store: Path, tmp_path: Path) -> None:
    moved = (store / "olmoe-tiny").rename(tmp_path / "elsewhere")

    assert find_package(moved, store) == moved


def test_a_package_is_found_by_relative_path(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store)

    assert find_package("./olmoe-tiny", store.parent / "nothing") == Path("olmoe-tiny")


def test_a_name_close_to_one_is_suggested(store: Path) -> None:
    with pytest.raises(PackageNotFoundError, match=r"'olmo-tiny'.*there are olmoe-tiny"):
        find_package("olmo-tiny", store)


def test_an_empty_store_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(PackageNotFoundError, match="moe convert"):
        find_package("demo", tmp_path)


@pytest.mark.parametrize("name", ["../made/olmoe-tiny", "olmoe-tiny.partial-00ff00ff", "notes", "", "."])
def test_what_is_no_package_of_the_store_is_not_removed(store: Path, name: str) -> None:
    with pytest.raises(PackageNotFoundError):
        remove_package(name, store)


def test_a_removed_package_is_gone(store: Path) -> None:
    remove_package("olmoe-tiny", store)

    assert sorted(path.name for path in store.iterdir()) == ["mixtral-tiny", "notes", "olmoe-tiny.partial-00ff00ff"]


def test_a_broken_package_can_be_removed(store: Path) -> None:
    assert not remove_package("mixtral-tiny", store).exists()


def test_a_link_in_the_store_is_not_followed_when_removing(store: Path, tmp_path: Path) -> None:
    (store / "olmoe-tiny").rename(tmp_path / "precious")
    (store / "olmoe-tiny").symlink_to(tmp_path / "precious")

    with pytest.raises(PackageNotFoundError):
        remove_package("olmoe-tiny", store)


def test_the_store_is_where_the_environment_says() -> None:
    assert store_directory({"MOE_HOME": "/data/models"}) == Path("/data/models")


def test_the_store_is_in_the_home_directory_otherwise() -> None:
    assert store_directory({}) == Path.home() / ".local/share/moe/models"
