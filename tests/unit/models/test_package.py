"""An opened package: weights as the checkpoint has them, checks that name the file, nothing outside it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from moe.kernels.ffn import ffn
from moe.models.errors import PackageError, PackageNotFoundError
from moe.models.manifest import MANIFEST_NAME, PROBES_NAME, expert_file
from moe.models.package import Package
from safetensors.torch import load_file, save_file
from support.families import write_package

EXPERT_FILE = expert_file(3)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package("mixtral", tmp_path_factory.mktemp("package") / "tiny", torch.bfloat16)


@pytest.fixture
def damaged(original: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(original, tmp_path / "tiny")
    return tmp_path / "tiny"


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_weights_are_the_checkpoints(original: Path) -> None:
    checkpoint = load_file(original.with_name("tiny-checkpoint") / "model.safetensors")
    prefix = "model.layers.2.block_sparse_moe.experts.3"

    weights = Package.open(original).expert_weights(3)[2]

    assert torch.equal(weights.up, torch.cat([checkpoint[f"{prefix}.w1.weight"], checkpoint[f"{prefix}.w3.weight"]]))


def test_weights_down_are_the_checkpoints(original: Path) -> None:
    checkpoint = load_file(original.with_name("tiny-checkpoint") / "model.safetensors")

    weights = Package.open(original).expert_weights(3)[2]

    assert torch.equal(weights.down, checkpoint["model.layers.2.block_sparse_moe.experts.3.w2.weight"])


def test_every_layer_has_its_weights(original: Path) -> None:
    assert list(Package.open(original).expert_weights(0)) == [0, 1, 2]


def test_weights_are_mapped_not_read(original: Path) -> None:
    path = str(original / EXPERT_FILE)
    weights = Package.open(original).expert_weights(3)

    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if path in line]

    assert len(mapped) == 1, weights


def test_experts_answer_their_probes(original: Path) -> None:
    package = Package.open(original)
    probes = [package.probe(layer, 3) for layer in range(3)]
    weights = package.expert_weights(3)

    answers = [ffn(probe.rows, weights[probe.layer], package.manifest.ffn) for probe in probes]

    assert [probe.matches(answer) for probe, answer in zip(probes, answers, strict=True)] == [True] * 3


def test_the_neighbour_does_not_answer_an_experts_probe(original: Path) -> None:
    package = Package.open(original)
    probe = package.probe(1, 3)

    assert not probe.matches(ffn(probe.rows, package.expert_weights(4)[1], package.manifest.ffn))


@pytest.mark.parametrize(("layer", "expert"), [(0, 8), (3, 0), (0, -1), (-1, 0)])
def test_an_unknown_probe_is_refused(original: Path, layer: int, expert: int) -> None:
    with pytest.raises(PackageError, match=f"expert {expert} in layer {layer}"):
        Package.open(original).probe(layer, expert)


@pytest.mark.parametrize("expert", [-1, 8])
def test_an_unknown_expert_is_refused(original: Path, expert: int) -> None:
    with pytest.raises(PackageError, match=f"no expert {expert}"):
        Package.open(original).expert_weights(expert)


def test_a_sound_package_passes_every_check(original: Path) -> None:
    assert Package.open(original, "sha256").manifest.name == "tiny"


def test_opening_needs_no_transformers() -> None:
    code = "import sys, moe.models.package, moe.models.verify, moe.models.catalog; print('transformers' in sys.modules)"

    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "False"


def test_a_missing_directory_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(PackageNotFoundError, match="nothing-here"):
        Package.open(tmp_path / "nothing-here")


def test_a_directory_without_manifest_is_no_package(tmp_path: Path) -> None:
    with pytest.raises(PackageNotFoundError, match=r"no manifest\.json"):
        Package.open(tmp_path)


def test_the_leftover_of_a_conversion_is_no_package(damaged: Path) -> None:
    partial = damaged.rename(damaged.with_name("tiny.partial-0a1b2c3d"))

    with pytest.raises(PackageNotFoundError, match="interrupted"):
        Package.open(partial)


@pytest.mark.parametrize("name", [EXPERT_FILE, PROBES_NAME, "backbone/config.json", "backbone/model.safetensors"])
def test_a_missing_file_is_named(damaged: Path, name: str) -> None:
    (damaged / name).unlink()

    with pytest.raises(PackageError, match=f"{name}: is missing"):
        Package.open(damaged)


@pytest.mark.parametrize("name", [EXPERT_FILE, PROBES_NAME, "backbone/model.safetensors"])
def test_a_truncated_file_is_named(damaged: Path, name: str) -> None:
    content = (damaged / name).read_bytes()
    (damaged / name).write_bytes(content[:-1])

    with pytest.raises(PackageError, match=f"{name}: holds {len(content) - 1} bytes; the manifest says {len(content)}"):
        Package.open(damaged)


def test_a_changed_bit_is_found_by_the_hash(damaged: Path) -> None:
    flip(damaged / EXPERT_FILE, -5)

    with pytest.raises(PackageError, match=f"{EXPERT_FILE}: has sha256"):
        Package.open(damaged, "sha256")


def test_a_changed_bit_passes_when_only_sizes_are_checked(damaged: Path) -> None:
    flip(damaged / EXPERT_FILE, -5)

    assert Package.open(damaged, "sizes")


def test_a_symbolic_link_is_refused(damaged: Path) -> None:
    target = (damaged / EXPERT_FILE).rename(damaged.with_name("elsewhere"))
    (damaged / EXPERT_FILE).symlink_to(target)

    with pytest.raises(PackageError, match=f"{EXPERT_FILE}: is a symbolic link"):
        Package.open(damaged)


def test_a_directory_behind_a_symbolic_link_is_refused(damaged: Path) -> None:
    target = (damaged / "experts").rename(damaged.with_name("elsewhere"))
    (damaged / "experts").symlink_to(target)

    with pytest.raises(PackageError, match="behind a symbolic link"):
        Package.open(damaged)


def test_a_fifo_is_refused_without_waiting(damaged: Path) -> None:
    import os

    (damaged / PROBES_NAME).unlink()
    os.mkfifo(damaged / PROBES_NAME)

    with pytest.raises(PackageError, match="no regular file"):
        Package.open(damaged, "sha256")


def test_a_package_behind_a_link_may_be_opened(original: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(original)

    assert Package.open(tmp_path / "link", "sha256").manifest.name == "tiny"


def test_a_tensor_of_another_shape_is_named(damaged: Path) -> None:
    path = damaged / EXPERT_FILE
    tensors = load_file(path)
    tensors["layers.1.down"] = tensors["layers.1.down"].T.contiguous()
    save_file(tensors, path)
    allow(damaged, EXPERT_FILE)

    with pytest.raises(PackageError, match=f"{EXPERT_FILE}: tensor 'layers.1.down'"):
        Package.open(damaged).expert_weights(3)


def test_an_extra_tensor_is_named(damaged: Path) -> None:
    path = damaged / EXPERT_FILE
    save_file(load_file(path) | {"layers.9.up": torch.zeros(1)}, path)
    allow(damaged, EXPERT_FILE)

    with pytest.raises(PackageError, match=f"{EXPERT_FILE}: tensor 'layers.9.up'"):
        Package.open(damaged).expert_weights(3)


@pytest.mark.parametrize("content", [b"{}", b"{", b'{"0": 3}', b'{"0":[],"1":[],"2":[]}', b'{"0":[["x"]]}'])
def test_damaged_probes_are_a_package_error(damaged: Path, content: bytes) -> None:
    (damaged / PROBES_NAME).write_bytes(content)
    allow(damaged, PROBES_NAME)

    with pytest.raises(PackageError, match=r"probes\.json"):
        Package.open(damaged).probe(0, 0)


def allow(package: Path, name: str) -> None:
    """Writes a changed file's size and hash into the manifest, as a careful forger would."""
    import hashlib

    content = json.loads((package / MANIFEST_NAME).read_bytes())
    raw = (package / name).read_bytes()
    content["files"][name] = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    (package / MANIFEST_NAME).write_text(json.dumps(content))
