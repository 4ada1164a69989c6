"""A deployment in real processes for tests of the router's: two expert groups, routers, unix sockets.

Processes are started with `python -m`, as an operator would; the directory file is written by the test.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from moe.api.control.v1 import control_pb2, control_pb2_grpc
from moe.api.inference.v1 import inference_pb2_grpc
from moe.discovery.directory import AggregatorReplica, ExpertReplica, Snapshot
from moe.discovery.file import write
from moe.models.package import Package
from moe.runtime.server_settings import client_options

PATIENCE_S = 120.0
SERVING = health_pb2.HealthCheckResponse.SERVING


def start(module: str, log: Path, *words: str) -> "subprocess.Popen[bytes]":
    """A process of a part; its output goes to the log."""
    with log.open("ab") as output:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        return subprocess.Popen(
            [sys.executable, "-m", module, *words], env=environ, stdout=output, stderr=subprocess.STDOUT
        )


class Deployment:
    """Expert replicas, routers and one aggregator by name. The directory lists as ready whoever the test says is."""

    def __init__(
        self, package: Path, folder: Path, replicas: Sequence[int] = (1, 1), flags: Sequence[str] = ()
    ) -> None:
        """replicas: of group 0 (even experts) and of group 1 (odd experts). flags: for every process."""
        self.package, self.folder, self.flags = package, folder, flags
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._channels: dict[str, grpc.Channel] = {}
        experts = range(Package.open(package, verify="none").manifest.expert_count)
        self.replicas = {
            f"g{group}-{number}": ExpertReplica(
                f"g{group}-{number}",
                f"g{group}",
                tuple(expert for expert in experts if expert % 2 == group),
                f"unix:{folder}/g{group}-{number}.sock",
                ready=True,
            )
            for group, count in enumerate(replicas)
            for number in range(count)
        }
        self._version = 0
        self.list_ready(())

    def address(self, name: str) -> str:
        """Where a router or the aggregator listens."""
        return f"unix:{self.folder}/{name}.sock"

    def start_expert(self, name: str) -> None:
        """Starts an expert replica and waits until it serves."""
        replica = self.replicas[name]
        words = ("--package", str(self.package), "--experts", ",".join(map(str, replica.experts)), "--name", name)
        words = (*words, "--group", replica.group, "--listen", replica.endpoint, *self.flags)
        self.processes[name] = start("moe.expert", self.folder / f"{name}.log", *words)

    def start_aggregator(self) -> None:
        """Starts agg-0."""
        words = ("--name", "agg-0", "--listen", self.address("agg-0"), "--discovery", f"file:{self._directory}")
        self.processes["agg-0"] = start("moe.aggregator", self.folder / "agg-0.log", *words, *self.flags)

    def start_router(self, name: str, *more: str) -> None:
        """Starts a router."""
        words = ("--package", str(self.package), "--name", name, "--listen", self.address(name))
        words = (*words, "--discovery", f"file:{self._directory}")
        self.processes[name] = start("moe.router", self.folder / f"{name}.log", *words, *self.flags, *more)

    @property
    def _directory(self) -> Path:
        return self.folder / "directory.json"

    def list_ready(self, names: Sequence[str]) -> None:
        """Writes the directory; other experts are listed as not ready, the aggregator always as ready."""
        self._version += 1
        listed = tuple(
            ExpertReplica(r.name, r.group, r.experts, r.endpoint, ready=r.name in names) for r in self.replicas.values()
        )
        aggregator = AggregatorReplica("agg-0", self.address("agg-0"), ready=True)
        write(self._directory, Snapshot(self._version, "tiny", listed, (aggregator,)))

    def wait(self, address: str, status: int = SERVING) -> None:
        """Until the health of an address says so."""
        until = time.monotonic() + PATIENCE_S
        while self.health(address) != status:
            if time.monotonic() > until:
                logs = "\n".join(log.read_text()[-1500:] for log in self.folder.glob("*.log"))
                raise TimeoutError(f"{address} did not say {status}\n{logs}")
            time.sleep(0.02)

    def health(self, address: str) -> int:
        """What it says now; -1 when nobody answers."""
        with grpc.insecure_channel(address, options=client_options()) as channel:
            try:
                return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2).status
            except grpc.RpcError:
                return -1

    def restore(self) -> None:
        """Starts the aggregator and every expert that is not running, waits until all serve, lists them as ready."""
        if "agg-0" not in self.processes or self.processes["agg-0"].poll() is not None:
            self.start_aggregator()
        for name in self.replicas:
            if name not in self.processes or self.processes[name].poll() is not None:
                self.start_expert(name)
        for endpoint in (*(replica.endpoint for replica in self.replicas.values()), self.address("agg-0")):
            self.wait(endpoint)
        self.list_ready(tuple(self.replicas))

    def stub(self, router: str = "router-0") -> inference_pb2_grpc.InferenceServiceStub:
        """A client of a router."""
        return inference_pb2_grpc.InferenceServiceStub(self._channel(router))

    def stats(self, router: str = "router-0") -> control_pb2.RouterStats:
        """A router's figures."""
        return control_pb2_grpc.ControlServiceStub(self._channel(router)).Stats(control_pb2.StatsRequest()).router

    def wait_without(self, group: str, router: str) -> None:
        """Until the router sees that a group has no ready replica, and no other; empty: that all have one."""
        stub, until = control_pb2_grpc.ControlServiceStub(self._channel(router)), time.monotonic() + PATIENCE_S
        while stub.Describe(control_pb2.DescribeRequest()).facts.get("groups_without_replica", "") != group:
            if time.monotonic() > until:
                raise TimeoutError(f"{router} does not see that {group or 'no group'} has no replica")
            time.sleep(0.02)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Ends a process; its exit code."""
        self.processes[name].send_signal(number)
        return self.processes[name].wait(PATIENCE_S)

    def close(self) -> None:
        """Ends everything."""
        for channel in self._channels.values():
            channel.close()
        for process in self.processes.values():
            process.kill()
            process.wait(PATIENCE_S)

    def _channel(self, router: str) -> grpc.Channel:
        if router not in self._channels:
            self._channels[router] = grpc.insecure_channel(self.address(router), options=client_options())
        return self._channels[router]
