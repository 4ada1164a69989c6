"""Every test of the wire's port runs over each implementation, with the combiner inside the router and as a process.

An implementation alone runs behind unix sockets and ports; implementations mixed on unix sockets only, and where the
combiner is inside the router only as far as that is another mixture.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.wire_stage import IMPLEMENTATIONS, Implementation, Placement, Stage


def _cases(*placements: Placement) -> list[object]:
    cases = [(placement, each) for each in IMPLEMENTATIONS for placement in placements if each.plays(placement)]
    return [pytest.param(case, id=f"{case[0].value}-{case[1].name}") for case in cases]


@pytest.fixture(params=_cases(*Placement))
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    yield from _staged(*request.param, tmp_path)


@pytest.fixture(params=_cases(Placement.UNIX, Placement.TCP))
def apart(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """A stage whose combiner is a process of its own, for what has no meaning where it is inside the router."""
    yield from _staged(*request.param, tmp_path)


def _staged(placement: Placement, implementation: Implementation, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(placement, tmp_path, implementation)
    yield stage
    stage.close()
