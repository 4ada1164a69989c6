"""From a model and wishes to processes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe.operator.planner import (
    AggregatorPlan,
    ConflictingWishes,
    ModelFacts,
    Placement,
    PlanError,
    RouterPlan,
    UnfitModel,
    UnfitWish,
    Wishes,
    plan,
)

DEMO = ModelFacts("demo", dict.fromkeys(range(30), 8), topk=4)


def groups(model=DEMO, **wishes):
    return {group.name: group.experts for group in plan(model, Wishes(cores=2, **wishes)).groups}


def replicas(**wishes):
    return {
        group.name: [each.name for each in group.replicas] for group in plan(DEMO, Wishes(cores=2, **wishes)).groups
    }


def test_without_a_wish_every_expert_is_a_group_named_by_its_id():
    assert groups() == {f"demo-00{expert}": (expert,) for expert in range(8)}


def test_two_groups_share_the_experts_evenly_and_are_named_by_their_index():
    assert groups(groups=2) == {"demo-g000": (0, 1, 2, 3), "demo-g001": (4, 5, 6, 7)}


def test_groups_that_cannot_be_even_differ_by_one_expert():
    assert [len(experts) for experts in groups(groups=3).values()] == [2, 3, 3]


def test_one_group_holds_all_experts():
    assert groups(groups=1) == {"demo-g000": tuple(range(8))}


def test_as_many_groups_as_experts_are_named_by_expert():
    assert groups(groups=8) == groups()


def test_a_wish_for_experts_per_group_is_not_exceeded_and_groups_stay_even():
    assert [len(experts) for experts in groups(experts_per_group=3).values()] == [2, 3, 3]


def test_a_group_of_one_among_larger_ones_is_named_by_its_expert():
    assert list(groups(ModelFacts("m", {0: 3}, 1), groups=2)) == ["m-000", "m-g001"]


def test_the_widest_layer_decides_how_many_experts_there_are():
    assert len(groups(ModelFacts("m", {0: 4, 7: 16, 9: 8}, 2))) == 16


def test_a_hundred_and_more_experts_keep_names_of_one_length():
    names = list(groups(ModelFacts("m", {0: 160}, 6)))
    assert (names[0], names[159]) == ("m-000", "m-159")


def test_replicas_are_numbered_within_their_group():
    assert replicas(replicas=2)["demo-003"] == ["demo-003-0", "demo-003-1"]


def test_a_hot_group_may_have_more_replicas_than_the_others():
    planned = replicas(replicas_for={"demo-003": 3})
    assert {name: len(each) for name, each in planned.items()} == {f"demo-00{i}": 3 if i == 3 else 1 for i in range(8)}


def test_the_part_number_of_a_group_is_its_place():
    assert [group.index for group in plan(DEMO, Wishes(cores=2, groups=4)).groups] == [0, 1, 2, 3]


def test_the_name_of_the_deployment_is_a_dns_label():
    planned = plan(ModelFacts("Qwen1.5-MoE A2.7B", {0: 2}, 1), Wishes(cores=2))
    assert (planned.name, planned.groups[0].name) == ("qwen1-5-moe-a2-7b", "qwen1-5-moe-a2-7b-000")


def test_an_aggregator_of_its_own_serves_all_routers():
    planned = plan(DEMO, Wishes(cores=2, routers=2, aggregators=2))
    assert planned.aggregators == (AggregatorPlan("agg-0"), AggregatorPlan("agg-1"))
    assert planned.routers == (RouterPlan("router-0", ("agg-0", "agg-1")), RouterPlan("router-1", ("agg-0", "agg-1")))


def test_a_sidecar_serves_the_router_it_is_beside():
    planned = plan(DEMO, Wishes(cores=2, routers=2, aggregator=Placement.SIDECAR))
    assert planned.aggregators == (AggregatorPlan("agg-0", "router-0"), AggregatorPlan("agg-1", "router-1"))
    assert planned.routers == (RouterPlan("router-0", ("agg-0",)), RouterPlan("router-1", ("agg-1",)))


def test_an_embedded_aggregator_is_no_process():
    planned = plan(DEMO, Wishes(cores=2, aggregator=Placement.EMBEDDED))
    assert (planned.aggregators, planned.routers) == ((), (RouterPlan("router-0", ()),))


def test_the_processes_of_the_demo_are_eight_experts_an_aggregator_and_a_router():
    assert plan(DEMO, Wishes(cores=2)).processes == 10


def test_the_threads_of_the_demo_on_two_cores_are_two_for_the_router_and_one_for_each_expert():
    threads = plan(DEMO, Wishes(cores=2)).threads
    assert (threads.router, threads.expert) == (2, 1)


UNFIT_WISHES = {
    "no groups": ({"groups": 0}, "groups is 0; want 1 to 8, the model's experts"),
    "more groups than experts": ({"groups": 9}, "groups is 9; want 1 to 8, the model's experts"),
    "no experts per group": ({"experts_per_group": 0}, "experts_per_group is 0; want 1 to 8"),
    "too many experts per group": ({"experts_per_group": 9}, "experts_per_group is 9; want 1 to 8"),
    "no replicas": ({"replicas": 0}, "replicas is 0; want 1 to 64"),
    "too many replicas": ({"replicas": 65}, "replicas is 65; want 1 to 64"),
    "no replica for a group": ({"replicas_for": {"demo-003": 0}}, "replicas_for demo-003 is 0; want 1 to 64"),
    "a group that is not there": (
        {"replicas_for": {"demo-03": 2}},
        "replicas_for is demo-03; .* did you mean demo-003?",
    ),
    "a group of another grouping": ({"groups": 2, "replicas_for": {"demo-003": 2}}, "2 groups, demo-g000 to demo-g001"),
    "no routers": ({"routers": 0}, "routers is 0; want 1 to 64"),
    "no aggregators": ({"aggregators": 0}, "aggregators is 0; want 1 to 64"),
    "more threads than cores": ({"router_threads": 3}, "router_threads is 3; want 1 to 2"),
    "no threads": ({"expert_threads": 0}, "expert_threads is 0; want 1 to 2"),
}


@pytest.mark.parametrize(("wishes", "text"), UNFIT_WISHES.values(), ids=UNFIT_WISHES)
def test_an_unfit_wish_is_refused_by_value_and_bound(wishes, text):
    with pytest.raises(UnfitWish, match=text):
        plan(DEMO, Wishes(cores=2, **wishes))


def test_no_cores_are_refused():
    with pytest.raises(UnfitWish, match="cores is 0; want 1 to 4096"):
        plan(DEMO, Wishes(cores=0))


CONFLICTS = {
    "two groupings": ({"groups": 2, "experts_per_group": 4}, "groups is 2 and experts_per_group is 4"),
    "two sidecars": ({"aggregator": Placement.SIDECAR, "aggregators": 2}, "aggregators is 2 and aggregator is sidecar"),
    "two inside": ({"aggregator": Placement.EMBEDDED, "aggregators": 2}, "aggregators is 2 and aggregator is embedded"),
}


@pytest.mark.parametrize(("wishes", "text"), CONFLICTS.values(), ids=CONFLICTS)
def test_wishes_that_exclude_each_other_are_refused(wishes, text):
    with pytest.raises(ConflictingWishes, match=text):
        plan(DEMO, Wishes(cores=2, **wishes))


UNFIT_MODELS = {
    "dense": (ModelFacts("m", {}, 1), "m has no layer with experts"),
    "a layer without experts": (ModelFacts("m", {3: 0}, 1), "layer 3 of m has 0 experts; want 1 to 4096"),
    "too many experts": (ModelFacts("m", {3: 5000}, 1), "layer 3 of m has 5000 experts"),
    "topk of none": (ModelFacts("m", {3: 8}, 0), "topk of m is 0; want 1 to 8"),
    "topk beyond a layer": (ModelFacts("m", {3: 8, 4: 2}, 4), "topk of m is 4; want 1 to 2, the experts of layer 4"),
    "a nameless one": (ModelFacts("---", {3: 8}, 1), "the model's name is '---'; want at least one letter"),
}


@pytest.mark.parametrize(("model", "text"), UNFIT_MODELS.values(), ids=UNFIT_MODELS)
def test_an_unfit_model_is_refused_with_the_reason(model, text):
    with pytest.raises(UnfitModel, match=text):
        plan(model, Wishes(cores=2))


models = st.builds(
    ModelFacts,
    name=st.text(min_size=1, max_size=60),
    moe_layers=st.dictionaries(st.integers(0, 90), st.integers(1, 300), min_size=1, max_size=4),
    topk=st.just(1),
)
wish_lists = st.builds(
    Wishes,
    cores=st.integers(1, 256),
    groups=st.none() | st.integers(1, 300),
    replicas=st.integers(1, 3),
    routers=st.integers(1, 3),
    aggregator=st.sampled_from(Placement),
)


@given(model=models, wishes=wish_lists)
@settings(max_examples=200, deadline=None)
def test_any_plan_holds_each_expert_once_under_names_of_its_own(model, wishes):
    try:
        planned = plan(model, wishes)
    except PlanError:
        return
    experts = [expert for group in planned.groups for expert in group.experts]
    names = [each.name for group in planned.groups for each in group.replicas]
    names += [each.name for each in (*planned.routers, *planned.aggregators)]
    assert experts == list(range(model.experts))
    assert len(set(names)) == len(names) == planned.processes
    assert max(map(len, names)) <= 63


@given(model=models, wishes=wish_lists)
@settings(max_examples=50, deadline=None)
def test_the_same_wishes_give_the_same_plan(model, wishes):
    outcomes = []
    for _ in range(2):
        try:
            outcomes.append(plan(model, wishes))
        except PlanError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
