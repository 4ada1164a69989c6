"""The cluster's one node: containerd, kubelet, kube-proxy and the DNS server, with their configuration.

All state is below the cluster's root, also what these programs would keep in /run or /var: several clusters live side
by side and `down` has nothing to look for.
"""

import json
from pathlib import Path

from . import cgroups, image
from .api import Document
from .commands import run
from .control_plane import Command
from .network import DNS_SERVICE_ADDRESS, NODE_ADDRESS, POD_RANGE
from .places import Places

NAME = "node1"
DNS_READY_PORT = 8181
_DOMAIN = "cluster.local"


def commands(places: Places, binaries: Path) -> dict[str, Command]:
    """By name, in the order of their start; `configure` first."""
    kubelet: Command = [
        binaries / "kubelet",
        f"--config={places.root / 'kubelet.json'}",
        f"--kubeconfig={places.kubeconfig('kubelet')}",
        f"--hostname-override={NAME}",
        f"--node-ip={NODE_ADDRESS}",
        f"--root-dir={places.kubelet}",
    ]
    proxy: Command = [
        binaries / "kube-proxy",
        f"--kubeconfig={places.kubeconfig('proxy')}",
        f"--hostname-override={NAME}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={POD_RANGE}",
        "--conntrack-max-per-core=0",
        "--conntrack-min=0",
    ]
    return {
        "containerd": ["containerd", "--config", places.root / "containerd.toml"],
        "dns": [binaries / "coredns", "-conf", places.root / "Corefile"],
        "kubelet": kubelet,
        "proxy": proxy,
    }


def configure(places: Places, binaries: Path) -> None:
    """Writes the files that these programs read; the same at every start."""
    root = places.root
    for folder in (places.volumes, places.kubelet, places.containerd, root / "cni", root / "pods"):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "containerd.toml").write_text(_containerd(places, binaries))
    (root / "base.json").write_text(_base_spec())
    (root / "cni" / "10-moe.conflist").write_text(json.dumps(_cni(places), indent=1))
    (root / "kubelet.json").write_text(json.dumps(_kubelet(places), indent=1))
    (root / "resolv.conf").write_text(f"nameserver {NODE_ADDRESS}\n")
    (root / "Corefile").write_text(_corefile(places))


def load_image(places: Places, binaries: Path) -> None:
    """Into containerd, which must run."""
    archive = places.root / "image.tar"
    image.write(archive, binaries / "pause")
    run(["ctr", "-a", places.containerd_socket, "-n", "k8s.io", "images", "import", archive])


def _containerd(places: Places, binaries: Path) -> str:
    """restrict_oom_score_adj: without CAP_SYS_RESOURCE runc may not lower it, and would fail."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    state = places.containerd
    return f"""
version = 2
root = "{state}/root"
state = "{state}/run"
[grpc]
  address = "{places.containerd_socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{state}/opt"
[{cri}]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "{image.PAUSE}"
[{cri}.cni]
  bin_dir = "{binaries}/cni"
  conf_dir = "{places.root}/cni"
[{cri}.containerd]
  snapshotter = "overlayfs"
[{cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "{places.root}/base.json"
[{cri}.containerd.runtimes.runc.options]
  Root = "{state}/runc"
"""


def _base_spec() -> str:
    """containerd's own default and the binds: what each container starts from."""
    spec = json.loads(run(["ctr", "oci", "spec"]))
    options = ["rbind", "ro", "nosuid", "nodev"]
    for there, here in image.binds().items():
        spec["mounts"].append({"destination": str(there), "source": str(here), "type": "bind", "options": options})
    return json.dumps(spec, indent=1)


def _cni(places: Places) -> Document:
    """One bridge; it enforces no NetworkPolicy."""
    ipam = {
        "type": "host-local",
        "dataDir": str(places.root / "addresses"),
        "ranges": [[{"subnet": POD_RANGE}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True, "ipam": ipam}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": places.namespace, "plugins": [bridge, ports]}


def _kubelet(places: Places) -> Document:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(places.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(places.pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(places.pki / "kubelet.key"),
        **cgroups.driver_settings(),
        "cgroupRoot": f"/{places.cgroup}",
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{places.containerd_socket}",
        "podLogsDir": str(places.root / "pods"),
        "resolvConf": str(places.root / "resolv.conf"),
        "clusterDNS": [DNS_SERVICE_ADDRESS],
        "clusterDomain": _DOMAIN,
        "maxPods": 250,
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "containerLogMaxSize": "10Mi",
    }


def _corefile(places: Places) -> str:
    """A process of the node rather than pods: it must answer before the first pod asks."""
    return f""".:53 {{
  bind {NODE_ADDRESS}
  errors
  ready {NODE_ADDRESS}:{DNS_READY_PORT}
  kubernetes {_DOMAIN} in-addr.arpa {{
    kubeconfig {places.kubeconfig("dns")}
  }}
  cache 5
}}
"""
