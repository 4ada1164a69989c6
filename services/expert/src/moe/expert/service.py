"""An expert process, put together: package, wire, compute thread, server.

The port opens at once and says NOT_SERVING until every weight has answered its probe. On the way out new dispatches are
refused, accepted ones are computed and answered, then the streams end.
"""

import asyncio
import logging

from moe.api.control.v1 import control_pb2
from moe.api.expert.v1 import expert_pb2
from moe.expert.counters import Counters
from moe.expert.packing import Computation, PackedWeights
from moe.expert.settings import ExpertSettings
from moe.expert.startup import Startup, StoppedError
from moe.expert.weights import distinct, held_layers, open_package, wanted_dtype
from moe.expert.worker import Worker
from moe.models.package import Package
from moe.runtime.lifecycle import Lifecycle
from moe.runtime.process import new_instance_id
from moe.runtime.progress import Progress
from moe.runtime.server import Service
from moe.wire.choice import load as load_wire
from moe.wire.port import ExpertLimits
from moe.wire.settings import WireSettings

_SERVICE = expert_pb2.DESCRIPTOR.services_by_name["ExpertService"].full_name

logger = logging.getLogger("moe.expert")

_JOIN_S = 2.0
"""For a compute thread in the middle of a batch when the drain was cut short."""


class ExpertProcess:
    """One expert group's process. Raises StartupError for a package or settings that can't serve."""

    def __init__(self, settings: ExpertSettings) -> None:
        self._settings = settings
        self._package = open_package(settings.package)
        self._experts = distinct(self._package, settings.experts)
        self._computation = Computation(settings.kernel, settings.deterministic)
        self._computation.check()
        self._packed: PackedWeights | None = None
        self._counters = Counters()
        self._instance = new_instance_id()
        self._lifecycle = Lifecycle()
        wire = load_wire(settings.wire)
        limits = _limits(settings, self._package)
        self._wire = wire.expert(limits, self._instance, WireSettings.of(settings.server))
        logger.info("wire: %s", wire.told)
        self._progress = Progress(settings.server.hang_after_s)
        self._worker = Worker(self._wire, self._counters, self._lifecycle.fail, self._progress, settings.threads)
        self._startup = Startup(self._package, self._experts, settings.dtype, self._computation)

    def service(self) -> Service:
        """What the runtime's server runs."""
        return Service(
            name=self._settings.name,
            services=(_SERVICE,),
            register=self._wire.register,
            describe=self._describe,
            stats=self._stats,
            startup=self._start,
            on_drain=self._drain,
            on_stop=self._stop,
            progress=self._progress,
            lifecycle=self._lifecycle,
            instance=self._instance,
            front=lambda: self._wire.front,
        )

    async def _start(self) -> None:
        try:
            weights = await asyncio.to_thread(self._startup.run, self._settings.threads)
        except StoppedError:
            return
        self._packed = weights
        if not self._lifecycle.draining:
            if entries := weights.entries():
                self._wire.compute_natively(entries, self._settings.threads)
            self._worker.start(weights)

    async def _drain(self) -> None:
        # On the server's loop, where dispatches are accepted: none slips in between.
        self._startup.stop()
        self._worker.drain()
        await self._wire.drained()

    async def _stop(self) -> None:
        self._worker.join(_JOIN_S)

    def _describe(self) -> control_pb2.DescribeResponse:
        settings, manifest = self._settings, self._package.manifest
        facts = {
            "group": settings.group,
            "dtype": str(wanted_dtype(self._package, settings.dtype)).removeprefix("torch."),
            "threads": str(settings.threads),
            "layers": str(len(held_layers(self._package, self._experts))),
        }
        if self._packed is not None:
            facts |= {"kernel_why": self._packed.kernel_why, "weights_bytes": str(self._packed.bytes)}
        return control_pb2.DescribeResponse(
            role=control_pb2.ROLE_EXPERT,
            name=settings.name,
            model=manifest.name,
            manifest_sha256=self._package.manifest_sha256,
            experts=self._experts,
            wire=self._wire.name,
            kernel=self._packed.kernel if self._packed else self._computation.backend,
            deterministic=settings.deterministic,
            facts=facts,
        )

    def _stats(self) -> control_pb2.StatsResponse:
        return control_pb2.StatsResponse(
            role=control_pb2.ROLE_EXPERT,
            name=self._settings.name,
            expert=self._counters.message(
                self._wire.stats(), self._wire.computed(), self._packed.kernel if self._packed else ""
            ),
        )


def _limits(settings: ExpertSettings, package: Package) -> ExpertLimits:
    return ExpertLimits(
        hidden=package.manifest.experts.hidden,
        dtype=wanted_dtype(package, settings.dtype),
        experts_by_layer=held_layers(package, settings.experts),
        max_rows=settings.max_rows,
        max_queued_rows=settings.max_queued_rows,
        max_batch_rows=settings.max_batch_rows,
    )
