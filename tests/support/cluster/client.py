"""What tests do to a cluster, this project's own or any that a kubeconfig names: kubectl, helm, and waiting."""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .api import Document
from .commands import run
from .errors import ClusterError

ENFORCED = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest"}
"""Labels of a namespace in which the API server refuses every pod that is not "restricted"."""


@dataclass(frozen=True)
class Kube:
    """A cluster as its administrator sees it. image: of pods that run moe's services."""

    kubeconfig: Path
    kubectl_program: Path
    helm_program: Path
    image: str

    def kubectl(self, *argv: str, feed: str | None = None, timeout_s: float = 60) -> str:
        """What it printed. Raises ClusterError."""
        return run([self.kubectl_program, "--kubeconfig", self.kubeconfig, *argv], feed=feed, timeout_s=timeout_s)

    def helm(self, *argv: str, timeout_s: float = 120) -> str:
        """What it printed. Raises ClusterError."""
        return run([self.helm_program, "--kubeconfig", self.kubeconfig, *argv], timeout_s=timeout_s)

    def in_namespace(self, name: str) -> "Namespace":
        """That namespace, which must exist."""
        return Namespace(self, name)

    @contextlib.contextmanager
    def new_namespace(self, name: str) -> Iterator["Namespace"]:
        """Made with Pod Security "restricted" enforced; deleted at the end with all that is in it, without waiting."""
        metadata = {"name": name, "labels": ENFORCED}
        document = json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        self.kubectl("create", "-f", "-", feed=document)
        namespace = self.in_namespace(name)
        try:
            # pods are refused until the controllers have made the account that they run as
            wait_until(lambda: namespace.exists("serviceaccount", "default"), f"no default account in {name}", 30)
            yield namespace
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false")


@dataclass(frozen=True)
class Namespace:
    """One namespace of a cluster."""

    kube: Kube
    name: str

    def kubectl(self, *argv: str, feed: str | None = None, timeout_s: float = 60) -> str:
        """With this namespace as the default."""
        return self.kube.kubectl("--namespace", self.name, *argv, feed=feed, timeout_s=timeout_s)

    def helm(self, *argv: str, timeout_s: float = 120) -> str:
        """With this namespace as the default."""
        return self.kube.helm("--namespace", self.name, *argv, timeout_s=timeout_s)

    def apply(self, *documents: Document) -> None:
        """Server-side, as kubectl."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", feed=json.dumps(items))

    def get(self, kind: str, name: str) -> Document:
        """The object. Raises ClusterError when there is none."""
        return json.loads(self.kubectl("get", kind, name, "-o", "json"))  # type: ignore[no-any-return]

    def list(self, kind: str, selector: str = "") -> list[Document]:
        """All of that kind, or those with the labels."""
        argv = ["get", kind, "-o", "json", *(["-l", selector] if selector else [])]
        return json.loads(self.kubectl(*argv))["items"]  # type: ignore[no-any-return]

    def exists(self, kind: str, name: str) -> bool:
        """Whether the object is there."""
        return bool(self.kubectl("get", kind, name, "--ignore-not-found", "-o", "name").strip())

    def roll_out(self, workload: str, patience_s: float = 60) -> None:
        """Waits until all replicas of `deployment/NAME` run and are ready. Raises ClusterError."""
        self.kubectl("rollout", "status", workload, f"--timeout={patience_s:g}s", timeout_s=patience_s + 10)

    def account(self) -> Iterator[str]:
        """What happened here, for a failed test: objects, events, each container's log, this run's and the last's."""
        for kinds in ("all,pvc,endpointslices", "moe"):
            yield self._try("get", kinds, "-o", "wide")
        yield self._try("get", "events", "--sort-by=.metadata.creationTimestamp")
        for pod in self._pods():
            for previous in (["--previous"], []):
                log = self._try("logs", pod, "--all-containers", "--prefix", "--tail=60", *previous)
                if previous and log.startswith("kubectl: "):
                    continue
                yield f"--- {pod} {' '.join(previous)}\n{log}"

    def _pods(self) -> Iterable[str]:
        names = self._try("get", "pods", "-o", "name")
        return [] if names.startswith("kubectl: ") else names.split()

    def _try(self, *argv: str) -> str:
        try:
            return self.kubectl(*argv)
        except ClusterError as error:
            return f"kubectl: {error}"


def wait_until(condition: Callable[[], bool], complaint: str, patience_s: float = 30, every_s: float = 0.1) -> None:
    """Raises ClusterError when the condition does not become true in time."""
    until = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > until:
            raise ClusterError(f"{complaint} after {patience_s:g} s")
        time.sleep(every_s)
