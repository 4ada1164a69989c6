"""Settings of a router process."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moe.discovery.source import HELP as DISCOVERY_HELP
from moe.runtime.server import ServerSettings
from moe.runtime.settings import setting
from moe.runtime.telemetry import TelemetrySettings


@dataclass(frozen=True)
class SchedulingSettings:
    """How much runs at once, and what a request may ask for."""

    max_running: int = setting(
        16, help="Requests that run at once; each holds a slot of the cache.", minimum=1, maximum=4096
    )
    max_waiting: int = setting(
        256,
        help="Requests that wait for a slot; beyond them clients are told to try again later.",
        minimum=0,
        maximum=100_000,
    )
    max_context: int = setting(
        4096,
        help="Most tokens of prompt and answer together; the model's own bound and --kv-tokens apply as well.",
        unit="tokens",
        minimum=2,
        maximum=2**24,
    )
    kv_tokens: int = setting(
        32768,
        help="Cache tokens promised to running requests together; a request is admitted when all it may need fits.",
        unit="tokens",
        minimum=2,
        maximum=2**31 - 1,
    )
    prefill_chunk: int = setting(
        256,
        help="Prompt tokens computed in one step beside the rows that decode; more delays those, less wastes steps.",
        unit="tokens",
        minimum=1,
        maximum=2**20,
    )
    score_chunk: int = setting(
        64,
        help="Tokens scored in one step; each takes a row of logits, which bounds their memory.",
        unit="tokens",
        minimum=1,
        maximum=2**16,
    )
    max_prompt_bytes: int = setting(
        1024 * 1024,
        help="Longest prompt accepted, checked before it is tokenised; far above what a context holds.",
        unit="bytes",
        minimum=1,
        maximum=2**31 - 1,
    )
    default_max_tokens: int = setting(
        1024,
        help="Most tokens of an answer whose length the request leaves open.",
        unit="tokens",
        minimum=1,
        maximum=2**24,
    )
    stall_timeout_s: float = setting(
        60.0,
        help="How long a client may leave its stream unread before its generation is ended.",
        unit="seconds",
        minimum=0.1,
        maximum=86400.0,
    )


@dataclass(frozen=True)
class RouterSettings:
    """A router process."""

    server: ServerSettings
    telemetry: TelemetrySettings
    scheduling: SchedulingSettings
    package: Path = setting(  # noqa: RUF009 - declares a field
        help="Directory of the model package; experts' files in it are not read."
    )
    name: str = setting(help="Name of this process in the plan, such as router-0.")
    discovery: str = setting(help=DISCOVERY_HELP)
    aggregator: Literal["directory", "embedded"] = setting(
        "directory",
        help="Where partials are added: by an aggregator of the directory, or inside this process, which saves a hop "
        "and costs the process the additions.",
    )
    wire: Literal["auto", "native", "grpcio"] = setting(
        "auto",
        help="Implementation of the streams between the parts: native is fastest and needs `make setup` with a Rust "
        "toolchain, grpcio is always there; auto is native where it is built. Parts may differ.",
    )
    missing_policy: Literal["wait", "renormalise", "fail"] = setting(
        "wait",
        help="What to do about an expert group that does not answer; waiting keeps every answer exact.",
    )
    topk: int = setting(
        0,
        help="Experts per token; 0 is the checkpoint's own, which alone is exact.",
        minimum=0,
        maximum=4096,
    )
    strategy: Literal["family", "drop"] = setting(
        "family",
        help="How --topk experts are taken: by the family's own selection as if its configuration said so, or the "
        "heaviest of the checkpoint's own choice, the others' weights being dropped.",
    )
    layer_timeout_s: float = setting(
        120.0,
        help="How long a layer may take, retries included; longer than a crashed expert takes to restart.",
        unit="seconds",
        minimum=0.05,
        maximum=86400.0,
    )
    hedge_after_s: float = setting(
        0.0,
        help="Silence after which a part goes to another replica too, if there is one; 0 derives it for each group: "
        "four times the 99th percentile of what its layers take, at least 0.3 s.",
        unit="seconds",
        minimum=0.0,
        maximum=86400.0,
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", help="What to compute in; auto is the package's own. The experts' has to be the same."
    )
    deterministic: bool = setting(
        False,
        help="Compute in tiles of one fixed shape, so that a request's tokens don't depend on its company; slower.",
    )
    linear_kernel: Literal["auto", "torch", "native"] = setting(
        "auto",
        help="What the backbone's linear layers compute with; auto measures at load, and takes native in "
        "deterministic mode, where it spares the tiles.",
    )
    attention_kernel: Literal["auto", "torch", "native"] = setting(
        "auto", help="What the backbone's attention and norms compute with; auto is native where it is built."
    )
    threads: int = setting(
        1, help="Threads to compute with; one leaves the other cores to the experts.", minimum=1, maximum=1024
    )
