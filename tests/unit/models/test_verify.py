"""Verifying a package offline: every kind of damage is told, with the file's name, and all of it in one go."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from moe.models.errors import PackageError, PackageVersionError
from moe.models.manifest import MANIFEST_NAME, PROBES_NAME, expert_file
from moe.models.verify import verify_package
from safetensors.torch import load_file, save_file
from support.families import write_package

EXPERT_FILE = expert_file(5)
SHARD = "backbone/model-00001-of-00002.safetensors"
INDEX = "backbone/model.safetensors.index.json"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package("qwen2_moe", tmp_path_factory.mktemp("verify") / "tiny", torch.bfloat16, shard_bytes=90_000)


@pytest.fixture
def damaged(original: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(original, tmp_path / "tiny")
    return tmp_path / "tiny"


def edit_manifest(package: Path, change: Callable[[dict[str, object]], object]) -> None:
    content = json.loads((package / MANIFEST_NAME).read_bytes())
    change(content)
    (package / MANIFEST_NAME).write_text(json.dumps(content))


def list_file(package: Path, name: str) -> None:
    """Writes a changed file's size and hash into the manifest, as a careful forger would."""
    raw = (package / name).read_bytes()
    facts = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    edit_manifest(package, lambda content: content["files"].update({name: facts}))  # type: ignore[attr-defined]


def poison(path: Path, name: str, value: float) -> None:
    tensors = load_file(path)
    tensors[name].view(-1)[3] = value
    save_file(tensors, path, metadata={"format": "pt"})


def test_a_sound_package_has_no_problems(original: Path) -> None:
    assert verify_package(original).problems == ()


def test_the_report_counts_files_and_bytes(original: Path) -> None:
    files = [path for path in original.rglob("*") if path.is_file() and path.name != MANIFEST_NAME]

    report = verify_package(original)

    assert (report.files, report.total_bytes) == (len(files), sum(path.stat().st_size for path in files))


def test_the_report_names_the_packages_identity(original: Path) -> None:
    want = hashlib.sha256((original / MANIFEST_NAME).read_bytes()).hexdigest()

    assert verify_package(original).manifest_sha256 == want


def test_progress_ends_at_the_total(original: Path) -> None:
    seen: list[tuple[int, int]] = []

    verify_package(original, lambda done, total, label: seen.append((done, total)))

    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == verify_package(original).total_bytes


@pytest.mark.parametrize("name", [EXPERT_FILE, SHARD, INDEX, PROBES_NAME, "backbone/config.json"])
def test_one_changed_byte_is_told(damaged: Path, name: str) -> None:
    content = bytearray((damaged / name).read_bytes())
    content[len(content) // 2] ^= 0x10
    (damaged / name).write_bytes(content)

    assert any(f"{name}: has sha256" in problem for problem in verify_package(damaged).problems)


@pytest.mark.parametrize("name", [EXPERT_FILE, SHARD, PROBES_NAME])
def test_a_truncated_file_is_told(damaged: Path, name: str) -> None:
    (damaged / name).write_bytes((damaged / name).read_bytes()[:-7])

    assert any(f"{name}: holds" in problem for problem in verify_package(damaged).problems)


@pytest.mark.parametrize("name", [EXPERT_FILE, SHARD, INDEX, PROBES_NAME, "backbone/config.json"])
def test_a_missing_file_is_told_once(damaged: Path, name: str) -> None:
    (damaged / name).unlink()

    assert verify_package(damaged).problems == (f"file {damaged / name}: is missing",)


def test_several_problems_are_told_together(damaged: Path) -> None:
    (damaged / EXPERT_FILE).unlink()
    (damaged / PROBES_NAME).unlink()

    assert len(verify_package(damaged).problems) == 2


@pytest.mark.parametrize("name", ["extra.bin", "backbone/model.py", "experts/expert-00099.safetensors", ".hidden"])
def test_a_file_that_is_not_listed_is_told(damaged: Path, name: str) -> None:
    (damaged / name).write_bytes(b"x")

    assert verify_package(damaged).problems == (f"file {damaged / name}: is not listed in the manifest",)


def test_a_linked_directory_is_told(damaged: Path, tmp_path: Path) -> None:
    (damaged / "backbone" / "more").symlink_to(tmp_path)

    assert any("backbone/more: is not listed" in problem for problem in verify_package(damaged).problems)


def test_a_listed_symbolic_link_is_told(damaged: Path) -> None:
    target = (damaged / SHARD).rename(damaged.with_name("elsewhere"))
    (damaged / SHARD).symlink_to(target)

    assert any(f"{SHARD}: is a symbolic link" in problem for problem in verify_package(damaged).problems)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_told_by_tensor(damaged: Path, value: float) -> None:
    poison(damaged / EXPERT_FILE, "layers.2.down", value)
    list_file(damaged, EXPERT_FILE)

    assert verify_package(damaged).problems == (
        f"file {damaged / EXPERT_FILE}: tensor 'layers.2.down' holds a number that is not finite",
    )


def test_a_nan_in_the_backbone_is_told_by_tensor(damaged: Path) -> None:
    name = next(iter(load_file(damaged / SHARD)))
    poison(damaged / SHARD, name, math.nan)
    list_file(damaged, SHARD)

    assert verify_package(damaged).problems == (
        f"file {damaged / SHARD}: tensor '{name}' holds a number that is not finite",
    )


def test_an_experts_tensor_of_another_shape_is_told(damaged: Path) -> None:
    tensors = load_file(damaged / EXPERT_FILE)
    tensors["layers.0.up"] = tensors["layers.0.up"].T.contiguous()
    save_file(tensors, damaged / EXPERT_FILE)
    list_file(damaged, EXPERT_FILE)

    assert any(f"{EXPERT_FILE}: tensor 'layers.0.up'" in problem for problem in verify_package(damaged).problems)


def test_a_listed_file_of_garbage_is_told(damaged: Path) -> None:
    (damaged / SHARD).write_bytes(b"\xff" * 100)
    list_file(damaged, SHARD)

    assert any(SHARD in problem and "header" in problem for problem in verify_package(damaged).problems)


def test_an_index_of_other_tensors_is_told(damaged: Path) -> None:
    content = json.loads((damaged / INDEX).read_bytes())
    content["weight_map"].pop(next(iter(content["weight_map"])))
    (damaged / INDEX).write_text(json.dumps(content))
    list_file(damaged, INDEX)

    assert any(f"{INDEX}: does not name the tensors" in problem for problem in verify_package(damaged).problems)


def test_a_path_that_leaves_the_package_is_refused(damaged: Path) -> None:
    edit_manifest(damaged, lambda c: c["files"].update({"../x.json": c["files"]["probes.json"]}))  # type: ignore[index,attr-defined]

    with pytest.raises(PackageError, match=r"manifest\.json: files: '\.\./x\.json'"):
        verify_package(damaged)


def test_a_foreign_schema_version_is_refused(damaged: Path) -> None:
    edit_manifest(damaged, lambda content: content.update(schema="moe.package/v9"))

    with pytest.raises(PackageVersionError, match=r"moe\.package/v9.*reads moe\.package/v1"):
        verify_package(damaged)
