"""A real cluster for the session, a namespace of its own for each test, an account of what happened to a failed one.

MOE_TEST_KUBECONFIG names any cluster to run on instead (with MOE_TEST_IMAGE, and kubectl and helm on the PATH);
MOE_TEST_CLUSTER names one that `make cluster` started, which is then left running. Else one is started and ended here.
"""

import contextlib
import itertools
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from support.cluster import binaries, image, places
from support.cluster.client import Kube, Namespace
from support.cluster.cluster import Cluster, all_names

_PREFIX = "pytest-"
_FAILED = pytest.StashKey[bool]()
_numbers = itertools.count(1)

COLD_BUILD_TIMEOUT_S = 2400
"""Of a test that finds no binaries: it waits for the build. `make kubernetes` builds before."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not places.binaries().is_dir():
        here = Path(__file__).parent
        for item in items:
            if item.path.is_relative_to(here):
                item.add_marker(pytest.mark.timeout(COLD_BUILD_TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture(scope="session")
def own_cluster() -> Iterator[Cluster]:
    """One whose processes a test may kill; it leaves them running."""
    if os.environ.get("MOE_TEST_KUBECONFIG"):
        pytest.skip("the cluster that MOE_TEST_KUBECONFIG names is not this test's to break")
    chosen = os.environ.get("MOE_TEST_CLUSTER")
    _end_forgotten()
    cluster = Cluster(chosen or f"{_PREFIX}{os.getpid()}", print)
    try:
        cluster.up()
        yield cluster
    finally:
        if not chosen:
            cluster.down()


@pytest.fixture(scope="session")
def kube(request: pytest.FixtureRequest) -> Kube:
    named = os.environ.get("MOE_TEST_KUBECONFIG")
    if named:
        return Kube(Path(named), _program("kubectl"), _program("helm"), os.environ["MOE_TEST_IMAGE"])
    cluster: Cluster = request.getfixturevalue("own_cluster")
    programs = binaries.ensure(print)
    return Kube(cluster.kubeconfig, programs / "kubectl", programs / "helm", image.NAME)


@pytest.fixture
def namespace(kube: Kube, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """Fresh, with Pod Security "restricted" enforced."""
    with kube.new_namespace(f"test-{os.getpid()}-{next(_numbers)}") as made:
        yield made
        if request.node.stash.get(_FAILED, False):
            print("\n".join(made.account()))


def _program(name: str) -> Path:
    found = shutil.which(name)
    if not found:
        raise FileNotFoundError(
            f"{name}: install it and put it on the PATH; MOE_TEST_KUBECONFIG names a cluster to test"
        )
    return Path(found)


def _end_forgotten() -> None:
    """Clusters of test sessions that were killed."""
    for name in all_names():
        pid = name.removeprefix(_PREFIX)
        if name.startswith(_PREFIX) and pid.isdigit() and not _lives(int(pid)):
            Cluster(name).down()


def _lives(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
