"""What moe costs on a Kubernetes of this machine: a model's objects, the way to a first token, a new replica's to work.

    moe bench cluster                                   # as root: starts a cluster of its own, and ends it
    moe bench cluster --only first-token replica --into docs/operating.md

Each figure is of one run, as somebody who types the commands sees it. Pods load torch and compete for the cores, so the
load of the machine is most of what differs between two runs; memory, writes and requests don't depend on it.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from moe.models.catalog import find_package
from moe.models.errors import PackageNotFoundError

from benchmarks.document import fenced, publish
from benchmarks.machine import this_machine
from benchmarks.tables import number, table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support import operator_at_size  # noqa: E402
from support.cluster import binaries, image  # noqa: E402
from support.cluster.client import Kube, Namespace, wait_until  # noqa: E402
from support.cluster.cluster import Cluster  # noqa: E402
from support.cluster.errors import ClusterError  # noqa: E402
from support.cluster_models import FOLDER, put_package, until_condition  # noqa: E402
from support.discovered import install_definitions  # noqa: E402
from support.load import Load  # noqa: E402
from support.streams import Clients, request  # noqa: E402

PARTS = ("size", "first-token", "replica")
EXPERTS = 128
GROUP = "demo-003"
PATIENCE_S = 900
PROMPT = (504, 3575, 282, 4649, 314)
"""Token ids that any demo model has; what they say does not matter."""


@dataclass(frozen=True)
class Figure:
    """A row of the table. most: the target, which the value is not to exceed."""

    name: str
    unit: str
    value: float
    most: float


def size(kube: Kube) -> list[Figure]:
    """A model of 128 experts whose pods are not started."""
    install_definitions(kube)
    with kube.new_namespace("size") as namespace, tempfile.TemporaryDirectory(prefix="moe-bench-") as folder:
        cost = operator_at_size.measure(namespace, Path(folder), EXPERTS)
    what = f"{EXPERTS} experts at 0 replicas"
    return [
        Figure(f"{what}: apply to all objects as wished", "s", cost.right_after_s, 60),
        Figure(f"{what}: API writes an object", "", cost.writes_per_object, 3),
        Figure(f"{what}: operator, resident", "MiB", cost.resident_mib, 200),
        Figure(f"{what}: requests of an idle operator", "1/s", cost.idle_requests_per_s, 1),
    ]


def served(cluster: Cluster, kube: Kube, package: Path, parts: Sequence[str]) -> list[Figure]:
    """The demo model by the chart as it stands, an expert a pod, and one expert scaled to two."""
    repository, _, tag = kube.image.rpartition(":")
    flags = [f"--set=image.repository={repository}", f"--set-string=image.tag={tag}"]
    with kube.new_namespace("served") as namespace:
        put_package(namespace, package, size="4Gi")
        began = time.monotonic()
        namespace.helm("install", "moe", str(ROOT / "charts/moe"), *flags, timeout_s=PATIENCE_S)
        until_condition(namespace, "Available", "Serving", patience_s=PATIENCE_S)
        with clients(cluster, namespace) as asking:
            next(iter(asking.stub.Generate(request(PROMPT, 1), timeout=PATIENCE_S)))
            figures = [Figure("helm install to the first token, package ready", "s", time.monotonic() - began, 60)]
            if "replica" in parts:
                figures.append(replica(cluster, namespace, asking))
        namespace.helm("uninstall", "moe", "--wait", f"--timeout={PATIENCE_S}s", timeout_s=PATIENCE_S + 10)
    return figures


def replica(cluster: Cluster, namespace: Namespace, asking: Clients) -> Figure:
    """From `kubectl scale` to the first row that the new pod computes, under a small load."""
    until_condition(namespace, "Progressing", "AsWished", patience_s=PATIENCE_S)
    before = pods(namespace)
    with Load(asking, [PROMPT, PROMPT[::-1]], 16) as load:
        began = time.monotonic()
        namespace.kubectl("scale", f"moeexpert/{GROUP}", "--replicas=2")
        wait_until(lambda: len(pods(namespace)) > len(before), "no second pod has an address", PATIENCE_S)
        (address,) = pods(namespace) - before
        with cluster.reaching(address, 9090) as page:
            wait_until(lambda: rows(page) > 0, "the new pod computes nothing", PATIENCE_S, every_s=0.05)
        took_s = time.monotonic() - began
    load.check()
    return Figure("scale 1 to 2 to the first row of the new replica", "s", took_s, 10)


@contextlib.contextmanager
def clients(cluster: Cluster, namespace: Namespace) -> Iterator[Clients]:
    """By the model's Service."""
    with cluster.reaching(namespace.get("service", FOLDER)["spec"]["clusterIP"], 50051) as address:
        made = Clients(address)
        yield made
        made.close()


def pods(namespace: Namespace) -> set[str]:
    """Addresses of the group's pods."""
    found = namespace.list("pods", f"moe.dev/group={GROUP}")
    return {each["status"]["podIP"] for each in found if each["status"].get("podIP")}


def rows(page: str) -> float:
    """Computed so far by the expert with that page of metrics; 0 while there is none."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{page}/metrics", timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("moe_expert_rows_total "):
                return float(line.split()[1])
    return 0.0


def run(chosen: argparse.Namespace) -> int:
    """Measures what was chosen and prints it."""
    machine = this_machine(("torch", "grpcio", "kopf", "kubernetes"))
    package = find_package(chosen.package) if set(chosen.only) - {"size"} else None
    cluster = Cluster(f"bench-{os.getpid()}", lambda line: print(f"cluster: {line}"))
    # what the tests' parts print of themselves is no part of the answer
    with contextlib.redirect_stdout(sys.stderr):
        figures = measured(cluster, package, chosen.only)
    if chosen.json:
        print(json.dumps({"machine": machine.as_dict(), "figures": [asdict(each) for each in figures]}))
    else:
        publish("cluster", _text(machine.lines(), figures), chosen.into)
    return 0


def measured(cluster: Cluster, package: Path | None, parts: Sequence[str]) -> list[Figure]:
    """All parts that were chosen, on a cluster that is up for them alone."""
    figures: list[Figure] = []
    try:
        cluster.up()
        programs = binaries.ensure(print)
        kube = Kube(cluster.kubeconfig, programs / "kubectl", programs / "helm", image.NAME)
        if package is not None:
            figures += served(cluster, kube, package, parts)
        if "size" in parts:
            figures += size(kube)
    finally:
        cluster.down()
    return figures


def _text(lines: Sequence[str], figures: Sequence[Figure]) -> str:
    rows_of = [[each.name, number(each.value), number(each.most, 1), each.unit] for each in figures]
    return "\n\n".join([fenced(lines), table(["", "measured", "at most", "unit"], rows_of)])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="cluster", description=__doc__.partition("\n")[0])
    made.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="replica takes first-token's model")
    made.add_argument("--package", default="demo", metavar="NAME", help="of the store, or a path; with 8 experts")
    made.add_argument("--json", action="store_true")
    made.add_argument("--into", type=Path, metavar="FILE", help="put the table into this page too")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 when something did not come about."""
    try:
        return run(parser().parse_args(argv))
    except (ClusterError, PackageNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
