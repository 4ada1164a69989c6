"""When a router that starts is ready to be sent clients."""

import pytest
from moe.discovery.directory import AggregatorReplica, ExpertReplica, Snapshot
from moe.router.groups import Fleet, empty_fleet, updated
from moe.router.layer_call import CallSettings
from moe.router.readiness import answers
from moe.wire.port import MissingPolicy

WAIT, RENORMALISE, FAIL = MissingPolicy.WAIT, MissingPolicy.RENORMALISE, MissingPolicy.FAIL


def fleet_of(*ready: str, aggregator: bool = True) -> Fleet:
    """Of groups a and b, of which those are ready."""
    experts = [
        ExpertReplica(f"{name}-0", name, (each,), f"unix:/{name}", name in ready) for each, name in enumerate("ab")
    ]
    return updated(empty_fleet(2), Snapshot(1, "m", tuple(experts), (AggregatorReplica("x", "unix:/x", aggregator),)))


@pytest.mark.parametrize("policy", MissingPolicy)
def test_with_every_group_and_an_aggregator_it_is(policy: MissingPolicy) -> None:
    assert answers(fleet_of("a", "b"), CallSettings(policy, 1.0))


@pytest.mark.parametrize(("policy", "ready"), [(WAIT, False), (FAIL, False), (RENORMALISE, True)])
def test_without_a_group_it_is_only_where_that_is_answered_without(policy: MissingPolicy, ready: bool) -> None:
    assert answers(fleet_of("a"), CallSettings(policy, 1.0)) is ready


@pytest.mark.parametrize("fleet", [empty_fleet(2), fleet_of()], ids=["nothing read yet", "no group"])
def test_without_any_group_it_is_not(fleet: Fleet) -> None:
    assert not answers(fleet, CallSettings(RENORMALISE, 1.0, embedded=True))


def test_without_an_aggregator_it_is_not_unless_that_is_inside() -> None:
    fleet = fleet_of("a", "b", aggregator=False)
    assert [answers(fleet, CallSettings(WAIT, 1.0, embedded=each)) for each in (False, True)] == [False, True]
