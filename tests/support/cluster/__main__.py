"""python -m tests.support.cluster build | up | down | status | kubeconfig | kill | start

A whole Kubernetes on this machine, for development and tests; see tests/support/cluster/README.md.
"""

import argparse
import os
import shlex
import sys

from . import binaries, packages
from .cluster import Cluster, all_names
from .errors import ClusterError


def main(argv: list[str]) -> int:
    """The exit code: 0, or 1 after an error that was said."""
    options = _parser().parse_args(argv)
    try:
        _act(options)
    except ClusterError as error:
        print(f"cluster: error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.cluster", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("action", choices=["build", "up", "down", "status", "kubeconfig", "kill", "start"])
    parser.add_argument("process", nargs="?", help="for kill and start: one of those that status lists")
    parser.add_argument(
        "--name", default="dev", help="of the cluster (%(default)s); each has its own network and state"
    )
    parser.add_argument("--all", action="store_true", help="down: every cluster on this machine")
    return parser


def _act(options: argparse.Namespace) -> None:
    if os.geteuid() != 0:
        raise ClusterError("network namespaces, cgroups and mounts need root: run it with sudo")
    cluster = Cluster(options.name, _say)
    match options.action:
        case "build":
            packages.ensure(_say)
            _say(f"binaries in {binaries.ensure(_say)}")
        case "up":
            cluster.up()
            _explain(cluster)
        case "down":
            for name in all_names() if options.all else [options.name]:
                Cluster(name).down()
                _say(f"{name} is gone")
        case "status":
            _status(cluster)
        case "kubeconfig":
            print(cluster.kubeconfig)
        case "kill":
            cluster.kill(options.process or "")
        case "start":
            cluster.start(options.process or "")


def _say(line: str) -> None:
    print(f"cluster: {line}", flush=True)


def _explain(cluster: Cluster) -> None:
    programs = binaries.ensure(_say)
    print("\nIts kubectl and helm, and the image of this checkout for its pods, moe.dev/checkout:1:\n")
    print(f"  export KUBECONFIG={cluster.kubeconfig} PATH={programs}:$PATH\n  kubectl get nodes")
    print(f"\nInside its network, where pods and Services answer:\n\n  {shlex.join(cluster.entering())} bash\n")


def _status(cluster: Cluster) -> None:
    print(f"clusters on this machine: {', '.join(all_names()) or 'none'}")
    for name, pid in cluster.states().items():
        print(f"  {name:20} {f'pid {pid}' if pid else 'not running'}")
    print(f"  kubeconfig {cluster.kubeconfig}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
