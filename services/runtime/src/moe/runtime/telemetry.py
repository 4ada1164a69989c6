"""Logs, metrics and traces of a service, set up in one place from one group of settings."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from moe.runtime import metrics, stats_metrics, traces
from moe.runtime.server import Service
from moe.runtime.settings import setting


@dataclass(frozen=True)
class TelemetrySettings:
    """What a process tells about itself, and where."""

    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", help="Least level to log; info shows starts, drains and degradations, nothing per request."
    )
    log_format: Literal["text", "json"] = setting("text", help="Text reads well in a terminal; JSON suits collectors.")
    metrics_port: int = setting(
        0,
        help="Port of the Prometheus page; 0 serves none, as on one machine ports are scarce.",
        minimum=0,
        maximum=65535,
    )
    metrics_host: str = setting(
        "127.0.0.1", help="Address of the Prometheus page; local, as it is open to whoever reaches it."
    )
    otlp_endpoint: str = setting(
        "", help="OTLP collector for traces, http://host:4317; empty sends none, as most installations have none."
    )


@contextlib.contextmanager
def telemetry(settings: TelemetrySettings, service: Service) -> Iterator[None]:
    """Metrics page and traces for as long as the block runs. Raises StartupError. Logs: `logs.set_up`, earlier."""
    with contextlib.ExitStack() as stack:
        if settings.metrics_port:
            registry = metrics.new_registry()
            registry.register(metrics.FromStats(stats_metrics.reader(service.stats)))
            if service.readings:
                registry.register(metrics.FromStats(service.readings))
            stack.callback(metrics.serve_page(registry, settings.metrics_host, settings.metrics_port))
        stack.callback(traces.set_up(settings.otlp_endpoint, name=service.name, instance=service.instance))
        yield
