"""The cluster's own network: a namespace in which everything of it listens, so that no port or address can collide.

Nothing of the machine's own network changes. Inside, the node's address lies on a veth pair whose other end leads
nowhere: nothing in the cluster reaches anything outside it.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from .commands import run
from .errors import ClusterError

NODE_ADDRESS = "10.10.0.1"
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_SERVICE_ADDRESS = "10.96.0.10"
API_PORT = 6443

_CLONE_NEWNET = 0x40000000
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_BRIDGED_TOO = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
"""Without it Services' rules miss what pods of one node send each other. Comes with a module on most kernels."""

T = TypeVar("T")


def path_of(namespace: str) -> Path:
    """The file by which others enter it."""
    return Path("/run/netns") / namespace


def entering(namespace: str) -> list[str]:
    """What to put before a command. Not `ip netns exec`: that hides the cgroup mounts from kubelet."""
    return ["nsenter", f"--net={path_of(namespace)}"]


def ensure(namespace: str) -> None:
    """Makes what is not there yet; does no harm when all is."""
    path = path_of(namespace)
    if not os.path.ismount(path):
        path.unlink(missing_ok=True)  # what an `ip netns add` leaves that was killed before it mounted
        run(["ip", "netns", "add", namespace])
    ip = ["ip", "-n", namespace]
    run([*ip, "link", "set", "lo", "up"])
    if "node0:" not in run([*ip, "-o", "link", "show"]).replace("@", ":"):
        run([*ip, "link", "add", "node0", "type", "veth", "peer", "name", "node0peer"])
    run([*ip, "address", "replace", f"{NODE_ADDRESS}/24", "dev", "node0"])
    for device in ("node0", "node0peer"):
        run([*ip, "link", "set", device, "up"])
    run([*ip, "route", "replace", "default", "dev", "node0"])
    if not _BRIDGED_TOO.exists():
        run(["modprobe", "br_netfilter"])
    inside(namespace, lambda: [switch.write_text("1") for switch in (_FORWARDING, _BRIDGED_TOO)])


def remove(namespace: str) -> None:
    """With its devices; a namespace that a process still lives in goes with the process."""
    if os.path.ismount(path_of(namespace)):
        run(["ip", "netns", "delete", namespace])
    path_of(namespace).unlink(missing_ok=True)


def enter(namespace: str) -> None:
    """Moves the calling thread, and what it starts from now on, into the namespace; sockets it has stay where they are.

    os.setns comes with Python 3.12. Raises ClusterError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with path_of(namespace).open() as stream:
        if libc.setns(stream.fileno(), _CLONE_NEWNET):
            raise ClusterError(f"can't enter network namespace {namespace}: {os.strerror(ctypes.get_errno())}")


def inside(namespace: str, function: Callable[[], T]) -> T:
    """Calls the function on a thread in the namespace; what it raises is raised here. Sockets it made stay inside."""
    results: list[T] = []
    failures: list[BaseException] = []

    def call() -> None:
        try:
            enter(namespace)
            results.append(function())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=call, name=f"inside-{namespace}")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]
