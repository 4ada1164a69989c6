"""How many threads each process computes with, so that all together don't fight for the cores.

Router and experts take turns within a layer, so the router may use every core while the experts share them. Measured
on two cores with eight groups: experts are best with one thread each; two threads per expert that spin while they
wait cost 240 ms a token instead of 39. A process with several threads among others must not spin long.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from moe.operator.planner.errors import UnfitWish

MOST_CORES = 4096
_MOST_ROUTER_THREADS = 16
"""Beyond it a decode step's small matrix products gain nothing."""

_SHORT_SPIN: Mapping[str, str] = {"GOMP_SPINCOUNT": "3000"}
_NO_SPIN: Mapping[str, str] = {"OMP_WAIT_POLICY": "PASSIVE"}

PARTS_ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",  # at import; each part then sets its own share of the plan's thread budget
    "MALLOC_ARENA_MAX": "1",  # one heap instead of one a thread: some 1.5 MiB less in each of many processes
    "TOKENIZERS_PARALLELISM": "false",
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # a fork server forks before gRPC exists; its handlers would only warn
    "HF_HUB_OFFLINE": "1",  # a package has everything; nothing may look for more
}
"""Environment of every part from its start, wherever it runs; a thread budget's comes on top."""


@dataclass(frozen=True)
class ThreadBudget:
    """Threads of the router and of each expert process, and the environment all of them need from their start."""

    router: int
    expert: int
    environment: Mapping[str, str]


def thread_budget(
    cores: int, experts: int, routers: int = 1, *, router: int | None = None, expert: int | None = None
) -> ThreadBudget:
    """Divides `cores` among that many expert processes, and again among the routers, at least one thread each.

    router, expert: threads of one such process, chosen by hand. Raises UnfitWish out of 1 to `cores`.
    """
    _within("cores", cores, MOST_CORES)
    router_share = min(max(1, cores // routers), _MOST_ROUTER_THREADS)
    router_threads = router_share if router is None else router
    expert_threads = max(1, cores // experts) if expert is None else expert
    _within("router_threads", router_threads, cores)
    _within("expert_threads", expert_threads, cores)
    environment = _SHORT_SPIN if expert_threads == 1 else _NO_SPIN
    return ThreadBudget(router_threads, expert_threads, environment)


def _within(wish: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise UnfitWish(wish, value, f"want 1 to {most}")
