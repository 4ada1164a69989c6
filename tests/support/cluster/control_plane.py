"""How etcd, the API server, the controllers and the scheduler are called."""

from collections.abc import Sequence
from pathlib import Path

from .network import API_PORT, NODE_ADDRESS, POD_RANGE, SERVICE_RANGE
from .places import Places

_ETCD = "http://127.0.0.1:2379"
_ETCD_PEER = "http://127.0.0.1:2380"

Command = list[str | Path]


def commands(places: Places, binaries: Path) -> dict[str, Command]:
    """By name, in the order of their start."""
    return {
        "etcd": _etcd(places, binaries),
        "apiserver": _apiserver(places, binaries),
        "controller-manager": _controller_manager(places, binaries),
        "scheduler": [binaries / "kube-scheduler", *_client(places, "scheduler")],
    }


def _etcd(places: Places, binaries: Path) -> Command:
    """Without fsync: what a killed etcd had written is in the kernel's hands; only a crash of the machine loses it."""
    return [
        binaries / "etcd",
        f"--data-dir={places.root / 'etcd'}",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        f"--listen-peer-urls={_ETCD_PEER}",
        f"--initial-advertise-peer-urls={_ETCD_PEER}",
        f"--initial-cluster=default={_ETCD_PEER}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _apiserver(places: Places, binaries: Path) -> Command:
    """Kubelet is found by address: nobody resolves the node's name."""
    pki = places.pki
    return [
        binaries / "kube-apiserver",
        f"--etcd-servers={_ETCD}",
        f"--secure-port={API_PORT}",
        f"--advertise-address={NODE_ADDRESS}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki / 'service-account.key'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet-client.key'}",
        "--profiling=false",
    ]


def _controller_manager(places: Places, binaries: Path) -> Command:
    pki = places.pki
    return [
        binaries / "kube-controller-manager",
        *_client(places, "controller-manager"),
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki / 'service-account.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        f"--cluster-cidr={POD_RANGE}",
        "--allocate-node-cidrs=false",
    ]


def _client(places: Places, user: str) -> Sequence[str]:
    """One of each: no leader to elect, and a restart acts at once."""
    return f"--kubeconfig={places.kubeconfig(user)}", "--leader-elect=false", "--bind-address=127.0.0.1"
