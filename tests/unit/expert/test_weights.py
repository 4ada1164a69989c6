"""Mapping a group's weights, and refusing what is not as the manifest says."""

from pathlib import Path

import pytest
import torch
from moe.expert.weights import check_finite, load_group, open_package
from moe.kernels.ffn import ExpertWeights
from moe.models.errors import PackageError
from moe.models.manifest import PROBES_NAME, expert_file
from moe.runtime.errors import StartupError
from support.tiny_package import expert_weights, write_package


def test_every_layer_holds_the_groups_experts_that_it_has(package):
    assert load_group(package, [3, 1]).experts_by_layer() == {0: frozenset({1, 3}), 2: frozenset({1})}


def test_the_weights_are_those_of_the_file(package):
    assert torch.equal(load_group(package, [1]).layers[2][1].up, expert_weights(2, 1).up)


def test_another_dtype_makes_converted_copies(package):
    held = load_group(package, [1], "bfloat16")
    assert held.layers[0][1].down.dtype == held.dtype == torch.bfloat16


def test_only_the_groups_files_have_to_be_there(tmp_path):
    root = write_package(tmp_path / "tiny")
    (root / expert_file(0)).unlink()
    (root / "backbone" / "config.json").unlink()
    assert load_group(open_package(root), [2]).experts == (2,)


def test_a_changed_byte_is_refused_with_the_files_name(tmp_path):
    path = write_package(tmp_path / "tiny") / expert_file(2)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(StartupError, match=rf"file {path}: has sha256"):
        load_group(open_package(tmp_path / "tiny"), [2])


def test_a_truncated_file_is_refused_with_the_files_name(tmp_path):
    path = write_package(tmp_path / "tiny") / expert_file(2)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StartupError, match=rf"file {path}: holds"):
        load_group(open_package(tmp_path / "tiny"), [2])


@pytest.mark.parametrize("name", [expert_file(2), PROBES_NAME])
def test_a_missing_file_is_refused_with_its_name(tmp_path, name):
    path = write_package(tmp_path / "tiny") / name
    path.unlink()
    with pytest.raises(StartupError, match=rf"file {path}: is missing"):
        load_group(open_package(tmp_path / "tiny"), [2])


def test_a_nan_is_refused_with_file_and_tensor(tmp_path):
    root = write_package(tmp_path / "tiny", poison=(2, 1, "down"))
    with pytest.raises(StartupError, match=r"expert-00001\.safetensors: tensor 'layers\.2\.down' holds 1 values"):
        load_group(open_package(root), [1])


@pytest.mark.parametrize("values", [[torch.inf, -torch.inf], [torch.nan], [-torch.inf]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_that_are_no_numbers_are_found_also_where_they_cancel_out(values, dtype):
    up = torch.ones(2, 3, dtype=dtype)
    up.view(-1)[: len(values)] = torch.tensor(values)
    weights = ExpertWeights(up, torch.ones(3, 1, dtype=dtype))
    with pytest.raises(PackageError, match=rf"'layers\.4\.up' holds {len(values)} values"):
        check_finite(Path("f"), 4, weights)


def test_numbers_whose_sum_is_none_are_accepted():
    large = torch.full((2, 3), torch.finfo(torch.float16).max, dtype=torch.float16)
    check_finite(Path("f"), 0, ExpertWeights(large, large))


def test_a_directory_without_a_manifest_is_refused(tmp_path):
    with pytest.raises(StartupError, match=r"is no model package: it has no manifest\.json"):
        open_package(tmp_path)


@pytest.mark.parametrize("experts", [[4], [-1], [0, 9]])
def test_an_expert_that_is_not_there_is_refused(package, experts):
    with pytest.raises(StartupError, match=f"there is no expert {experts[-1]}; ids go from 0 to 3"):
        load_group(package, experts)


def test_an_expert_given_twice_is_refused(package):
    with pytest.raises(StartupError, match="experts: 1 is given 2 times"):
        load_group(package, [1, 0, 1])


def test_no_experts_are_refused(package):
    with pytest.raises(StartupError, match="experts: none given"):
        load_group(package, [])


def test_an_unknown_dtype_is_refused_with_the_known_ones(package):
    with pytest.raises(StartupError, match="dtype: got 'int8', want auto or one of float32"):
        load_group(package, [0], "int8")
