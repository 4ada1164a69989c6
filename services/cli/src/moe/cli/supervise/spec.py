"""What a supervised process is: its name in the plan, what it runs, and where it listens."""

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What a process is to the others."""

    ROUTER = "router"
    EXPERT = "expert"
    AGGREGATOR = "aggregator"


@dataclass(frozen=True)
class ProcessSpec:
    """One process. module: has `main(argv) -> int`. endpoint: the gRPC target it listens on.

    group, experts: of an expert, as in moe.discovery.directory; empty for others.
    """

    name: str
    role: Role
    module: str
    argv: tuple[str, ...]
    endpoint: str
    group: str = ""
    experts: tuple[int, ...] = ()
