"""How to tell that a process of the cluster serves: each in its own way, asked inside the namespace where need be."""

import contextlib
import http.client
import socket
from collections.abc import Callable

from . import dns, network, node
from .api import Api, RefusedError
from .commands import run
from .errors import ClusterError
from .places import Places

_KUBELET_HEALTH_PORT = 10248

Condition = tuple[Callable[[], bool], float]
"""Whether it serves, and how many seconds it may take to."""


class Readiness:
    """Of one cluster's processes. relay_port: where the API server is reached from outside."""

    def __init__(self, places: Places, relay_port: Callable[[], int]) -> None:
        self._places = places
        self._relay_port = relay_port

    def conditions(self) -> dict[str, Condition]:
        """By process; one that is not here has nothing to wait for."""
        return {
            "etcd": (lambda: self._serves("127.0.0.1", 2379, "/health"), 30),
            "apiserver": (self._api_server, 60),
            "relay": (self._relay, 10),
            "containerd": (self._containerd, 30),
            "dns": (lambda: self._serves(network.NODE_ADDRESS, node.DNS_READY_PORT, "/ready"), 30),
            "kubelet": (self._kubelet, 60),
            # a pod that asks before kube-proxy wrote the rule would wait long: its question is lost, not refused
            "proxy": (self._dns_service, 60),
        }

    def _serves(self, host: str, port: int, path: str) -> bool:
        def ask() -> bool:
            connection = http.client.HTTPConnection(host, port, timeout=1)
            try:
                connection.request("GET", path)
                return connection.getresponse().status == 200
            finally:
                connection.close()

        with contextlib.suppress(OSError, http.client.HTTPException):
            return network.inside(self._places.namespace, ask)
        return False

    def _api_server(self) -> bool:
        """Asked inside: the relay comes later."""
        api = Api(network.NODE_ADDRESS, network.API_PORT, self._places.pki, "admin")
        with contextlib.suppress(OSError, RefusedError):
            return network.inside(self._places.namespace, lambda: api.request("GET", "/readyz")) == "ok"
        return False

    def _relay(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._relay_port()), timeout=1):
            return True
        return False

    def _containerd(self) -> bool:
        with contextlib.suppress(ClusterError):
            return bool(run(["ctr", "-a", self._places.containerd_socket, "version"], timeout_s=5))
        return False

    def _dns_service(self) -> bool:
        name = "kubernetes.default.svc.cluster.local"
        return network.inside(self._places.namespace, lambda: dns.answers(network.DNS_SERVICE_ADDRESS, name))

    def _kubelet(self) -> bool:
        """Its own word too: what an earlier kubelet said of the node stays until the controllers notice its end."""
        if not self._serves("127.0.0.1", _KUBELET_HEALTH_PORT, "/healthz"):
            return False
        api = Api("127.0.0.1", self._relay_port(), self._places.pki, "admin")
        with contextlib.suppress(OSError, RefusedError):
            conditions = api.get(f"/api/v1/nodes/{node.NAME}")["status"]["conditions"]
            return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        return False
