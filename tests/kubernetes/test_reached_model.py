"""`moe` reaches a model on a cluster by its name alone, and says what stands in the way where it can't."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cluster.client import Kube, Namespace
from support.cluster_models import forwarded, tiny_model, until_condition
from support.streams import Clients, request

pytestmark = pytest.mark.timeout(900)
"""Pods start in seconds, on a machine with other work in minutes."""

PROMPT = [5, 6, 7, 8]
HEEDED_WITHIN_S = 2.0


@dataclass
class Served:
    """A model that answers, and a kubeconfig by which it is reached."""

    namespace: Namespace
    context: str

    def moe(self, *words: str, kubeconfig: Path | None = None) -> "subprocess.CompletedProcess[str]":
        """Runs a command about the model."""
        command = [sys.executable, "-m", "moe.cli.main", *words, "-n", self.namespace.name]
        environ = {**os.environ, "KUBECONFIG": str(kubeconfig or self.namespace.kube.kubeconfig)}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)

    def generated(self, count: int) -> list[int]:
        """Tokens that `moe generate` prints."""
        tokens = ",".join(map(str, PROMPT))
        sampling = ["--temperature", "0", "--ignore-eos", "--max-tokens", str(count)]
        done = self.moe(
            "generate", "--context", self.context, "--model", "demo", "--tokens", tokens, "--json", *sampling
        )
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return [token["id"] for line in lines for token in line.get("tokens", ())]


@pytest.fixture(scope="module")
def served(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("reached")
    with tiny_model(kube, f"reached-{os.getpid()}", directory, aggregator={"placement": "embedded"}) as namespace:
        yield Served(namespace, kube.kubectl("config", "current-context").strip())


def test_a_model_answers_by_its_name_as_through_a_forwarded_port(served: Served) -> None:
    with forwarded(served.namespace) as address:
        clients = Clients(address)
        wanted = clients.ask(request(PROMPT, 24)).tokens
        clients.close()
    assert served.generated(24) == wanted


def test_the_namespaces_only_model_needs_no_name_to_chat_with(served: Served) -> None:
    done = served.moe("tokenize", "--tokens", "5 6")
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def test_status_shows_every_pod_with_what_it_says_of_itself(served: Served) -> None:
    served.generated(8)
    done = served.moe("status", "--context", served.context, "--model", "demo", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    by_role = {each["role"]: each for each in found["processes"]}
    names = {each["metadata"]["name"] for each in served.namespace.list("pods", "moe.dev/model=demo")}
    assert {each["name"] for each in found["processes"]} <= names
    assert (found["up"], found["model"], len(found["wires"])) == (True, "tiny", 1)
    assert {each["state"] for each in found["processes"]} == {"ready"}
    assert sum(each["share"] or 0.0 for each in found["processes"]) == pytest.approx(1.0)
    assert by_role["router"]["resident_bytes"] > 0


def test_the_table_is_that_of_one_machine(served: Served) -> None:
    lines = served.moe("status", "--model", "demo").stdout.splitlines()
    assert lines[0].startswith(f"{served.namespace.name}/demo ")
    assert lines[1].split()[:4] == ["process", "experts", "state", "rows/s"]
    assert lines[2].split()[1:3] == ["0-3", "ready"]


def test_a_topk_that_is_edited_acts_on_the_next_request_within_two_seconds_without_a_restart(served: Served) -> None:
    router = served.namespace.list("pods", "moe.dev/component=router")[0]["metadata"]["uid"]
    with forwarded(served.namespace) as address:
        clients = Clients(address)
        own = clients.score(PROMPT)
        route(served, topK=1)
        threading.Event().wait(HEEDED_WITHIN_S)
        with_one = clients.score(PROMPT)
        route(served, topK=0)
        threading.Event().wait(HEEDED_WITHIN_S)
        again = clients.score(PROMPT)
        clients.close()
    assert with_one != pytest.approx(own, abs=1e-3)
    assert again == pytest.approx(own, abs=1e-5)
    assert served.namespace.list("pods", "moe.dev/component=router")[0]["metadata"]["uid"] == router


def test_a_topk_beyond_the_packages_experts_is_said_and_the_model_goes_on(served: Served) -> None:
    route(served, topK=99)
    said = until_condition(served.namespace, "Degraded", "WishesUnfit")
    assert "routing.topK is 99; want 1 to 8" in said
    assert len(served.generated(4)) == 4
    route(served, topK=0)
    until_condition(served.namespace, "Degraded", "NoFault")


def route(served: Served, **wishes: Any) -> None:
    """Edits spec.routing."""
    patch = json.dumps({"spec": {"routing": wishes}})
    served.namespace.kubectl("patch", "moemodel", "demo", "--type=merge", "-p", patch)


def test_a_model_that_is_not_there_is_said_with_those_that_are(served: Served) -> None:
    done = served.moe("generate", "--context", served.context, "--model", "other", "--prompt", "x")
    place = f"context {served.context}, namespace {served.namespace.name}"
    assert (done.returncode, done.stderr) == (1, f"error: {place}: there is no MoEModel 'other'; there are: demo\n")


def test_a_cluster_that_does_not_answer_is_said(served: Served, tmp_path: Path) -> None:
    dead = edited(
        served, tmp_path, lambda document: document["clusters"][0]["cluster"].update(server="https://127.0.0.1:1")
    )
    done = served.moe("status", "--model", "demo", kubeconfig=dead)
    assert (done.returncode, "the API server https://127.0.0.1:1 does not answer" in done.stderr) == (1, True)


def test_missing_rights_are_said_with_the_rights_that_are_needed(served: Served, tmp_path: Path) -> None:
    account = f"{served.namespace.name}:reader"
    served.namespace.kubectl("create", "serviceaccount", "reader")
    token = served.namespace.kubectl("create", "token", "reader").strip()
    reader = edited(served, tmp_path, lambda document: document["users"][0].update(user={"token": token}))
    nothing = served.moe("generate", "--model", "demo", "--tokens", "5", kubeconfig=reader)
    assert f'moemodels: 403: moemodels.moe.dev is forbidden: User "system:serviceaccount:{account}"' in nothing.stderr

    served.namespace.kubectl("create", "role", "look", "--verb=get,list", "--resource=moemodels,moeexperts,pods")
    served.namespace.kubectl("create", "rolebinding", "look", "--role=look", f"--serviceaccount={account}")
    looking = served.moe("generate", "--model", "demo", "--tokens", "5", kubeconfig=reader)
    assert looking.returncode == 1
    assert "port-forward to pod demo-router-" in looking.stderr
    assert "ask for the right to" in looking.stderr
    assert "create pods/portforward" in looking.stderr


def test_a_model_whose_routers_are_gone_is_said_with_the_condition(served: Served) -> None:
    served.namespace.kubectl("scale", "deployment/demo-router", "--replicas=0")
    until_condition(served.namespace, "Available", "ScaledToZero", patience_s=90)
    done = served.moe("chat", "--context", served.context, "--model", "demo")
    assert "model demo has no ready router: ScaledToZero: " in done.stderr
    assert "kubectl scale deployment/demo-router" in done.stderr


def edited(served: Served, folder: Path, change: Any) -> Path:
    """A kubeconfig of its own."""
    document = yaml.safe_load(served.namespace.kube.kubeconfig.read_text())
    change(document)
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    return file
