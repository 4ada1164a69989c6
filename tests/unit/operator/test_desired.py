"""From a model to objects, step by step, as the operator decides them."""

from copy import deepcopy

import pytest
from moe.operator.desired import desired
from moe.operator.kinds import Ref, ref_of
from support.small_world import FACTS, IMAGE, SmallWorld


def running(**spec):
    """A model that is served and settled."""
    world = SmallWorld(facts=FACTS, **spec)
    world.settle()
    world.roll_out()
    return world


def test_without_the_claim_nothing_is_made_that_would_wait_for_it():
    world = SmallWorld(claim=False)
    world.settle()
    assert (world.refs("Job"), world.refs("Deployment"), world.refs("MoEExpert")) == ([], [], [])


def test_the_package_is_read_by_a_job_before_anything_else_runs():
    world = SmallWorld()
    world.settle()
    assert (world.refs("Job"), world.refs("Deployment")) == (["demo-package"], [])


def test_an_inspection_with_another_image_replaces_the_one_that_could_not_run():
    world = SmallWorld(image="registry/moe:typo")
    world.settle()
    world.wish(image="registry/moe:1")
    assert world.settle() == ["delete Job demo-package", "apply Job demo-package"]


SOURCED = {"package": {"claim": "models", "subPath": "demo", "source": "checkpoints/tiny"}}


def test_a_source_is_converted_only_where_no_package_is():
    world = SmallWorld(**SOURCED)
    world.settle()
    assert world.refs("Job") == ["demo-package"]
    world.inspected()
    world.settle()
    assert "demo-conversion" not in world.refs("Job")


def test_a_source_becomes_a_package_that_is_then_read_and_served():
    world = SmallWorld(**SOURCED)
    world.settle()
    world.inspected(code=2, message="there is no manifest.json")
    assert world.settle() == ["apply Job demo-conversion"]
    world.converted()
    assert world.settle() == ["delete Job demo-package", "apply Job demo-package"]
    assert world.refs("MoEExpert") == []
    world.inspected()
    world.settle()
    assert len(world.refs("MoEExpert")) == 4


def test_what_an_inspection_found_before_the_conversion_does_not_start_another():
    world = SmallWorld(**SOURCED)
    world.settle()
    world.inspected(code=2, message="there is no manifest.json")
    world.settle()
    world.converted()
    world.settle()
    assert world.settle() == []


def test_once_the_package_is_known_each_expert_gets_a_moeexpert_and_then_its_workload():
    world = SmallWorld()
    world.settle()
    world.inspected()
    done = world.settle()
    groups = ["demo-000", "demo-001", "demo-002", "demo-003"]
    assert world.refs("MoEExpert") == groups
    assert world.refs("Deployment") == [*groups, "demo-aggregator", "demo-router"]
    assert world.refs("Service") == ["demo", *groups, "demo-aggregator"]
    assert world.refs("PodDisruptionBudget") == [*groups, "demo-aggregator", "demo-router"]
    assert done.index("apply MoEExpert demo-000") < done.index("apply Deployment demo-000")


def test_an_experts_workload_goes_with_its_moeexpert_and_that_with_the_model():
    world = running()
    deployment, expert = world.objects[Ref("Deployment", "demo-003")], world.objects[Ref("MoEExpert", "demo-003")]
    assert deployment["metadata"]["ownerReferences"][0]["uid"] == expert["metadata"]["uid"]
    assert expert["metadata"]["ownerReferences"][0]["uid"] == "model-uid"


def test_everything_that_is_made_has_an_owner_so_that_nothing_is_left_behind():
    world = running()
    assert all(body["metadata"]["ownerReferences"] for body in world.objects.values())


def test_nothing_is_written_while_nothing_changes():
    world = running()
    assert not world.decide()


def test_experts_of_one_pod_together_are_named_by_their_group():
    world = running(experts={"perPod": 2})
    assert world.refs("MoEExpert") == ["demo-g000", "demo-g001"]


def test_scaling_one_expert_moves_its_deployment_and_nothing_else():
    world = running()
    world.scale("MoEExpert", "demo-003", 3)
    assert world.settle() == ["apply Deployment demo-003"]
    assert world.objects[Ref("Deployment", "demo-003")]["spec"]["replicas"] == 3


def test_an_expert_that_somebody_scaled_keeps_its_number_when_the_models_changes():
    world = running()
    world.scale("MoEExpert", "demo-003", 3)
    world.settle()
    world.wish(experts={"replicas": 2})
    world.settle()
    counts = [world.objects[Ref("Deployment", f"demo-00{each}")]["spec"]["replicas"] for each in range(4)]
    assert counts == [2, 2, 2, 3]


def test_routers_scaled_to_nothing_stay_there():
    world = running()
    world.scale("Deployment", "demo-router", 0)
    assert not world.decide()


def test_an_expert_scaled_to_nothing_stays_there():
    world = running()
    world.scale("MoEExpert", "demo-001", 0)
    world.settle()
    assert world.objects[Ref("Deployment", "demo-001")]["spec"]["replicas"] == 0
    assert not world.decide()


def test_routers_follow_the_model_until_somebody_else_scales_them():
    world = running(router={"replicas": 2})
    assert world.objects[Ref("Deployment", "demo-router")]["spec"]["replicas"] == 2
    world.scale("Deployment", "demo-router", 5, manager="horizontal-autoscaler")
    world.wish(router={"replicas": 3})
    assert world.settle() == []


def test_replicas_are_claimed_even_where_the_default_is_right_so_that_it_shows_who_scales():
    world = SmallWorld(facts=FACTS)
    assert "scale MoEExpert demo-000 to 1" in world.settle()


def test_not_even_for_a_moment_a_router_runs_that_nobody_wished():
    world = SmallWorld(facts=FACTS, router={"replicas": 0})
    made = {ref_of(manifest): manifest for manifest, _ in world.decide().apply}
    assert made[Ref("Deployment", "demo-router")]["spec"]["replicas"] == 0


def test_experts_may_start_with_no_replica_at_all():
    world = running(experts={"replicas": 0})
    assert world.objects[Ref("Deployment", "demo-000")]["spec"]["replicas"] == 0


def test_another_image_touches_deployments_alone():
    world = running()
    world.wish(image="registry/moe:2")
    assert {line.split()[1] for line in world.settle()} == {"Deployment"}


def test_resources_of_one_expert_replace_the_models_for_it_alone():
    world = running(experts={"resources": {"limits": {"memory": "1Gi"}}})
    world.objects[Ref("MoEExpert", "demo-002")]["spec"]["resources"] = {"limits": {"memory": "3Gi"}}
    assert world.settle() == ["apply Deployment demo-002"]


def test_an_embedded_aggregator_takes_over_before_the_one_of_its_own_goes():
    world = running()
    world.wish(aggregator={"placement": "embedded"})
    assert not any(line.startswith("delete") for line in world.settle())
    world.roll_out()
    assert [line for line in world.settle() if "delete" in line] == [
        "delete Deployment demo-aggregator",
        "delete PodDisruptionBudget demo-aggregator",
        "delete Service demo-aggregator",
        "delete ServiceAccount demo-aggregator",
    ]


def test_a_deleted_model_is_left_to_its_owner_references():
    world = running()
    world.model["metadata"]["deletionTimestamp"] = "now"
    world.objects.clear()
    assert not world.decide()


def test_an_object_of_somebody_else_is_never_deleted():
    world = running()
    stranger = {"kind": "Service", "metadata": {"name": "theirs", "uid": "u", "labels": {"moe.dev/model": "demo"}}}
    world.objects[Ref("Service", "theirs")] = stranger
    assert not world.decide()


def test_what_somebody_changed_is_put_right_and_what_they_added_is_left():
    world = running()
    deployment = world.objects[Ref("Deployment", "demo-000")]
    deployment["metadata"]["annotations"]["theirs"] = "stays"
    assert not world.decide()
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    assert world.settle() == ["apply Deployment demo-000"]


def test_an_experts_deployment_that_was_scaled_by_hand_follows_its_moeexpert_again():
    world = running(experts={"replicas": 0})
    world.objects[Ref("Deployment", "demo-001")]["spec"]["replicas"] = 3
    assert world.settle() == ["apply Deployment demo-001"]


def test_an_amount_written_otherwise_by_the_api_server_is_no_change():
    world = running(experts={"resources": {"limits": {"cpu": "1000m", "memory": "0.5Gi"}}})
    limits = world.objects[Ref("Deployment", "demo-000")]["spec"]["template"]["spec"]["containers"][0]["resources"]
    limits["limits"] = {"cpu": "1", "memory": "512Mi"}
    assert not world.decide()


def test_a_field_that_is_no_longer_wished_is_taken_away():
    world = running(experts={"nodeSelector": {"disk": "fast"}})
    world.wish(experts={})
    assert len(world.settle()) == 4


UNFIT = {
    "experts_per_group is 9": {"experts": {"perPod": 9}},
    "routing.topK is 5; want 1 to 4": {"routing": {"topK": 5}},
    "routing.topK is 2 with strategy drop; want less than 2": {"routing": {"topK": 2, "strategy": "drop"}},
}


@pytest.mark.parametrize(("words", "wishes"), UNFIT.items())
def test_wishes_that_do_not_fit_the_package_are_said_and_leave_what_runs_alone(words, wishes):
    world = running()
    before = deepcopy(world.objects)
    world.wish(**wishes)
    world.settle()
    assert world.objects == before
    assert words in desired(world.observed, IMAGE).fault


def test_a_lost_deployment_is_made_again():
    world = running()
    del world.objects[Ref("Deployment", "demo-002")]
    assert world.settle() == ["apply Deployment demo-002"]


@pytest.mark.parametrize("kind", ["ServiceAccount", "Role", "RoleBinding", "Service", "PodDisruptionBudget"])
def test_any_lost_object_comes_back(kind):
    world = running()
    ref = next(ref for ref in world.objects if ref.kind == kind)
    del world.objects[ref]
    assert world.settle() == [f"apply {ref}"]
