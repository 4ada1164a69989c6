"""Experts of real checkpoints, converted: every family's weights load and answer their probes, in tiles as well."""

from pathlib import Path

import pytest
from moe.expert.packing import Computation, pack
from moe.expert.probe import check_probes
from moe.expert.weights import load_group, open_package
from moe.models.convert import convert_checkpoint
from support.families import FAMILIES, write_checkpoint


@pytest.fixture(scope="module", params=FAMILIES)
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    source = write_checkpoint(request.param, directory / "checkpoint")
    return convert_checkpoint(
        source, directory / "package", name="tiny", licence="Apache-2.0", source_label="random numbers"
    )


@pytest.mark.parametrize("computation", [Computation("native"), Computation("torch", deterministic=True)])
def test_all_experts_of_a_converted_family_answer_their_probes(converted, computation):
    package = open_package(converted)
    weights = load_group(package, range(package.manifest.expert_count))
    seen: list[int] = []
    check_probes(package, pack(weights, computation), lambda done, total: seen.append(total))
    assert len(seen) == sum(package.manifest.moe_layers.values())
