"""Parts may arrive in any order and twice; a process may die: the logits stay the same."""

import pytest
import torch
from moe.aggregator.combiner import Combiner
from moe.operator.planner import Placement
from moe.wire.combining import CallKey, CallPlan, CombineEvent
from support.exact_models import CHUNK, TOLERANCE, largest_difference
from support.processes import Role
from torch import Tensor

pytestmark = pytest.mark.xdist_group("qwen2_moe")
FAMILY = "qwen2_moe"


class Disorderly(Combiner):
    """Holds a call's parts back until all are in, then hands them on last first, each of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self._expected: dict[CallKey, int] = {}
        self._held: dict[CallKey, dict[int, Tensor]] = {}
        self.turned = 0

    def plan(self, owner: str, plan: CallPlan, now: float) -> list[CombineEvent]:
        self._expected[plan.key] = len(plan.parts)
        return super().plan(owner, plan, now) + self._release(plan.key, now)

    def part(self, key: CallKey, part: int, rows: Tensor, now: float) -> list[CombineEvent]:
        self._held.setdefault(key, {})[part] = rows.clone()
        return self._release(key, now)

    def _release(self, key: CallKey, now: float) -> list[CombineEvent]:
        held = self._held.get(key, {})
        if key not in self._expected or len(held) < self._expected[key]:
            return []
        events: list[CombineEvent] = []
        for part in sorted(self._held.pop(key), reverse=True):
            events += super().part(key, part, held[part], now) + super().part(key, part, held[part], now)
        self.turned += 1
        return events


def test_parts_that_arrive_last_first_and_twice_give_the_same_logits(exact_models, bring_up):
    model = exact_models(FAMILY, torch.float32)
    combiner = Disorderly()
    _, distributed = bring_up(model, groups=4, combiner=combiner)

    got = distributed.logits(model.sequences, [len(p) for p in model.prompts], CHUNK)

    assert combiner.turned
    assert largest_difference(got, model.logits) <= TOLERANCE


@pytest.mark.parametrize("placement", list(Placement))
def test_an_expert_killed_and_restarted_in_mid_generation_leaves_the_logits_as_they_are(
    placement, exact_models, bring_up
):
    model = exact_models(FAMILY, torch.float32)
    fleet, distributed = bring_up(model, groups=2, placement=placement)
    victim = fleet.names(Role.EXPERT)[0]

    def kill_and_restart(step: int) -> None:
        if step in (2, 20):
            fleet.kill(victim)
            fleet.restart(victim)

    got = distributed.logits(model.sequences, [len(p) for p in model.prompts], CHUNK, before=kill_and_restart)

    assert largest_difference(got, model.logits) <= TOLERANCE


def test_an_expert_that_dies_is_replaced_by_its_other_replica_at_once(exact_models, bring_up):
    model = exact_models(FAMILY, torch.float32)
    fleet, distributed = bring_up(model, groups=2, replicas=2)
    victims = [name for name in fleet.names(Role.EXPERT) if name.endswith("-0")]

    def kill(step: int) -> None:
        if step == 3:
            for victim in victims:
                fleet.kill(victim)

    got = distributed.logits(model.sequences, [len(p) for p in model.prompts], CHUNK, before=kill)

    assert len(victims) == 2
    assert largest_difference(got, model.logits) <= TOLERANCE


@pytest.mark.parametrize("placement", [Placement.PROCESS, Placement.SIDECAR])
def test_an_aggregator_killed_and_restarted_in_mid_generation_leaves_the_logits_as_they_are(
    placement, exact_models, bring_up
):
    model = exact_models(FAMILY, torch.float32)
    fleet, distributed = bring_up(model, groups=2, placement=placement)
    victim = fleet.names(Role.AGGREGATOR)[0]

    def kill_and_restart(step: int) -> None:
        if step in (2, 20):
            fleet.kill(victim)
            fleet.restart(victim)

    got = distributed.logits(model.sequences, [len(p) for p in model.prompts], CHUNK, before=kill_and_restart)

    assert largest_difference(got, model.logits) <= TOLERANCE
