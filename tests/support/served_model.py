"""A model that the chart has put on a real cluster, and what tests do to it under load."""

import contextlib
import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moe.operator.naming import METRICS_PORT
from support.cluster.api import Document
from support.cluster.client import Kube, Namespace, wait_until
from support.cluster_models import CLAIM, FOLDER, START_S, forwarded, put_package, until_condition
from support.exact_models import ExactModel
from support.load import Load
from support.streams import Answer, Clients, request

CHART = Path(__file__).parents[2] / "charts" / "moe"
TOKENS = 24
VALUES = """
model:
  spec:
    package: {{claim: {claim}, subPath: {folder}}}
    router: {{resources: {{requests: {{cpu: 500m, memory: 256Mi}}}}}}
    aggregator: {{resources: {{requests: {{cpu: 200m, memory: 128Mi}}}}}}
    experts:
      perPod: 2
      resources: {{requests: {{cpu: {cpu}, memory: 128Mi}}}}
    routing: {{deterministic: true}}
"""


@dataclass
class Served:
    """A model on the cluster, its way in, and what it has to answer. values: file of the release's values."""

    namespace: Namespace
    clients: Clients
    exact: ExactModel
    values: Path

    def ask(self, clients: Clients | None = None) -> list[Answer]:
        """All prompts at once. clients: of another way in."""
        return (clients or self.clients).ask_all([request(prompt, TOKENS) for prompt in self.exact.prompts])

    def check(self, answers: list[Answer]) -> None:
        """Every request was answered, with transformers' tokens."""
        assert [answer.error for answer in answers] == [None] * len(answers)
        assert [answer.tokens for answer in answers] == [drawn[:TOKENS] for drawn in self.exact.drawn]

    @contextlib.contextmanager
    def load(self, clients: Clients | None = None) -> Iterator[Load]:
        """Asks all prompts for as long as the block runs, and once more after it: all are answered, with transformers'
        tokens. clients: of another way in."""
        with Load(clients or self.clients, self.exact.prompts, TOKENS) as load:
            yield load
        load.check(self.exact.drawn)
        self.check(self.ask(clients))

    def column(self, name: str) -> dict[str, str]:
        """A column of `kubectl get moeexperts`, by expert."""
        table = self.namespace.kubectl("get", "moeexperts").splitlines()
        begin = table[0].index(name)
        end = begin + len(name) + len(re.split(r"\S", table[0][begin + len(name) :])[0])
        return {line.split()[0]: line[begin:end].strip() for line in table[1:]}

    def ready(self, expert: str) -> str:
        """As its MoEExpert says: 1/2."""
        return str(self.namespace.get("moeexpert", expert)["status"].get("ready", ""))

    def scale(self, expert: str, replicas: int) -> None:
        """Returns once it is done and pods that leave have come to their end."""
        self.namespace.kubectl("scale", f"moeexpert/{expert}", f"--replicas={replicas}")
        self.until_ready(expert, f"{replicas}/{replicas}")
        wait_until(lambda: len(self.all_pods("expert", expert)) == replicas, f"a pod of {expert} stays", START_S)

    def until_ready(self, expert: str, wanted: str) -> None:
        """Waits until its MoEExpert says so."""
        wait_until(lambda: self.ready(expert) == wanted, f"{expert} is not {wanted}", START_S, every_s=0.3)

    def set_policy(self, policy: str) -> None:
        """About missing experts, in the MoEModel."""
        patch = {"spec": {"routing": {"missingExpert": {"policy": policy}}}}
        self.namespace.kubectl("patch", "moemodel", "demo", "--type=merge", "-p", json.dumps(patch))

    def router_metric(self, name: str) -> float:
        """The sum of a metric's values."""
        with (
            forwarded(self.namespace, port=METRICS_PORT) as address,
            urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as page,
        ):
            lines = page.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[ {{]", line))

    def all_pods(self, component: str, group: str = "") -> list[Document]:
        """Those on their way out too."""
        selector = f"app.kubernetes.io/component={component}" + (f",moe.dev/group={group}" if group else "")
        return self.namespace.list("pods", selector)

    def pods(self, component: str, group: str = "") -> list[Document]:
        """Those that are not on their way out."""
        return [each for each in self.all_pods(component, group) if "deletionTimestamp" not in each["metadata"]]

    def names(self, component: str, group: str = "") -> set[str]:
        """Of those pods."""
        return {str(each["metadata"]["name"]) for each in self.pods(component, group)}

    def until_replaced(self, component: str, before: set[str]) -> None:
        """Waits until none of the pods from before is left and the model is as wished."""
        wait_until(
            lambda: before.isdisjoint(self.names(component)), f"a {component} from before stays", START_S, every_s=0.3
        )
        until_condition(self.namespace, "Progressing", "AsWished", patience_s=START_S)

    def upgrade(self, cpu: str) -> None:
        """To this checkout's chart, with that request of each expert pod."""
        write_values(self.values, cpu)
        flags = release_flags(self.namespace.kube, self.values)
        self.namespace.helm("upgrade", "moe", str(CHART), *flags, timeout_s=180)


def write_values(values: Path, cpu: str = "100m") -> None:
    """The release's, with that request of each expert pod."""
    values.write_text(VALUES.format(claim=CLAIM, folder=FOLDER, cpu=cpu))


def release_flags(kube: Kube, values: Path) -> list[str]:
    """Of helm install and upgrade."""
    repository, _, tag = kube.image.rpartition(":")
    return ["--values", str(values), f"--set=image.repository={repository}", f"--set-string=image.tag={tag}"]


@contextlib.contextmanager
def served_model(
    kube: Kube, name: str, exact: ExactModel, folder: Path, *flags: str, chart: Path = CHART
) -> Iterator[Served]:
    """Installs the chart in a namespace of that name, and yields the model once it answers.

    folder: for the values; flags: more of helm install.
    """
    values = folder / "values.yaml"
    write_values(values)
    with kube.new_namespace(name) as namespace:
        put_package(namespace, exact.package)
        namespace.helm("install", "moe", str(chart), *release_flags(kube, values), *flags, timeout_s=180)
        try:
            until_condition(namespace, "Available", "Serving", patience_s=START_S)
            with forwarded(namespace) as address:
                clients = Clients(address)
                yield Served(namespace, clients, exact, values)
                clients.close()
        finally:
            print("\n".join(namespace.account()))
            namespace.helm("uninstall", "moe", "--wait", "--timeout=120s", timeout_s=130)
