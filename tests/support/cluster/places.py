"""Where the test cluster keeps things: binaries in a cache outside the tree, each cluster's state in its own folder.

MOE_CACHE (else XDG_CACHE_HOME/moe, else ~/.cache/moe) holds the binaries under cluster/<hash of the pins>. MOE_CLUSTERS
(else /var/lib/moe-clusters) holds the clusters; it must be a real file system, since layers are mounted there.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .errors import ClusterError
from .pins import digest

CHECKOUT = Path(__file__).resolve().parents[3]
"""The tree whose virtual environment and sources the pods run."""

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")


def binaries() -> Path:
    """The folder of this checkout's binaries; it is there only when all of them are."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("MOE_CACHE") or home / "moe") / "cluster" / digest()


def clusters() -> Path:
    """The folder of all clusters."""
    return Path(os.environ.get("MOE_CLUSTERS") or "/var/lib/moe-clusters")


@dataclass(frozen=True)
class Places:
    """Paths of one cluster. Everything that it writes is below root, but its network namespace and cgroups."""

    name: str
    root: Path

    @classmethod
    def of(cls, name: str) -> "Places":
        """Raises ClusterError for a name that can't be part of a namespace's, a cgroup's and a file's name."""
        if not _NAME.fullmatch(name):
            raise ClusterError(f"cluster name {name!r}: want 1 to 20 lower-case letters, digits and -, a letter first")
        return cls(name, clusters() / name)

    @property
    def lock(self) -> Path:
        """Held by whoever starts or ends the cluster; outside root, which `down` removes."""
        return self.root.with_name(f"{self.name}.lock")

    @property
    def namespace(self) -> str:
        """The network namespace's name."""
        return f"moe-{self.name}"

    @property
    def cgroup(self) -> str:
        """Of everything that runs for this cluster, relative to a hierarchy's mount."""
        return f"moe-cluster-{self.name}"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        """One file a process."""
        return self.root / "logs"

    @property
    def containerd(self) -> Path:
        """Images, layers and the runtime's state."""
        return self.root / "containerd"

    @property
    def containerd_socket(self) -> Path:
        """Where kubelet and ctr find containerd."""
        return self.root / "containerd.sock"

    @property
    def kubelet(self) -> Path:
        """Pods' volumes; kubelet mounts there."""
        return self.root / "kubelet"

    @property
    def volumes(self) -> Path:
        """What persistent volumes hold, a folder each."""
        return self.root / "volumes"

    def kubeconfig(self, user: str = "admin") -> Path:
        """`admin` reaches the API server from anywhere on this machine, the others from inside the namespace."""
        return self.root / f"{user}.kubeconfig"

    def pid_file(self, process: str) -> Path:
        """Written by the process itself before it becomes the program."""
        return self.root / "run" / f"{process}.pid"
