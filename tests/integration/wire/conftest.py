"""Every test of the wire's port runs with the combiner inside the router, behind a unix socket and behind a port."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.wire_stage import GRPCIO, Implementation, Placement, Stage

IMPLEMENTATIONS = [GRPCIO]


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda each: each.name)
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return request.param


@pytest.fixture(params=Placement, ids=lambda each: each.value)
def stage(request: pytest.FixtureRequest, tmp_path: Path, implementation: Implementation) -> Iterator[Stage]:
    stage = Stage(request.param, tmp_path, implementation)
    yield stage
    stage.close()
