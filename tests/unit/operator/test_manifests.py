"""What the objects of a model are like, whoever reads them: the kubelet, admission, a node, a router."""

import pytest
from moe.aggregator.settings import AggregatorSettings
from moe.expert.settings import ExpertSettings
from moe.models.manifest import expert_file as package_expert_file
from moe.operator.kinds import Ref
from moe.operator.manifests import expert_file
from moe.router.settings import RouterSettings
from moe.runtime.server import STARTED
from moe.runtime.settings import load
from support.small_world import FACTS, SmallWorld

GPU = "nvidia.com/gpu"


def served(**spec):
    world = SmallWorld(facts=FACTS, **spec)
    world.settle()
    return world


def workloads(world):
    return {ref.name: body for ref, body in world.objects.items() if ref.kind in ("Deployment", "Job")}


def pod_of(world, name):
    return workloads(world)[name]["spec"]["template"]["spec"]


def container_of(world, name):
    return pod_of(world, name)["containers"][0]


def all_pods():
    inspected = SmallWorld()
    inspected.settle()
    pods = {**workloads(served()), **workloads(inspected)}
    return {name: body["spec"]["template"]["spec"] for name, body in pods.items()}


@pytest.mark.parametrize("name", ["demo-000", "demo-router", "demo-aggregator", "demo-package"])
def test_every_pod_is_restricted(name):
    pod = all_pods()[name]
    security = pod["containers"][0]["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)


@pytest.mark.parametrize(
    ("name", "token"), [("demo-000", False), ("demo-package", False), ("demo-router", True), ("demo-aggregator", True)]
)
def test_only_who_watches_the_cluster_holds_a_token(name, token):
    assert all_pods()[name]["automountServiceAccountToken"] is token


def test_an_expert_sees_its_own_file_of_the_package_and_what_all_need_and_can_write_none():
    mounts = [each for each in container_of(served(), "demo-002")["volumeMounts"] if each["name"] == "package"]
    assert {each["subPath"]: each["mountPath"] for each in mounts} == {
        "demo/manifest.json": "/package/manifest.json",
        "demo/probes.json": "/package/probes.json",
        "demo/experts/expert-00002.safetensors": "/package/experts/expert-00002.safetensors",
    }
    assert all(each["readOnly"] for each in mounts)


def test_a_router_sees_the_whole_package_read_only_and_an_aggregator_nothing():
    world = served()
    assert [each["mountPath"] for each in container_of(world, "demo-router")["volumeMounts"]] == ["/package", "/tmp"]
    assert [each["name"] for each in pod_of(world, "demo-aggregator")["volumes"]] == ["tmp"]
    assert pod_of(world, "demo-router")["volumes"][0]["persistentVolumeClaim"]["readOnly"]


def test_a_package_at_the_root_of_its_claim_needs_no_sub_path():
    world = served(package={"claim": "models"})
    assert "subPath" not in container_of(world, "demo-router")["volumeMounts"][0]
    assert container_of(world, "demo-000")["volumeMounts"][0]["subPath"] == "manifest.json"


@pytest.mark.parametrize("expert", [0, 7, 123, 99999])
def test_an_experts_file_is_where_packages_have_it(expert):
    assert expert_file(expert) == package_expert_file(expert)


def test_loading_is_waited_for_by_the_name_that_processes_answer_to():
    container = container_of(served(), "demo-000")
    assert container["startupProbe"]["grpc"] == {"port": 50052, "service": STARTED}
    assert container["livenessProbe"]["grpc"] == {"port": 50052, "service": STARTED}
    assert container["readinessProbe"]["grpc"] == {"port": 50052}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("demo-000", ExpertSettings), ("demo-router", RouterSettings), ("demo-aggregator", AggregatorSettings)],
)
def test_every_part_understands_the_flags_that_it_is_given(name, kind):
    spec = {"routing": {"deterministic": True}, "experts": {"resources": {"limits": {"cpu": "2"}}}}
    settings = load(kind, container_of(served(**spec), name)["args"], prog="moe", description="")
    assert (settings.name, settings.deterministic, settings.telemetry.metrics_port) == ("$(POD_NAME)", True, 9090)


def test_a_pod_leaves_the_endpoints_before_it_is_told_to_end_and_has_time_to_drain():
    pod = pod_of(served(), "demo-000")
    leave = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = next(int(each.split("=")[1]) for each in pod["containers"][0]["args"] if "drain" in each)
    assert leave >= 3
    assert pod["terminationGracePeriodSeconds"] > leave + drain


def test_a_new_pod_is_ready_before_an_old_one_goes():
    strategy = workloads(served())["demo-000"]["spec"]["strategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": 1, "maxUnavailable": 0}


def test_services_find_exactly_the_pods_of_their_deployments():
    world = served()
    for ref, service in world.objects.items():
        if ref.kind != "Service":
            continue
        name = "demo-router" if ref.name == "demo" else ref.name
        template = workloads(world)[name]["spec"]["template"]["metadata"]["labels"]
        selector = service["spec"]["selector"]
        assert selector.items() <= template.items()
        others = [
            body["spec"]["template"]["metadata"]["labels"] for key, body in workloads(world).items() if key != name
        ]
        assert not any(selector.items() <= labels.items() for labels in others)


def test_peers_choose_replicas_themselves_and_clients_get_one_address():
    world = served()
    headless = {ref.name for ref, body in world.objects.items() if body.get("spec", {}).get("clusterIP") == "None"}
    assert headless == {"demo-000", "demo-001", "demo-002", "demo-003", "demo-aggregator"}


def test_a_gpu_is_asked_for_beside_what_else_is_asked_for():
    world = served(experts={"gpus": 2, "resources": {"limits": {"memory": "4Gi"}}})
    assert container_of(world, "demo-000")["resources"]["limits"] == {"memory": "4Gi", GPU: "2"}
    assert GPU not in str(container_of(world, "demo-router"))


def test_without_gpus_an_expert_runs_anywhere():
    assert GPU not in str(pod_of(served(), "demo-000"))


def test_threads_follow_the_processors_a_pod_may_use():
    world = served(experts={"resources": {"limits": {"cpu": "4"}}})
    assert "--threads=4" in container_of(world, "demo-000")["args"]
    assert {"name": "OMP_WAIT_POLICY", "value": "PASSIVE"} in container_of(world, "demo-000")["env"]


def test_replicas_of_a_group_spread_over_nodes_but_may_share_one():
    (constraint,) = pod_of(served(), "demo-000")["topologySpreadConstraints"]
    assert (constraint["topologyKey"], constraint["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert constraint["labelSelector"]["matchLabels"]["moe.dev/group"] == "demo-000"


def test_a_disruption_budget_never_blocks_a_node_for_good():
    world = served()
    budgets = [body["spec"] for ref, body in world.objects.items() if ref.kind == "PodDisruptionBudget"]
    assert {each["maxUnavailable"] for each in budgets} == {1}


def test_routers_may_watch_who_serves_and_nothing_else():
    rules = served().objects[Ref("Role", "demo-discovery")]["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert sorted(name for rule in rules for name in rule["resources"]) == ["endpointslices", "moeexperts", "moemodels"]


def test_experts_and_inspection_have_no_rights():
    subjects = served().objects[Ref("RoleBinding", "demo-discovery")]["subjects"]
    assert [each["name"] for each in subjects] == ["demo-router", "demo-aggregator"]


def test_an_embedded_aggregator_is_no_deployment_and_the_router_is_told():
    world = served(aggregator={"placement": "embedded"})
    assert "demo-aggregator" not in workloads(world)
    assert "--aggregator=embedded" in container_of(world, "demo-router")["args"]


def test_names_stay_within_kubernetes_bounds_for_the_longest_model():
    world = SmallWorld(name="a" * 40, facts={**FACTS, "experts": 200})
    world.settle()
    replica_set = "-abcdefghij"
    assert max(len(ref.name) for ref in world.objects) <= 63 - len(replica_set)
