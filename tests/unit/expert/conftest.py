"""A tiny package on disk and its weights, opened once."""

from pathlib import Path

import pytest
from moe.expert.packing import Computation, PackedWeights, pack
from moe.expert.weights import GroupWeights, load_group, open_package
from moe.models.package import Package
from support.tiny_package import write_package


@pytest.fixture(scope="session")
def package_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("packages") / "tiny")


@pytest.fixture(scope="session")
def package(package_path: Path) -> Package:
    return open_package(package_path)


@pytest.fixture(scope="session")
def mapped(package: Package) -> GroupWeights:
    """All experts of the tiny package in one group."""
    return load_group(package, [0, 1, 2, 3])


@pytest.fixture(scope="session")
def group(mapped: GroupWeights) -> PackedWeights:
    """The same, packed by whatever kernel is the fastest."""
    return pack(mapped, Computation())
