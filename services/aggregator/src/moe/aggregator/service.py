"""An aggregator process, put together: combiner, wire, directory, server.

It is ready as soon as its port is open: the streams to the experts come and go, and a part whose stream is not there
yet is sent again by its router.
"""

import logging

import grpc
from moe.aggregator.follower import ExpertFollower
from moe.aggregator.hosting import combiner_for
from moe.aggregator.settings import AggregatorSettings
from moe.api.aggregator.v1 import aggregator_pb2
from moe.api.control.v1 import control_pb2
from moe.discovery import figures
from moe.discovery.directory import Directory
from moe.discovery.source import open_directory
from moe.runtime.process import new_instance_id
from moe.runtime.server import Service
from moe.wire.choice import load as load_wire
from moe.wire.combining import CombinerStats
from moe.wire.ends import AggregatorEnd
from moe.wire.settings import WireSettings

_SERVICE = aggregator_pb2.DESCRIPTOR.services_by_name["AggregatorService"].full_name

logger = logging.getLogger("moe.aggregator")


class AggregatorProcess:
    """One aggregator's process."""

    def __init__(self, settings: AggregatorSettings) -> None:
        self._settings = settings
        self._instance = new_instance_id()
        self._implementation = load_wire(settings.wire)
        self._wire: AggregatorEnd | None = None
        self._directory: Directory | None = None
        self._follower: ExpertFollower | None = None

    def service(self) -> Service:
        """What the runtime's server runs."""
        return Service(
            name=self._settings.name,
            services=(_SERVICE,),
            register=self._register,
            describe=self._describe,
            stats=self._stats,
            on_drain=self._drain,
            on_stop=self._stop,
            instance=self._instance,
            readings=lambda: figures.readings(self._directory) if self._directory else (),
            front=lambda: self._wire.front if self._wire else None,
        )

    def _register(self, server: grpc.aio.Server) -> None:
        """On the server's loop, where the wire lives."""
        wire, settings = self._implementation, self._settings
        combiner = combiner_for(wire, settings.limits())
        self._wire = wire.aggregator(combiner, settings.name, self._instance, WireSettings.of(settings.server))
        logger.info("wire: %s", wire.told)
        self._wire.register(server)
        self._directory = open_directory(self._settings.discovery)
        self._follower = ExpertFollower(self._directory, self._wire.set_experts)

    async def _drain(self) -> None:
        if self._wire:
            await self._wire.drained()

    async def _stop(self) -> None:
        if self._follower:
            self._follower.close()
        if self._wire:
            await self._wire.close()

    def _describe(self) -> control_pb2.DescribeResponse:
        settings = self._settings
        return control_pb2.DescribeResponse(
            role=control_pb2.ROLE_AGGREGATOR,
            name=settings.name,
            wire=self._implementation.name,
            deterministic=settings.deterministic,
            facts={"threads": str(settings.threads), "discovery": settings.discovery},
        )

    def _stats(self) -> control_pb2.StatsResponse:
        stats = self._wire.stats() if self._wire else CombinerStats()
        figures = control_pb2.AggregatorStats(
            combined=stats.combined,
            open=stats.open,
            duplicates=stats.duplicates,
            refused=stats.refused,
            missing=stats.missing,
            failed=stats.failed,
            sources=self._wire.sources() if self._wire else 0,
        )
        return control_pb2.StatsResponse(role=control_pb2.ROLE_AGGREGATOR, name=self._settings.name, aggregator=figures)
