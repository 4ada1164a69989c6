"""A router process, put together: package, directory, wire, engine, front desk, server.

The port opens at once and says NOT_SERVING until the model is loaded and requests are answered as wished, for which see
readiness.py. On the way out answers in flight may finish.
"""

import asyncio
import logging
import zlib
from concurrent.futures import ThreadPoolExecutor

from moe.aggregator.hosting import combiner_for
from moe.api.control.v1 import control_pb2
from moe.api.inference.v1 import inference_pb2, inference_pb2_grpc
from moe.discovery import figures
from moe.discovery.directory import Directory
from moe.discovery.source import open_directory
from moe.models.errors import ModelsError
from moe.router.engine import Engine, EngineSettings
from moe.router.fleet import FleetTracker
from moe.router.front_desk import DeskTools, FrontDesk
from moe.router.gating import GateSettings
from moe.router.layer_call import CallSettings, LayerCaller
from moe.router.loading import LoadedModel, load_model, model_message, open_package
from moe.router.readiness import answers
from moe.router.report import aggregator_message, router_message
from moe.router.requests import RequestReader
from moe.router.settings import RouterSettings
from moe.runtime.errors import StartupError
from moe.runtime.lifecycle import Lifecycle
from moe.runtime.progress import Progress
from moe.runtime.server import Service
from moe.wire.choice import load as load_wire
from moe.wire.ends import RouterEnd
from moe.wire.port import MissingPolicy
from moe.wire.settings import CombinerLimits, WireSettings

_SERVICE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name

logger = logging.getLogger("moe.router")

_LOOK_S = 0.05
"""How often a router that is not ready yet looks again; the directory is watched as often."""


class RouterProcess:
    """One router. Raises StartupError for a package that can't be opened."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._package = open_package(settings)
        self._embedded = settings.aggregator == "embedded"
        self._implementation = load_wire(settings.wire)
        self._directory: Directory = open_directory(settings.discovery)
        self._fleet = FleetTracker(self._directory, self._package.manifest.expert_count)
        self._executor = ThreadPoolExecutor(2, thread_name_prefix="tokenise")
        self._desk = FrontDesk(settings.name, stall_s=settings.scheduling.stall_timeout_s, executor=self._executor)
        self._lifecycle = Lifecycle()
        self._progress = Progress(settings.server.hang_after_s)
        self._model: LoadedModel | None = None
        self._wire: RouterEnd | None = None
        self._caller: LayerCaller | None = None
        self._engine: Engine | None = None
        self._watch: asyncio.Task[None] | None = None

    def service(self) -> Service:
        """What the runtime's server runs."""
        return Service(
            name=self._settings.name,
            services=(_SERVICE,),
            register=lambda server: inference_pb2_grpc.add_InferenceServiceServicer_to_server(self._desk, server),
            describe=self._describe,
            stats=self._stats,
            startup=self._start,
            on_stop=self._stop,
            ready_after_startup=False,
            readings=lambda: figures.readings(self._directory),
            progress=self._progress,
            lifecycle=self._lifecycle,
        )

    async def _start(self) -> None:
        model = self._model = await asyncio.to_thread(load_model, self._package, self._settings)
        limits = CombinerLimits(answer_bytes=self._settings.server.max_message_bytes)
        wire = self._wire = self._implementation.router(
            self._settings.name,
            combiner=combiner_for(self._implementation, limits) if self._embedded else None,
            loop=asyncio.get_running_loop(),
            settings=WireSettings.of(self._settings.server),
        )
        call_settings = CallSettings(
            MissingPolicy(self._settings.missing_policy),
            self._settings.layer_timeout_s,
            embedded=self._embedded,
            seat=zlib.crc32(self._settings.name.encode()),
            hedge_after_s=self._settings.hedge_after_s,
        )
        self._caller = LayerCaller(wire, self._fleet, call_settings)
        engine_settings = EngineSettings(model.schedule, self._settings.scheduling.stall_timeout_s)
        engine = self._engine = self._made_engine(model, self._caller, engine_settings)
        engine.start()
        reader = RequestReader(model.limits, model.tokenizer)
        self._desk.open(DeskTools(engine, reader, model.tokenizer, model_message(self._package, model)))
        self._watch = asyncio.create_task(self._follow(self._caller))
        logger.info("wire: %s", self._implementation.told)
        logger.info(
            "%s has loaded %s: %d requests at once, %d tokens of context, %d cache tokens of %d bytes",
            self._settings.name,
            self._package.manifest.name,
            model.schedule.slots,
            model.limits.max_context,
            model.schedule.kv_tokens,
            model.backbone.info.kv_bytes_per_token,
        )
        if model.deterministic_cost:
            logger.info("%s is deterministic: %s", self._settings.name, model.deterministic_cost)

    def _made_engine(self, model: LoadedModel, caller: LayerCaller, settings: EngineSettings) -> Engine:
        """Raises StartupError for gates that the model's family can't have."""
        gates = GateSettings(self._settings.topk, self._settings.strategy)
        fail, progress = self._lifecycle.fail, self._progress
        try:
            return Engine(model.backbone, caller, settings, model.tokenizer, fail, gates=gates, progress=progress)
        except ModelsError as error:
            raise StartupError(f"{error} (--topk, --strategy)") from error

    async def _follow(self, caller: LayerCaller) -> None:
        """Until the router is ready."""
        while True:
            if answers(self._fleet.current(), caller.settings):
                self._lifecycle.set_ready(True)
                return
            await asyncio.sleep(_LOOK_S)

    async def _stop(self) -> None:
        if self._watch:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._engine:
            await asyncio.to_thread(self._engine.stop, f"{self._settings.name} has stopped")
        if self._wire:
            await self._wire.aclose()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._directory.close()

    def _describe(self) -> control_pb2.DescribeResponse:
        settings, manifest = self._settings, self._package.manifest
        facts = {
            "dtype": manifest.dtype if settings.dtype == "auto" else settings.dtype,
            "threads": str(settings.threads),
            "linear_kernel": settings.linear_kernel,
            "attention_kernel": settings.attention_kernel,
            "aggregator": settings.aggregator,
            "missing_policy": settings.missing_policy,
            "layer_timeout_s": f"{settings.layer_timeout_s:g}",
            "topk": str(settings.topk or manifest.topk),
            "strategy": settings.strategy,
            "discovery": settings.discovery,
        }
        if self._caller:
            facts["missing_policy"] = self._caller.settings.policy.value
            facts["layer_timeout_s"] = f"{self._caller.settings.timeout_s:g}"
        if missing := self._fleet.current().unready_groups():
            facts["groups_without_replica"] = ", ".join(missing)
        if self._engine:
            facts["topk"] = str(self._engine.gating.settings.topk or manifest.topk)
            facts["strategy"] = self._engine.gating.settings.strategy
        if trouble := self._directory.trouble():
            facts["discovery_trouble"] = trouble
        if self._model:
            if self._model.deterministic_cost:
                facts["deterministic_cost"] = self._model.deterministic_cost
            facts["linear_kernel"] = self._model.kernels.linear
            facts["attention_kernel"] = self._model.kernels.attention
            facts["max_context"] = str(self._model.limits.max_context)
            facts["kv_bytes_per_token"] = str(self._model.backbone.info.kv_bytes_per_token)
        return control_pb2.DescribeResponse(
            role=control_pb2.ROLE_ROUTER,
            name=settings.name,
            model=manifest.name,
            manifest_sha256=self._package.manifest_sha256,
            wire=self._implementation.name,
            deterministic=settings.deterministic,
            facts=facts,
        )

    def _stats(self) -> control_pb2.StatsResponse:
        answer = control_pb2.StatsResponse(role=control_pb2.ROLE_ROUTER, name=self._settings.name)
        if self._engine and self._caller and self._model:
            answer.router.CopyFrom(router_message(self._engine, self._caller.counters, self._model.schedule))
        combiner = self._wire.combiner_stats() if self._wire else None
        if combiner:
            answer.aggregator.CopyFrom(aggregator_message(combiner))
        return answer
