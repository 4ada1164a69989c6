"""The demo model: what `make demo` shows a newcomer, and its exactness, real weights and all 30 layers."""

import json

import pytest
import torch
import transformers
from moe.models.demo import write_demo_checkpoint
from moe.models.package import Package
from moe.models.text import load_tokenizer
from moe.operator.planner import ModelFacts, Placement
from support.distributed import Distributed
from support.exact_models import TOLERANCE, largest_difference
from support.moe_up import moe
from support.mutations import MUTATIONS
from support.processes import Fleet, nursery

QUESTION = "What is the capital of France?"
TEXTS = (
    QUESTION,
    "def add(a, b):\n    return",
    "In the beginning God created the heaven and the earth. And the earth was without form, and void;",
    "Licensed under the Apache License, Version 2.0",
)


@pytest.fixture(scope="module")
def prompts(demo):
    tokenizer = load_tokenizer(Package.open(demo))
    return [tokenizer.encode(text) for text in TEXTS]


@pytest.fixture(scope="module")
def distributed(demo, tmp_path_factory):
    """Every expert in a process of its own, in float32."""
    manifest = Package.open(demo).manifest
    facts = ModelFacts(manifest.name, manifest.moe_layers, manifest.topk)
    with nursery(tmp_path_factory.mktemp("n")) as server:
        fleet = Fleet(server, demo, facts, tmp_path_factory.mktemp("d"), groups=facts.experts, dtype="float32")
        made = Distributed(demo, fleet, Placement.EMBEDDED, dtype=torch.float32)
        yield made
        made.close()
        fleet.close()


@pytest.fixture(scope="module")
def reference_logits(prompts, tmp_path_factory):
    """What transformers makes of the prompts, in float32, experts by grouped_mm."""
    checkpoint = tmp_path_factory.mktemp("reference")
    write_demo_checkpoint(checkpoint / "demo")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint / "demo", dtype=torch.float32, experts_implementation="grouped_mm"
    ).eval()
    with torch.no_grad():
        return [model(input_ids=torch.tensor([p]), use_cache=False).logits[0] for p in prompts]


def logits(distributed, prompts):
    return distributed.logits(prompts, [len(p) for p in prompts], chunk=7)


def test_the_distributed_logits_equal_transformers(distributed, prompts, reference_logits):
    assert largest_difference(logits(distributed, prompts), reference_logits) <= TOLERANCE


@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_fault_that_leaves_text_sensible_moves_the_logits(distributed, prompts, reference_logits, fault):
    right, counts = distributed.experts, distributed.backbone.info.moe_layers
    distributed.experts = MUTATIONS[fault](right, counts)
    try:
        moved = largest_difference(logits(distributed, prompts), reference_logits)
    finally:
        distributed.experts = right
    assert moved > 1000 * TOLERANCE


def test_conversion_gives_the_same_bytes_again(runtime, demo, tmp_path):
    again = tmp_path / "demo"
    moe(runtime, "convert", "demo", str(again))
    assert Package.open(again).manifest.to_bytes() == Package.open(demo).manifest.to_bytes()


def test_the_package_verifies(runtime, demo):
    assert moe(runtime, "models", "verify", str(demo)).returncode == 0


def test_it_knows_the_capital_of_france(bring_up, runtime, demo):
    _, clients = bring_up(demo)
    command = ("generate", "--chat", QUESTION, "--temperature", "0", "--max-tokens", "16", "--json")
    messages = [json.loads(line) for line in moe(runtime, *command, "--address", clients.target).stdout.splitlines()]
    assert "Paris" in "".join(message.get("text", "") for message in messages)
