"""A tiny package on disk and its weights, opened once."""

from pathlib import Path

import pytest
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
def group(package: Package) -> GroupWeights:
    """All experts of the tiny package in one group."""
    return load_group(package, [0, 1, 2, 3])
