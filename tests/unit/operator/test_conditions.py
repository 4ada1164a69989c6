"""What the operator says about a model, from nothing to serving and through what can go wrong."""

import pytest
from moe.operator.conditions import in_short, transitions
from moe.operator.kinds import Ref
from moe.operator.resources import Condition
from support.small_world import FACTS, SmallWorld


def running(**spec):
    world = SmallWorld(facts=FACTS, **spec)
    world.settle()
    world.roll_out()
    return world


def words(conditions):
    """(status, reason) by type."""
    return {name: found[:2] for name, found in conditions.items()}


def test_a_missing_claim_is_named_with_what_to_do():
    world = SmallWorld(claim=False)
    world.settle()
    said = world.say()
    assert words(said)["PackageReady"] == ("False", "ClaimMissing")
    assert "there is no PersistentVolumeClaim models in this namespace; make it" in said["PackageReady"][2]


def test_while_the_package_is_read_nothing_is_wrong():
    world = SmallWorld()
    world.settle()
    assert words(world.say()) == {
        "PackageReady": ("Unknown", "Inspecting"),
        "Available": ("False", "Inspecting"),
        "Progressing": ("True", "Inspecting"),
        "Degraded": ("False", "NoFault"),
    }


def test_a_package_that_cannot_be_served_says_why_and_keeps_saying_it_while_it_is_read_again():
    world = SmallWorld()
    world.settle()
    world.inspected(code=2, message="experts/expert-00001.safetensors is missing; copy the package again")
    said = world.say()
    assert words(said)["Degraded"] == ("True", "PackageUnusable")
    assert "expert-00001.safetensors is missing" in said["PackageReady"][2]
    world.pods.clear()
    assert words(world.say())["PackageReady"] == ("False", "PackageUnusable")


def test_an_inspection_that_was_deleted_has_found_nothing():
    world = SmallWorld()
    world.settle()
    world.inspected(code=137, message="The container could not be located when the pod was terminated")
    world.pods[-1]["metadata"]["deletionTimestamp"] = "now"
    assert words(world.say())["PackageReady"] == ("Unknown", "Inspecting")


def test_a_conversion_is_told_and_its_failure_with_its_last_words():
    world = SmallWorld(package={"claim": "models", "subPath": "demo", "source": "checkpoints/tiny"})
    world.settle()
    world.inspected(code=2, message="there is no manifest.json")
    world.settle()
    assert words(world.say())["PackageReady"] == ("Unknown", "Converting")
    world.converted(failed="moe: error: checkpoints/tiny has no config.json")
    said = world.say()
    assert words(said)["Degraded"] == ("True", "ConversionFailed")
    assert "checkpoints/tiny can't be converted: moe: error: checkpoints/tiny has no config.json" in said["Degraded"][2]


def test_a_package_that_was_put_right_is_served():
    world = SmallWorld()
    world.settle()
    world.inspected(code=2, message="there is no manifest.json")
    world.say()
    world.inspected()
    assert words(world.say())["PackageReady"] == ("True", "Read")


def test_a_model_on_its_way_says_which_experts_it_waits_for():
    world = SmallWorld(facts=FACTS)
    world.settle()
    world.roll_out("demo-001", "demo-003", "demo-router")
    said = world.say()
    assert words(said)["Available"] == ("False", "ExpertsMissing")
    assert "2 of 4 expert groups have no ready pod: demo-001, demo-003" in said["Available"][2]
    assert words(said)["Progressing"] == ("True", "RollingOut")
    assert world.model["status"]["experts"] == "2/4"


def test_a_served_model_is_available_settled_and_whole():
    world = running()
    assert words(world.say()) == {
        "PackageReady": ("True", "Read"),
        "Available": ("True", "Serving"),
        "Progressing": ("False", "AsWished"),
        "Degraded": ("False", "NoFault"),
    }
    status = world.model["status"]
    assert (status["experts"], status["routers"], status["endpoint"]) == ("4/4", "1/1", "demo.here.svc:50051")


@pytest.mark.parametrize(
    ("policy", "status", "reason", "told"),
    [
        (
            "wait",
            "False",
            "ExpertsMissing",
            "requests wait for them, 120 s at most: 1 of 4 expert groups have no ready",
        ),
        ("fail", "False", "ExpertsMissing", "requests that need them fail: 1 of 4 expert groups have no ready pod"),
        ("renormalise", "True", "ServingWithoutExperts", "answers go without some experts: 1 of 4 expert groups"),
    ],
)
def test_when_the_last_pod_of_a_group_goes_the_policy_that_acts_is_told(policy, status, reason, told):
    world = running(routing={"missingExpert": {"policy": policy}})
    world.scale("MoEExpert", "demo-002", 0)
    world.settle()
    world.roll_out()
    said = world.say()
    assert words(said)["Available"] == (status, reason)
    assert said["Available"][2].startswith(told)
    assert "scaled to 0: demo-002 (kubectl scale moeexpert/demo-002 --replicas=1)" in said["Available"][2]


def test_without_any_expert_nothing_is_renormalised():
    world = running(routing={"missingExpert": {"policy": "renormalise"}})
    for group in world.refs("MoEExpert"):
        world.scale("MoEExpert", group, 0)
    world.settle()
    world.roll_out()
    assert words(world.say())["Available"] == ("False", "ExpertsMissing")


def test_a_model_whose_aggregator_is_away_is_not_available_though_its_router_is_ready():
    world = running()
    world.scale("Deployment", "demo-aggregator", 0)
    world.roll_out()
    assert words(world.say())["Available"] == ("False", "AggregatorMissing")


def test_an_image_that_cannot_be_pulled_is_named_with_its_pod():
    world = SmallWorld(facts=FACTS)
    world.settle()
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry/moe:9"'}}
    world.add_pod("demo-000-abc", "expert", "demo-000", state=waiting)
    said = world.say()
    assert words(said)["Degraded"] == ("True", "PodsFailing")
    assert 'demo-000-abc: ImagePullBackOff: Back-off pulling image "registry/moe:9"' in said["Degraded"][2]


def test_a_pod_that_finds_no_node_says_what_the_scheduler_says():
    world = SmallWorld(facts=FACTS)
    world.settle()
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes: Insufficient nvidia.com/gpu.",
    }
    world.add_pod("demo-002-abc", "expert", "demo-002", conditions=(unscheduled,))
    assert "demo-002-abc finds no node: 0/1 nodes: Insufficient nvidia.com/gpu." in world.say()["Degraded"][2]


def test_a_container_that_keeps_dying_gives_its_last_words():
    world = SmallWorld(facts=FACTS)
    world.settle()
    world.add_pod(
        "demo-router-x",
        "router",
        state={"waiting": {"reason": "CrashLoopBackOff"}},
        lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
    )
    assert "demo-router-x: CrashLoopBackOff: OOMKilled, exit code 137" in world.say()["Degraded"][2]


def test_what_the_api_server_refuses_is_said():
    world = running()
    said = world.say({Ref("Service", "demo"): "the name is taken by an object of somebody else"})
    assert words(said)["Degraded"] == ("True", "WriteRefused")
    assert "Service demo: the name is taken" in said["Degraded"][2]


def test_wishes_that_do_not_fit_the_package_say_by_which_number():
    world = SmallWorld(facts=FACTS, experts={"perPod": 9})
    world.settle()
    said = world.say()
    assert words(said)["Degraded"] == ("True", "WishesUnfit")
    assert "experts_per_group is 9; want 1 to 4" in said["Degraded"][2]


def test_an_expert_scaled_to_nothing_is_told_with_the_command_that_brings_it_back():
    world = running()
    world.scale("MoEExpert", "demo-001", 0)
    world.settle()
    world.roll_out()
    world.objects[Ref("Deployment", "demo-router")]["status"]["readyReplicas"] = 0
    assert "kubectl scale moeexpert/demo-001 --replicas=1" in world.say()["Available"][2]
    expert = world.objects[Ref("MoEExpert", "demo-001")]["status"]
    assert (expert["ready"], expert["conditions"][0]["reason"]) == ("0/0", "ScaledToZero")


def test_no_progress_for_long_is_no_progress():
    world = SmallWorld(facts=FACTS)
    world.settle()
    given_up = {"conditions": [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]}
    world.objects[Ref("Deployment", "demo-000")]["status"] = given_up
    assert words(world.say())["Progressing"] == ("False", "Stuck")


def test_an_expert_tells_its_ids_its_pods_and_the_version_of_its_weights():
    world = running(experts={"perPod": 3})
    world.say()
    status = world.objects[Ref("MoEExpert", "demo-g001")]["status"]
    assert (status["experts"], status["ready"], status["version"]) == ("2-3", "1/1", "dddddddddddd")
    assert status["selector"] == "moe.dev/component=expert,moe.dev/group=demo-g001,moe.dev/model=demo"


def test_a_moeexpert_that_was_made_by_hand_is_told_to_be_none():
    world = running()
    metadata = {"name": "mine", "uid": "u", "generation": 1}
    body = {"kind": "MoEExpert", "metadata": metadata, "spec": {"model": "demo", "experts": [1], "replicas": 1}}
    world.objects[Ref("MoEExpert", "mine")] = body
    world.say()
    assert body["status"]["conditions"][0]["reason"] == "NotPlanned"
    assert not world.decide()


def test_a_conditions_time_moves_with_its_status_alone():
    world = SmallWorld(facts=FACTS)
    world.settle()
    world.say()
    world.roll_out("demo-router")
    world.say()
    times = {each["type"]: each["lastTransitionTime"] for each in world.model["status"]["conditions"]}
    world.roll_out()
    world.say()
    later = {each["type"]: each["lastTransitionTime"] for each in world.model["status"]["conditions"]}
    assert times["Available"] == "t1"
    assert (later["Available"], later["PackageReady"]) == ("t3", "t1")


def test_the_same_state_said_twice_is_the_same_to_the_letter():
    world = running()
    world.say()
    before = dict(world.model["status"])
    world.say()
    assert world.model["status"] == before


def test_definitions_older_than_the_operator_are_said_and_hide_no_other_fault():
    world = running()
    world.outdated = ("moemodels.moe.dev",)
    status, reason, message = world.say()["Degraded"]
    assert (status, reason) == ("True", "DefinitionsOutdated")
    assert "moemodels.moe.dev" in message
    assert "charts/moe/crds" in message
    assert world.say({Ref("Service", "demo"): "refused"})["Degraded"][1] == "WriteRefused"
    world.outdated = ()
    assert world.say()["Degraded"][1] == "NoFault"


def condition(status, reason, kind="Available"):
    return Condition(kind, status, reason, "text", "t1")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ((), condition("Unknown", "Inspecting"), []),
        ((), condition("True", "Serving"), [False]),
        ((condition("True", "Serving"),), condition("True", "Serving"), []),
        ((condition("False", "RouterMissing"),), condition("False", "ExpertsMissing"), [False]),
        ((), condition("False", "NoFault", "Degraded"), []),
        ((), condition("False", "NoReadyPod"), []),
        ((condition("True", "RollingOut", "Progressing"),), condition("False", "Stuck", "Progressing"), [True]),
        ((), condition("False", "ClaimMissing", "PackageReady"), [True]),
        ((condition("True", "Serving"),), condition("False", "ExpertsMissing"), [True]),
        ((), condition("True", "PodsFailing", "Degraded"), [True]),
    ],
)
def test_an_event_is_told_when_status_or_reason_change_and_warns_when_it_is_for_the_worse(before, after, told):
    assert [each.warning for each in transitions(Ref("MoEModel", "demo"), before, (after,))] == told


@pytest.mark.parametrize(
    ("ids", "text"), [((3,), "3"), ((0, 1, 2, 3), "0-3"), ((0, 1, 5, 7, 8), "0-1,5,7-8"), ((), "")]
)
def test_ids_are_told_in_short(ids, text):
    assert in_short(ids) == text
