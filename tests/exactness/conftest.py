"""Fixtures of the exactness suite: one fork server a worker, one model a family and dtype."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from moe.operator.planner import Placement
from support.distributed import Distributed
from support.exact_models import ExactModel, make_exact_model
from support.families_report import write_report
from support.processes import Fleet, Nursery, nursery

Bring = Callable[..., tuple[Fleet, Distributed]]


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery(tmp_path_factory.mktemp("nursery")) as made:
        yield made


@pytest.fixture(scope="session")
def exact_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, torch.dtype], ExactModel]:
    made: dict[tuple[str, torch.dtype], ExactModel] = {}

    def get(family: str, dtype: torch.dtype = torch.float32) -> ExactModel:
        key = (family, dtype)
        if key not in made:
            made[key] = make_exact_model(family, dtype, tmp_path_factory.mktemp("model"))
        return made[key]

    return get


@pytest.fixture
def bring_up(fork_server: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bring]:
    """Brings up processes of a model and a router's inside over them; ends them afterwards."""
    opened: list[Fleet | Distributed] = []

    def bring(
        model: ExactModel,
        *,
        groups: int = 2,
        replicas: int = 1,
        placement: Placement = Placement.EMBEDDED,
        deterministic: bool = False,
        wire: str = "auto",
        **options: object,
    ) -> tuple[Fleet, Distributed]:
        folder: Path = tmp_path_factory.mktemp("d")
        fleet = Fleet(
            fork_server,
            model.package,
            model.facts,
            folder,
            groups=groups,
            replicas=replicas,
            placement=placement,
            deterministic=deterministic,
            wire=wire,
        )
        opened.append(fleet)
        distributed = Distributed(
            model.package,
            fleet,
            placement,
            deterministic=deterministic,
            wire=wire,
            **options,  # type: ignore[arg-type]
        )
        opened.append(distributed)
        return fleet, distributed

    yield bring
    for each in reversed(opened):
        each.close()


@pytest.fixture
def record_family(request: pytest.FixtureRequest) -> Callable[[str, torch.dtype, float], None]:
    """Notes a measured difference for docs/families.md."""

    def record(family: str, dtype: torch.dtype, difference: float) -> None:
        request.node.user_properties.append(("family", (family, str(dtype).removeprefix("torch."), difference)))

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes the table of families to the file that MOE_FAMILIES_REPORT names."""
    path = os.environ.get("MOE_FAMILIES_REPORT")
    if path:
        passed = terminalreporter.stats.get("passed", [])
        write_report(
            Path(path), [value for report in passed for key, value in report.user_properties if key == "family"]
        )
