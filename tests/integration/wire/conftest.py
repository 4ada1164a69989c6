"""Every test of the wire's port runs with the combiner inside the router, behind a unix socket and behind a port."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.wire_stage import IMPLEMENTATIONS, Implementation, Placement, Stage


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda each: each.name)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return request.param


@pytest.fixture(params=Placement, ids=lambda each: each.value)
def stage(request: pytest.FixtureRequest, tmp_path: Path, implementation: Implementation) -> Iterator[Stage]:
    yield from _staged(request.param, tmp_path, implementation)


@pytest.fixture(params=[each for each in Placement if each is not Placement.EMBEDDED], ids=lambda each: each.value)
def apart(request: pytest.FixtureRequest, tmp_path: Path, implementation: Implementation) -> Iterator[Stage]:
    """A stage whose combiner is a process of its own, for what has no meaning where it is inside the router."""
    yield from _staged(request.param, tmp_path, implementation)


def _staged(placement: Placement, tmp_path: Path, implementation: Implementation) -> Iterator[Stage]:
    stage = Stage(placement, tmp_path, implementation)
    yield stage
    stage.close()
