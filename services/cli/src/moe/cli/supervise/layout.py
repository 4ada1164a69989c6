"""From a plan to processes: which module each runs, with which flags, listening where. Pure.

Placement decides the transport of aggregators: `process` listens on a TCP port of the loopback interface, `sidecar` on
a unix socket beside its router, `embedded` does not exist as a process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moe.cli.errors import UsageError
from moe.cli.supervise.spec import ProcessSpec, Role
from moe.operator.planner import GroupPlan, Placement, Plan, RouterPlan

LONGEST_SOCKET_PATH = 107
"""Bytes that the kernel takes as the path of a unix socket (unix(7): sun_path is 108 with its final zero)."""

MODULES = {
    Role.EXPERT: "moe.expert.__main__",
    Role.AGGREGATOR: "moe.aggregator.__main__",
    Role.ROUTER: "moe.router.__main__",
}
"""What each kind of process runs."""

DRAIN_TIMEOUT_S = 10.0
"""Longest that a part may take to finish what it has accepted once it was told to end."""


@dataclass(frozen=True)
class Places:
    """Where things are. package: the model's folder. folder: for sockets. directory: the file that tells of experts.

    tcp: listen on ports of 127.0.0.1 instead of unix sockets. listen: the router's address, None for one like the rest.
    """

    package: Path
    folder: Path
    directory: Path
    tcp: bool = False
    listen: str | None = None


@dataclass(frozen=True)
class Options:
    """What the parts are told beside the plan; None leaves a part its own default."""

    deterministic: bool = False
    dtype: str | None = None
    missing_policy: str | None = None
    layer_timeout_s: float | None = None
    kv_tokens: int | None = None
    wire: str | None = None


def lay_out(plan: Plan, places: Places, options: Options, free_port: Callable[[], int]) -> tuple[ProcessSpec, ...]:
    """The processes of a plan: experts, aggregators, routers, in this order. Raises UsageError for a path too long.

    free_port: gives a port that nobody uses, another one at each call.
    """
    layout = _Layout(places, options, free_port)
    experts = [layout.expert(plan, group, replica.name) for group in plan.groups for replica in group.replicas]
    aggregators = [layout.aggregator(plan, aggregator.name) for aggregator in plan.aggregators]
    routers = [layout.router(plan, router) for router in plan.routers]
    return (*experts, *aggregators, *routers)


class _Layout:
    """Makes processes one by one, numbering them for sockets whose name would be too long."""

    def __init__(self, places: Places, options: Options, free_port: Callable[[], int]) -> None:
        self._places = places
        self._options = options
        self._free_port = free_port
        self._made = 0

    def expert(self, plan: Plan, group: GroupPlan, name: str) -> ProcessSpec:
        endpoint = self._endpoint(name, tcp=self._places.tcp)
        flags = _flags(
            package=self._places.package,
            experts=",".join(map(str, group.experts)),
            group=group.name,
            threads=plan.threads.expert,
            dtype=self._options.dtype,
        )
        return self._process(name, Role.EXPERT, endpoint, flags, group=group.name, experts=group.experts)

    def aggregator(self, plan: Plan, name: str) -> ProcessSpec:
        endpoint = self._endpoint(name, tcp=self._places.tcp or plan.placement is Placement.PROCESS)
        return self._process(name, Role.AGGREGATOR, endpoint, _flags(discovery=f"file:{self._places.directory}"))

    def router(self, plan: Plan, router: RouterPlan) -> ProcessSpec:
        endpoint = self._places.listen or self._endpoint(router.name, tcp=self._places.tcp)
        flags = _flags(
            package=self._places.package,
            discovery=f"file:{self._places.directory}",
            aggregator="directory" if router.aggregators else "embedded",
            threads=plan.threads.router,
            dtype=self._options.dtype,
            missing_policy=self._options.missing_policy,
            layer_timeout_s=self._options.layer_timeout_s,
            kv_tokens=self._options.kv_tokens,
        )
        return self._process(router.name, Role.ROUTER, endpoint, flags)

    def _process(
        self,
        name: str,
        role: Role,
        endpoint: str,
        flags: list[str],
        *,
        group: str = "",
        experts: tuple[int, ...] = (),
    ) -> ProcessSpec:
        common = _flags(
            name=name,
            listen=endpoint,
            drain_timeout_s=DRAIN_TIMEOUT_S,
            deterministic=self._options.deterministic,
            wire=self._options.wire,
        )
        return ProcessSpec(name, role, MODULES[role], (*common, *flags), endpoint, group, experts)

    def _endpoint(self, name: str, *, tcp: bool) -> str:
        self._made += 1
        if tcp:
            return f"127.0.0.1:{self._free_port()}"
        for file_name in (f"{name}.sock", f"{self._made}.sock"):
            path = str(self._places.folder / file_name)
            if len(path.encode()) <= LONGEST_SOCKET_PATH:
                return f"unix:{path}"
        raise UsageError(
            f"{self._places.folder} is too long for a unix socket in it ({LONGEST_SOCKET_PATH} bytes in all); "
            "set XDG_RUNTIME_DIR to a shorter folder, or use --tcp"
        )


def _flags(**values: object) -> list[str]:
    """Flags of the values that are set: `layer_timeout_s=2.0` is `--layer-timeout-s 2.0`, True is the flag alone."""
    words: list[str] = []
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words
