"""A router in a real cluster sends where the cluster says, and as the MoEModel wishes, within a second or two."""

import contextlib
import os
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import pytest
from support.cluster.client import Kube, Namespace, wait_until
from support.cluster_models import SMALL, START_S, forwarded, tiny_model, until_condition
from support.load import Load
from support.streams import Clients, request

pytestmark = pytest.mark.timeout(900)
"""Pods start in seconds, on a machine with other work in minutes."""

GROUP = "demo-g000"
PROMPT = [5, 6, 7, 8]
SEEN_WITHIN_S = 1.0
HEEDED_WITHIN_S = 2.0
_ROWS = re.compile(r"^moe_expert_rows_total (\S+)$", re.MULTILINE)


@dataclass
class Served:
    """A model that answers, in a namespace, and the way in."""

    namespace: Namespace
    clients: Clients

    def pods(self) -> list[str]:
        """Of the group, leaving ones not counted, that run."""
        found = self.namespace.list("pods", f"moe.dev/group={GROUP}")
        return [
            each["metadata"]["name"]
            for each in found
            if "deletionTimestamp" not in each["metadata"] and each["status"]["phase"] == "Running"
        ]

    def scale(self, replicas: int) -> None:
        self.namespace.kubectl("scale", f"moeexpert/{GROUP}", f"--replicas={replicas}")

    def load(self) -> Load:
        """Requests one after another for as long as the block runs."""
        return Load(self.clients, [PROMPT], 16, every_s=0)

    @contextlib.contextmanager
    def rows_of(self, pod: str) -> Iterator[Callable[[], float]]:
        """Reads how many rows a pod has computed."""
        with forwarded(self.namespace, f"pod/{pod}", 9090) as address:

            def read() -> float:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
                    found = _ROWS.search(page.read().decode())
                return float(found[1]) if found else 0.0

            yield read


@pytest.fixture(scope="module")
def served(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("follows")
    with (
        tiny_model(kube, f"follows-{os.getpid()}", directory, aggregator={"resources": SMALL}) as namespace,
        forwarded(namespace) as address,
    ):
        clients = Clients(address)
        yield Served(namespace, clients)
        clients.close()


def test_a_new_replica_computes_rows_within_a_second_of_being_ready(served: Served) -> None:
    before = set(served.pods())
    with served.load() as load:
        served.scale(2)
        wait_until(lambda: bool(set(served.pods()) - before), "no second pod runs", START_S)
        (pod,) = set(served.pods()) - before
        with served.rows_of(pod) as rows:
            served.namespace.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=200s", timeout_s=210)
            at_first, began = rows(), time.monotonic()
            wait_until(lambda: rows() > at_first, "the new replica computes nothing", SEEN_WITHIN_S, every_s=0.02)
            print(f"rows after {time.monotonic() - began:.3f} s")
    load.check()


def test_a_leaving_replica_computes_no_row_once_it_has_left_the_endpoints(served: Served) -> None:
    served.scale(2)
    wait_until(lambda: len(served.pods()) == 2, "no second pod runs", START_S)
    until_condition(served.namespace, "Progressing", "AsWished", patience_s=START_S)
    leaving, staying = served.pods()
    with served.load() as load, served.rows_of(leaving) as left, served.rows_of(staying) as stayed:
        served.namespace.kubectl("delete", "pod", leaving, "--wait=false")
        wait_until(lambda: not in_endpoints(served, leaving), "the pod stays in the endpoints", 10, every_s=0.02)
        time_to_see(SEEN_WITHIN_S)
        last_of_leaving, last_of_staying = left(), stayed()
        wait_until(lambda: stayed() > last_of_staying + 20, "the other replica computes nothing", 30)
        assert left() == last_of_leaving
    load.check()


def test_a_policy_that_is_edited_acts_on_the_next_request_without_a_restart(served: Served) -> None:
    router = served.namespace.list("pods", "moe.dev/component=router")[0]["metadata"]["uid"]
    served.namespace.kubectl("patch", "moeexpert", GROUP, "--type=merge", "-p", '{"spec":{"replicas":0}}')
    wait_until(lambda: not served.pods(), "the group stays", 120)

    edit = '{"spec":{"routing":{"missingExpert":{"policy":"fail"}}}}'
    served.namespace.kubectl("patch", "moemodel", "demo", "--type=merge", "-p", edit)
    time_to_see(HEEDED_WITHIN_S)
    began = time.monotonic()
    answer = served.clients.ask(request(PROMPT, 16))

    assert answer.error is not None
    assert answer.error.code() is grpc.StatusCode.UNAVAILABLE
    assert time.monotonic() - began < 30, "it waited, as the policy was before"
    assert served.namespace.list("pods", "moe.dev/component=router")[0]["metadata"]["uid"] == router


def in_endpoints(served: Served, pod: str) -> bool:
    """Whether Kubernetes lists the pod as ready."""
    slices = served.namespace.list("endpointslices", f"moe.dev/group={GROUP}")
    endpoints = [each for found in slices for each in found.get("endpoints") or ()]
    return any(each["targetRef"]["name"] == pod and each["conditions"].get("ready") for each in endpoints)


def time_to_see(seconds: float) -> None:
    """Lets the time pass that a promise allows: what is asserted afterwards is that nothing happens any more."""
    threading.Event().wait(seconds)
