"""A model that the chart has put on a real cluster answers as transformers does, and goes on while its parts change."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.cluster.client import Kube, Namespace, wait_until
from support.cluster_models import CLAIM, FOLDER, START_S, forwarded, put_package, until_condition
from support.exact_models import ExactModel, make_exact_model
from support.streams import Answer, Clients, request

pytestmark = pytest.mark.timeout(900)
"""Seconds: pods load libraries, on machines that do other things too."""

TOKENS = 24
VALUES = """
model:
  spec:
    package: {{claim: {claim}, subPath: {folder}}}
    router: {{resources: {{requests: {{cpu: 500m, memory: 256Mi}}}}}}
    aggregator: {{resources: {{requests: {{cpu: 200m, memory: 128Mi}}}}}}
    experts:
      perPod: 2
      resources: {{requests: {{cpu: 200m, memory: 128Mi}}}}
    routing: {{deterministic: true}}
"""


@dataclass
class Served:
    """A model on the cluster, its way in, and what it has to answer."""

    namespace: Namespace
    clients: Clients
    exact: ExactModel

    def ask(self) -> list[Answer]:
        """All prompts at once."""
        return self.clients.ask_all([request(prompt, TOKENS) for prompt in self.exact.prompts])

    def ask_while(self, change: Callable[[], None]) -> list[Answer]:
        """All prompts at once, again and again until the change is done, and once after it."""
        answers: list[Answer] = []
        with ThreadPoolExecutor(1) as pool:
            changing = pool.submit(change)
            while not changing.done():
                answers += self.ask()
            changing.result()
        return answers + self.ask()

    def check(self, answers: list[Answer]) -> None:
        """Every request was answered, with transformers' tokens."""
        assert [answer.error for answer in answers] == [None] * len(answers)
        wanted = [drawn[:TOKENS] for drawn in self.exact.drawn]
        assert [answer.tokens for answer in answers] == wanted * (len(answers) // len(wanted))

    def ready(self, expert: str) -> str:
        """As its MoEExpert says: 1/2."""
        return str(self.namespace.get("moeexpert", expert)["status"].get("ready", ""))

    def scale(self, expert: str, replicas: int) -> None:
        """Returns once it is done."""
        self.namespace.kubectl("scale", f"moeexpert/{expert}", f"--replicas={replicas}")
        wanted = f"{replicas}/{replicas}"
        wait_until(lambda: self.ready(expert) == wanted, f"{expert} is not {wanted}", START_S, every_s=0.3)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> ExactModel:
    return make_exact_model("qwen2_moe", torch.float32, tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="module")
def served(kube: Kube, exact: ExactModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    values = tmp_path_factory.mktemp("chart") / "values.yaml"
    values.write_text(VALUES.format(claim=CLAIM, folder=FOLDER))
    repository, _, tag = kube.image.rpartition(":")
    chart = Path(__file__).parents[2] / "charts/moe"
    with kube.new_namespace(f"served-{os.getpid()}") as namespace:
        put_package(namespace, exact.package)
        image = [f"--set=image.repository={repository}", f"--set-string=image.tag={tag}"]
        namespace.helm("install", "moe", str(chart), "--values", str(values), *image, timeout_s=180)
        try:
            until_condition(namespace, "Available", "Serving", patience_s=START_S)
            with forwarded(namespace) as address:
                clients = Clients(address)
                yield Served(namespace, clients, exact)
                clients.close()
        finally:
            print("\n".join(namespace.account()))
            namespace.helm("uninstall", "moe", "--wait", "--timeout=120s", timeout_s=130)


def test_a_model_on_a_cluster_answers_as_transformers_does_in_one_process(served: Served) -> None:
    served.check(served.ask())


def test_an_expert_is_scaled_up_and_down_under_load_without_a_lost_request(served: Served) -> None:
    def there_and_back() -> None:
        served.scale("demo-g001", 2)
        served.scale("demo-g001", 1)

    served.check(served.ask_while(there_and_back))


def test_a_pod_of_a_group_with_two_is_deleted_under_load_without_a_lost_request(served: Served) -> None:
    served.scale("demo-g000", 2)
    pods = [each["metadata"]["name"] for each in served.namespace.list("pods", "moe.dev/group=demo-g000")]

    def delete_one() -> None:
        served.namespace.kubectl("delete", "pod", pods[0], "--wait=false")
        wait_until(lambda: served.ready("demo-g000") == "2/2", "no second pod comes", START_S, every_s=0.3)

    served.check(served.ask_while(delete_one))
    served.scale("demo-g000", 1)


def test_experts_are_rolled_under_load_without_a_lost_request(served: Served) -> None:
    def roll() -> None:
        patch = '{"spec":{"experts":{"resources":{"requests":{"cpu":"210m"}}}}}'
        served.namespace.kubectl("patch", "moemodel", "demo", "--type=merge", "-p", patch)
        until_condition(served.namespace, "Progressing", "RollingOut", patience_s=30)
        until_condition(served.namespace, "Progressing", "AsWished", patience_s=START_S)

    served.check(served.ask_while(roll))


def test_a_model_serves_while_its_operator_is_away(served: Served) -> None:
    served.namespace.kubectl("scale", "deployment/moe-operator", "--replicas=0")
    wait_until(
        lambda: not served.namespace.list("pods", "app.kubernetes.io/component=operator"), "the operator stays", 60
    )
    served.check(served.ask())
    served.namespace.kubectl("scale", "deployment/moe-operator", "--replicas=1")
    served.namespace.roll_out("deployment/moe-operator", 120)


def test_a_group_without_a_pod_is_said_and_its_return_ends_it(served: Served) -> None:
    served.namespace.kubectl("scale", "moeexpert/demo-g001", "--replicas=0")
    said = until_condition(served.namespace, "Available", "ExpertsMissing", patience_s=60)
    assert "scaled to 0: demo-g001 (kubectl scale moeexpert/demo-g001 --replicas=1)" in said
    served.scale("demo-g001", 1)
    until_condition(served.namespace, "Available", "Serving", patience_s=60)
    served.check(served.ask())
