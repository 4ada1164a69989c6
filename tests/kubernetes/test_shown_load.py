"""`kubectl get moeexperts` shows how busy experts are, as the chart's operator reads it off their pods.

Its own model, as those of other tests compute too little to be seen. With the network policy on: where a cluster
enforces one, the operator has to come through it.
"""

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from moe.models.convert import convert_checkpoint
from support.cluster.client import Kube, wait_until
from support.cluster_models import START_S
from support.exact_models import ExactModel
from support.families import family_config, write_checkpoint
from support.load import Load
from support.served_model import TOKENS, Served, served_model

pytestmark = pytest.mark.timeout(900)
"""Seconds: pods load libraries, on machines that do other things too."""

WIDE = 2048
"""Of the experts' inner rows: a call takes tenths of a millisecond, which a load makes several per cent of."""


@pytest.fixture(scope="module")
def served(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("wide")
    config = family_config("qwen2_moe", moe_intermediate_size=WIDE)
    checkpoint = write_checkpoint("qwen2_moe", folder / "checkpoint", config=config)
    wide = ExactModel("qwen2_moe", torch.float32, checkpoint, convert_checkpoint(checkpoint, folder / "package"))
    policy = "--set=networkPolicy.enabled=true"
    with served_model(kube, f"load-{os.getpid()}", wide, tmp_path_factory.mktemp("release"), policy) as model:
        yield model


def test_the_load_of_each_expert_rises_with_requests_and_falls_to_0_after_them(served: Served) -> None:
    until_loads(served, lambda per_cent: per_cent == 0)
    with Load(served.clients, served.exact.prompts, TOKENS, every_s=0.0) as load:
        until_loads(served, lambda per_cent: per_cent > 0)
    load.check()
    until_loads(served, lambda per_cent: per_cent == 0)


def test_a_group_without_a_pod_shows_no_load(served: Served) -> None:
    served.scale("demo-g000", 0)
    assert served.column("LOAD")["demo-g000"] == ""
    assert "loadPercent" not in served.namespace.get("moeexpert", "demo-g000")["status"]


def until_loads(served: Served, wanted: Callable[[int], bool]) -> None:
    """Waits until each expert group shows a load of that kind."""
    shown: dict[str, str] = {}

    def met() -> bool:
        shown.update(served.column("LOAD"))
        return all(each.endswith("%") and wanted(int(each.rstrip("%"))) for each in shown.values())

    wait_until(met, "not all loads are so", START_S, every_s=1.0)
    print(f"loads: {shown}")
