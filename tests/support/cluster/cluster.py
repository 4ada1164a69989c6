"""One cluster: up, down, and what tests do to it in between.

`up` makes whatever is not there and starts whatever does not run, so it also repairs what was killed, itself included.
`down` ends everything that the cluster's cgroup holds and removes all it wrote, however far `up` had come.
"""

import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from . import addons, binaries, cgroups, control_plane, kubeconfig, mounts, network, node, packages, pki, relay
from .api import Api
from .binaries import Say
from .commands import run
from .errors import ClusterError
from .places import CHECKOUT, Places, clusters
from .processes import Processes
from .readiness import Readiness

_API_IN_NAMESPACE = f"https://{network.NODE_ADDRESS}:{network.API_PORT}"
_CNI_RESULTS = Path("/var/lib/cni/results")
_CONTAINER_LOG_LINKS = Path("/var/log/containers")
_INSIDE_USERS = ("controller-manager", "scheduler", "kubelet", "proxy", "dns")


def quiet(line: str) -> None:
    """Says nothing."""
    del line


class Cluster:
    """A name is a cluster: objects of the same name mean the same one."""

    def __init__(self, name: str, say: Say = quiet) -> None:
        self.places = Places.of(name)
        self.processes = Processes(self.places)
        self._say = say

    @property
    def kubeconfig(self) -> Path:
        """Of its administrator; works anywhere on this machine."""
        return self.places.kubeconfig()

    def up(self) -> None:
        """Raises ClusterError; what was started by then stays for a look, or for `down`."""
        packages.ensure(self._say)
        programs = binaries.ensure(self._say)
        with binaries.exclusive(self.places.lock):
            self._say(f"starting cluster {self.places.name} in {self.places.root}")
            self._prepare(programs)
            self._start_control_plane(programs)
            self._start_node(programs)
        self._say(f"cluster {self.places.name} is up")

    def down(self) -> None:
        """Also of a cluster that is half there, or not at all."""
        with binaries.exclusive(self.places.lock):
            cgroups.kill(self.places.cgroup)
            mounts.undo(self.places.root)
            network.remove(self.places.namespace)
            cgroups.remove(self.places.cgroup)
            self._remove_traces()
            if self.places.root.exists():
                shutil.rmtree(self.places.root)
            self.places.lock.unlink(missing_ok=True)

    def kill(self, process: str, sign: signal.Signals = signal.SIGKILL) -> None:
        """Of names(), as a fault: nothing but `up` or `start` brings it back."""
        self._check(process)
        self.processes.kill(process, sign)

    def start(self, process: str) -> None:
        """Starts that one process again and waits until it serves."""
        self._check(process)
        argv = self._commands(binaries.ensure(self._say))[process]
        self.processes.start(process, argv, outside=process in {"relay", "provisioner"})
        conditions = Readiness(self.places, self._port).conditions()
        if process in conditions:
            self.processes.wait(process, *conditions[process])

    @contextlib.contextmanager
    def reaching(self, host: str, port: int) -> Iterator[str]:
        """Address on this machine of one inside, while the block runs; needs neither API server nor kubelet."""
        argv = [sys.executable, "-m", _module("relay"), self.places.namespace, "0", host, str(port)]
        with subprocess.Popen(argv, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield process.stdout.readline().strip()
            finally:
                process.terminate()

    def kill_container(self, container: str) -> None:
        """With SIGKILL, as a fault. container: its id as a pod's status has it, containerd://..."""
        name = container.removeprefix("containerd://")
        socket = f"{self.places.containerd_socket}"
        run(["ctr", "-a", socket, "-n", "k8s.io", "task", "kill", "--signal", "SIGKILL", name])

    def states(self) -> dict[str, int | None]:
        """The pid of each process, None when it does not run."""
        return {name: self.processes.pid(name) for name in self.names()}

    def names(self) -> list[str]:
        """Its processes, in the order of their start."""
        return list(self._commands(Path()))

    def entering(self) -> list[str]:
        """What to put before a command to run it in the cluster's network, where pods and Services answer."""
        return network.entering(self.places.namespace)

    def kubectl(self, *argv: str, feed: str | None = None, timeout_s: float = 60) -> str:
        """What the administrator's kubectl printed. Raises ClusterError."""
        program = binaries.ensure(self._say) / "kubectl"
        return run([program, "--kubeconfig", self.kubeconfig, *argv], feed=feed, timeout_s=timeout_s)

    def api(self, identity: str = "admin") -> Api:
        """Plain requests, from anywhere on this machine."""
        return Api("127.0.0.1", self._port(), self.places.pki, identity)

    def _prepare(self, programs: Path) -> None:
        places = self.places
        places.root.mkdir(parents=True, exist_ok=True)
        cgroups.ensure(places.cgroup)
        network.ensure(places.namespace)
        pki.ensure(places.pki, pki.identities(node.NAME))
        for user in _INSIDE_USERS:
            kubeconfig.write(places.kubeconfig(user), _API_IN_NAMESPACE, places.pki, user)
        kubeconfig.write(self.kubeconfig, f"https://127.0.0.1:{self._port()}", places.pki, "admin")
        node.configure(places, programs)

    def _start_control_plane(self, programs: Path) -> None:
        for name in ("etcd", "apiserver", "relay"):
            self.start(name)
        self._apply(addons.documents())
        for name in ("controller-manager", "scheduler", "provisioner"):
            self.start(name)

    def _start_node(self, programs: Path) -> None:
        self.start("containerd")
        node.load_image(self.places, programs)
        # kubelet before kube-proxy, which waits for the node's object, and for half a minute if it is not there yet
        for name in ("dns", "kubelet", "proxy"):
            self.start(name)

    def _commands(self, programs: Path) -> dict[str, control_plane.Command]:
        places = self.places
        python = [sys.executable, "-m"]
        commands = control_plane.commands(places, programs)
        commands["relay"] = [*python, _module("relay"), places.namespace, str(self._port())]
        commands["provisioner"] = [*python, _module("provisioner"), str(self._port()), places.pki, places.volumes]
        return {**commands, **node.commands(places, programs)}

    def _apply(self, documents: str) -> None:
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", feed=documents)

    def _port(self) -> int:
        """Of the relay: the same for the cluster's life, so that a kubeconfig stays good."""
        path = self.places.root / "port"
        with contextlib.suppress(OSError, ValueError):
            return int(path.read_text())
        with relay.listening(0) as probe:
            port = int(probe.getsockname()[1])
        if self.places.root.is_dir():
            path.write_text(str(port))
        return port

    def _check(self, process: str) -> None:
        if process not in self.names():
            raise ClusterError(f"no process {process!r}; there are {', '.join(self.names())}")

    def _remove_traces(self) -> None:
        """What the programs write outside the root whatever they are told: sockets, cached results, links."""
        for address in self.places.containerd.glob("run/io.containerd.runtime.v2.task/*/*/address"):
            with contextlib.suppress(OSError):
                Path(address.read_text().removeprefix("unix://")).unlink(missing_ok=True)
        for result in _CNI_RESULTS.glob(f"{self.places.namespace}-*"):
            result.unlink(missing_ok=True)
        for link in _CONTAINER_LOG_LINKS.glob("*"):
            if link.is_symlink() and link.readlink().is_relative_to(self.places.root):
                link.unlink(missing_ok=True)


def _module(name: str) -> str:
    """Of this folder, as Python finds it from the checkout."""
    return f"{Path(__file__).parent.relative_to(CHECKOUT)}/{name}".replace("/", ".")


def all_names() -> list[str]:
    """Of the clusters that left anything on this machine."""
    folder = clusters()
    return sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
