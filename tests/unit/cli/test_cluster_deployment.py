"""A model on a cluster as the table has it: every pod and every group that has none, and why it does not answer."""

import pytest
from moe.cli.cluster.deployment import deployment, ready_routers
from moe.cli.cluster.place import Site
from moe.cli.errors import CliError
from moe.operator import naming
from moe.operator.resources import Condition, write

SITE = Site("dev", "moe")


def model(status="True", reason="Serving", message="a router answers"):
    condition = write(Condition("Available", status, reason, message, "2026-01-01T00:00:00Z"))
    return {
        "metadata": {"name": "demo"},
        "spec": {"package": {"claim": "models", "subPath": "a/demo"}},
        "status": {"conditions": [condition], "endpoint": "demo.moe.svc:50051", "package": {"name": "tiny"}},
    }


def expert(number):
    return {"metadata": {"name": f"demo-00{number}"}, "spec": {"model": "demo", "experts": [number]}}


def pod(component, group="", *, ready=True, started=True, **status):
    port = {"name": naming.GRPC_PORT_NAME, "containerPort": 50052}
    conditions = [{"type": "Ready", "status": str(ready), "message": "" if ready else "containers are unready"}]
    container = {"restartCount": 2, "started": started, "state": {}}
    return {
        "metadata": {"name": f"{group or component}-x", "labels": naming.labels("demo", component, group)},
        "spec": {"containers": [{"ports": [port]}]},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.7",
            "conditions": conditions,
            "containerStatuses": [container],
            **status,
        },
    }


def rows(*pods):
    return {each.name: each for each in deployment(SITE, model(), [expert(0), expert(1)], pods).processes}


def test_experts_come_first_then_aggregators_then_routers_and_jobs_not_at_all():
    pods = [pod("router"), pod("package"), pod("aggregator"), pod("expert", "demo-001"), pod("expert", "demo-000")]
    assert list(rows(*pods)) == ["demo-000-x", "demo-001-x", "aggregator-x", "router-x"]


def test_a_pod_has_its_groups_experts_and_where_it_listens():
    row = rows(pod("expert", "demo-001"))["demo-001-x"]
    assert (row.experts, row.endpoint, row.restarts, row.state) == ((1,), "10.0.0.7:50052", 2, "ready")


def test_a_group_without_a_pod_has_a_row_that_says_so():
    row = rows(pod("expert", "demo-001"))["demo-000"]
    assert (row.state, row.experts, row.reason) == ("stopped", (0,), "the group has no pod")


UNSCHEDULED = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]
BACKING_OFF = [{"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}}]


@pytest.mark.parametrize(
    ("found", "state", "reason"),
    [
        (pod("router", ready=False), "unready", "containers are unready"),
        (pod("router", ready=False, started=False), "starting", ""),
        (pod("router", phase="Pending", conditions=UNSCHEDULED), "waiting", "Unschedulable: 0/1 nodes"),
        (pod("router", ready=False, containerStatuses=BACKING_OFF), "waiting", "CrashLoopBackOff: back-off 40s"),
        (pod("router", phase="Failed", reason="Evicted", message="disk"), "failed", "Evicted: disk"),
    ],
)
def test_a_pod_that_is_not_ready_says_what_it_does_and_why(found, state, reason):
    row = rows(found)["router-x"]
    assert (row.state, row.reason) == (state, reason)


def test_a_pod_that_is_being_deleted_is_no_router_to_talk_to():
    leaving = pod("router")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert rows(leaving)["router-x"].state == "stopping"
    with pytest.raises(CliError, match="its routers have just gone"):
        ready_routers(SITE, model(), [leaving])


def test_a_model_without_a_ready_router_is_said_with_its_condition_and_where_to_look():
    words = (
        r"^context dev, namespace moe: model demo has no ready router: ScaledToZero: nobody; "
        r"see `kubectl --context dev -n moe describe moemodel demo`$"
    )
    with pytest.raises(CliError, match=words):
        ready_routers(SITE, model("False", "ScaledToZero", "nobody"), [pod("router", ready=False)])


def test_what_is_known_of_a_model_stands_above_its_table():
    found = deployment(SITE, model("False", "RouterMissing", "none is ready"), [], [])
    assert (found.name, found.model, found.package) == ("moe/demo", "tiny", "models/a/demo")
    assert (found.address, found.up, found.note) == ("demo.moe.svc:50051", False, "RouterMissing: none is ready")


def test_a_model_that_no_operator_has_seen_says_so():
    new = {**model(), "status": {}}
    assert "is one running?" in deployment(SITE, new, [], []).note
