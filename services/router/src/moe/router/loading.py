"""Loads what a router needs of its package: backbone with its cache, tokenizer, limits. Blocking; no sockets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from moe.api.inference.v1 import inference_pb2
from moe.models.backbone import deterministic_cost, load_backbone
from moe.models.contract import Backbone
from moe.models.errors import ModelsError
from moe.models.generation_defaults import generation_defaults
from moe.models.package import Package
from moe.models.text import Tokenizer, load_tokenizer
from moe.router.requests import RequestLimits, sampling_defaults
from moe.router.scheduler import ScheduleLimits
from moe.router.settings import RouterSettings, SchedulingSettings
from moe.runtime.errors import InvalidRequest, StartupError
from moe.runtime.process import settle_memory

_DTYPES: dict[str, torch.dtype | Literal["auto"]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_ENVELOPE_BYTES = 1 << 20
"""Room in a message for what goes with the rows: indices, weights, names."""


@dataclass(frozen=True)
class KernelWords:
    """What the backbone's linear layers, and its attention and norms, compute with; for people."""

    linear: str
    attention: str


@dataclass(frozen=True)
class LoadedModel:
    """A package's model, ready to step. deterministic_cost: what that mode costs it, for people; empty without it.

    kernels: what it computes with.
    """

    backbone: Backbone
    tokenizer: Tokenizer | None
    limits: RequestLimits
    schedule: ScheduleLimits
    deterministic_cost: str
    kernels: KernelWords


def open_package(settings: RouterSettings) -> Package:
    """The package, its files' sizes checked. Raises StartupError."""
    try:
        return Package.open(settings.package, verify="sizes")
    except ModelsError as error:
        raise StartupError(str(error)) from error


def load_model(package: Package, settings: RouterSettings) -> LoadedModel:
    """Loads backbone and tokenizer, reserves the cache, and takes all of it out of the garbage collector's rounds.

    Raises StartupError naming what can't be used.
    """
    try:
        backbone = load_backbone(
            package,
            dtype=_DTYPES.get(settings.dtype, "auto"),
            deterministic=settings.deterministic,
            linear_kernel=settings.linear_kernel,
            attention_kernel=settings.attention_kernel,
        )
        tokenizer = load_tokenizer(package)
        limits = request_limits(package, backbone, settings.scheduling)
        _check_step_size(package, settings)
        cost = _cost_in_words(deterministic_cost(backbone)) if settings.deterministic else ""
        backbone.allocate(settings.scheduling.max_running, limits.max_context)
    except MemoryError as error:
        raise StartupError(f"{error} (--max-running, --max-context)") from error
    except ModelsError as error:
        raise StartupError(str(error)) from error
    settle_memory()
    schedule = schedule_limits(settings.scheduling, limits.max_context)
    kernels = KernelWords(backbone.linears.words(), backbone.attention_kernel)
    return LoadedModel(backbone, tokenizer, limits, schedule, cost, kernels)


def _cost_in_words(ratios: Mapping[int, float]) -> str:
    each = [f"{rows} row{'s' if rows > 1 else ''} {ratio:.1f} x" for rows, ratio in ratios.items()]
    return f"a step takes, without the experts: {', '.join(each)} as long"


def _check_step_size(package: Package, settings: RouterSettings) -> None:
    """A layer's rows travel as one message, so the largest step has to fit into one."""
    scheduling, manifest = settings.scheduling, package.manifest
    rows = scheduling.max_running + scheduling.prefill_chunk + scheduling.score_chunk
    dtype = manifest.torch_dtype if settings.dtype == "auto" else getattr(torch, settings.dtype)
    size, most = rows * manifest.hidden * dtype.itemsize, settings.server.max_message_bytes - _ENVELOPE_BYTES
    if size > most:
        raise StartupError(
            f"a step of {rows} rows (--max-running, --prefill-chunk and --score-chunk together) takes {size} bytes in "
            f"a message, which may hold {most}; lower one of them or raise --max-message-bytes on all parts"
        )


def request_limits(package: Package, backbone: Backbone, settings: SchedulingSettings) -> RequestLimits:
    """What requests may ask for. Raises StartupError when the generation config's values are out of range."""
    try:
        defaults = sampling_defaults(generation_defaults(package))
    except InvalidRequest as error:
        raise StartupError(f"file {package.backbone_dir / 'generation_config.json'}: {error.message}") from error
    return RequestLimits(
        model=package.manifest.name,
        vocabulary=backbone.info.vocabulary,
        max_context=min(backbone.info.max_context, settings.max_context, settings.kv_tokens),
        max_prompt_bytes=settings.max_prompt_bytes,
        default_max_tokens=settings.default_max_tokens,
        end_ids=backbone.info.eos_token_ids,
        defaults=defaults,
    )


def schedule_limits(settings: SchedulingSettings, max_context: int) -> ScheduleLimits:
    """Bounds of the scheduler; the cache can't promise more than all slots hold."""
    return ScheduleLimits(
        slots=settings.max_running,
        kv_tokens=min(settings.kv_tokens, settings.max_running * max_context),
        max_waiting=settings.max_waiting,
        prefill_tokens=settings.prefill_chunk,
        score_tokens=settings.score_chunk,
    )


def model_message(package: Package, loaded: LoadedModel) -> inference_pb2.GetModelResponse:
    """The answer to GetModel."""
    info, limits = loaded.backbone.info, loaded.limits
    return inference_pb2.GetModelResponse(
        name=package.manifest.name,
        family=info.family,
        manifest_sha256=package.manifest_sha256,
        vocabulary=info.vocabulary,
        max_context=limits.max_context,
        max_prompt_bytes=limits.max_prompt_bytes,
        experts=max(info.moe_layers.values()),
        moe_layers=len(info.moe_layers),
        topk=info.topk,
        has_tokenizer=loaded.tokenizer is not None,
        has_chat_template=loaded.tokenizer is not None and loaded.tokenizer.has_chat_template,
        licence=package.manifest.licence,
        linear_kernel=loaded.kernels.linear,
        attention_kernel=loaded.kernels.attention,
    )
