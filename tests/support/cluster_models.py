"""Models on a real cluster: a package in a claim, an operator outside the cluster, a way in for clients."""

import contextlib
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.cluster import workloads
from support.cluster.client import Kube, Namespace, wait_until
from support.cluster.errors import ClusterError
from support.discovered import install_definitions
from support.families import write_package
from support.ports import free_port

FOLDER = "demo"
CLAIM = "models"
START_S = 240
"""Longest until a small model answers, on a machine that does other things too."""

SMALL = {"requests": {"cpu": "100m", "memory": "64Mi"}}
Body = dict[str, Any]


def put_package(namespace: Namespace, package: Path, *, folder: str = FOLDER, size: str = "1Gi") -> None:
    """Makes the claim, and copies a package into a folder of it, as docs/operating.md says."""
    holder = workloads.pod("copy-package", namespace.kube.image, ["sleep", "600"], claim=CLAIM, restart="Never")
    namespace.apply(workloads.claim(CLAIM, size), holder)
    namespace.kubectl("wait", "pod/copy-package", "--for=condition=Ready", "--timeout=60s", timeout_s=70)
    namespace.kubectl("cp", str(package), f"copy-package:/data/{folder}", timeout_s=180)
    namespace.kubectl("delete", "pod", "copy-package", "--grace-period=0", "--force")


def model(name: str = "demo", **spec: Any) -> Body:
    """A MoEModel of the package that `put_package` has put there."""
    package = {"claim": CLAIM, "subPath": FOLDER}
    return {
        "apiVersion": "moe.dev/v1alpha1",
        "kind": "MoEModel",
        "metadata": {"name": name},
        "spec": {"package": package, **spec},
    }


def idle_model(name: str = "demo", **spec: Any) -> Body:
    """One whose objects are all made and whose processes are not: for what needs no answer."""
    return model(
        name, **{"router": {"replicas": 0}, "aggregator": {"placement": "embedded"}, "experts": {"replicas": 0}, **spec}
    )


def conditions(namespace: Namespace, name: str = "demo") -> dict[str, tuple[str, str, str]]:
    """type -> (status, reason, message) of a MoEModel."""
    found = namespace.get("moemodel", name).get("status", {}).get("conditions", [])
    return {each["type"]: (each["status"], each["reason"], each["message"]) for each in found}


def until_condition(namespace: Namespace, kind: str, reason: str, *, name: str = "demo", patience_s: float = 60) -> str:
    """Waits until a MoEModel's condition has that reason; returns its message."""
    last: dict[str, tuple[str, str, str]] = {}

    def met() -> bool:
        last.update(conditions(namespace, name))
        return last.get(kind, ("", "", ""))[1] == reason

    try:
        wait_until(met, f"{kind} is not {reason}", patience_s, every_s=0.3)
    except ClusterError as error:
        raise ClusterError(f"{error}: {last}") from error
    return last[kind][2]


@dataclass
class LocalOperator:
    """An operator that runs beside the test, as the cluster's administrator, in one namespace."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def metrics(self) -> dict[str, float]:
        """Its counters and gauges, by name with labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def writes(self) -> float:
        """Objects written so far."""
        return sum(value for name, value in self.metrics().items() if name.startswith("moe_operator_writes_total"))

    def settled(self) -> float:
        """Objects written so far, once nothing more is written for two seconds."""
        counts = [self.writes()]

        def quiet() -> bool:
            counts.append(self.writes())
            return len(counts) > 20 and len(set(counts[-20:])) == 1

        wait_until(quiet, "the operator goes on writing", 60, every_s=0.1)
        return counts[-1]

    def leading(self) -> bool:
        """Whether it acts."""
        with contextlib.suppress(OSError):
            return self.metrics()["moe_operator_leading"] == 1
        return False

    def end(self, *, kill: bool = False) -> int:
        """Ends it; returns its exit code."""
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        return self.process.wait(timeout=30)


@contextlib.contextmanager
def operator(namespace: Namespace, folder: Path, *flags: str, image: str = "") -> Iterator[LocalOperator]:
    """Runs one until the block ends. folder: for its log."""
    port = free_port()
    log = folder / f"operator-{port}.log"
    command = [sys.executable, "-m", "moe.operator", f"--image={image or namespace.kube.image}", "--log-format=text"]
    command += [f"--namespace={namespace.name}", f"--lease-namespace={namespace.name}", f"--port={port}", *flags]
    environ = {**os.environ, "KUBECONFIG": str(namespace.kube.kubeconfig)}
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, text=True, env=environ)
    running = LocalOperator(process, port, log)
    try:
        yield running
    finally:
        if process.poll() is None:
            running.end()
        print(log.read_text()[-6000:])


@contextlib.contextmanager
def forwarded(namespace: Namespace, target: str = "service/demo", port: int = 50051) -> Iterator[str]:
    """Address on this machine of a Service's port, for as long as the block runs."""
    command = [
        str(namespace.kube.kubectl_program),
        "--kubeconfig",
        str(namespace.kube.kubeconfig),
        "-n",
        namespace.name,
    ]
    command += ["port-forward", target, f":{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            if not found:
                raise ClusterError(f"port-forward to {target}: {line.strip()}")
            yield f"127.0.0.1:{found[1]}"
        finally:
            process.terminate()


@contextlib.contextmanager
def tiny_model(kube: Kube, name: str, directory: Path, *, aggregator: Body) -> Iterator[Namespace]:
    """A namespace of that name with an operator and a model of two groups that answers; says how it stood at the end.

    aggregator: its part of the MoEModel's spec.
    """
    package = write_package("qwen2_moe", directory / "tiny")
    install_definitions(kube)
    experts = {"perPod": 4, "resources": SMALL}
    with kube.new_namespace(name) as namespace:
        put_package(namespace, package)
        with operator(namespace, directory):
            namespace.apply(model(router={"resources": SMALL}, aggregator=aggregator, experts=experts))
            try:
                until_condition(namespace, "Available", "Serving", patience_s=START_S)
                yield namespace
            finally:
                print("\n".join(namespace.account()))


def everything(namespace: Namespace, name: str = "") -> list[str]:
    """Names of everything that was made here for models, or for one."""
    workloads_of = "moemodels,moeexperts,deployments,replicasets,pods,jobs,poddisruptionbudgets"
    others = "services,endpointslices,serviceaccounts,roles,rolebindings"
    chosen = f"moe.dev/model={name}" if name else "moe.dev/model"
    listed = namespace.kubectl("get", f"{workloads_of},{others}", "-l", chosen, "-o", "name")
    return sorted(listed.split())
