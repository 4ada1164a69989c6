"""Settings of an expert process."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moe.runtime.server import ServerSettings
from moe.runtime.settings import setting
from moe.runtime.telemetry import TelemetrySettings


@dataclass(frozen=True)
class ExpertSettings:
    """One expert group's process."""

    server: ServerSettings
    telemetry: TelemetrySettings
    package: Path = setting(  # noqa: RUF009 - declares a field
        help="Directory of the model package; only this group's files in it are read."
    )
    experts: tuple[int, ...] = setting(help="Ids of the experts it holds, such as 0,3.")
    name: str = setting(help="Name of this process in the plan, such as demo-003-0.")
    group: str = setting(help="Name of its expert group, such as demo-003.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", help="What to compute in; auto is the package's own and the only one that needs no copy of the weights."
    )
    kernel: str = setting(
        "auto",
        help="Back end of the experts' kernel: native (C++), native_w8a8 (8-bit experts round their rows, too: "
        "approximate), torch, reference (slow); auto: the fastest exact one here.",
    )
    wire: Literal["auto", "native", "grpcio"] = setting(
        "auto",
        help="Implementation of the streams between the parts: native is fastest and needs `make setup` with a Rust "
        "toolchain, grpcio is always there; auto is native where it is built. Parts may differ.",
    )
    deterministic: bool = setting(
        False, help="Compute in tiles of one fixed shape, so that a row's bits don't depend on the others; slower."
    )
    threads: int = setting(
        1, help="Threads to compute with; one, as the groups of a machine run side by side.", minimum=1, maximum=1024
    )
    max_rows: int = setting(16384, help="Most rows in one dispatch.", unit="rows", minimum=1, maximum=2**24)
    max_queued_rows: int = setting(
        32768,
        help="Most rows waiting; beyond them routers are told to try again later or elsewhere.",
        unit="rows",
        minimum=1,
        maximum=2**24,
    )
    max_batch_rows: int = setting(
        4096,
        help="Most rows of several dispatches joined in one pass; more would only delay the first of them.",
        unit="rows",
        minimum=1,
        maximum=2**24,
    )
