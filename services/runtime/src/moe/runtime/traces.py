"""OpenTelemetry traces, off unless an OTLP endpoint is given; without one a span costs one attribute look-up."""

from collections.abc import Callable

from moe.runtime.errors import StartupError
from moe.runtime.version import moe_version
from opentelemetry import trace
from opentelemetry.trace import Tracer

_SCHEMES = ("http://", "https://")


def tracer(part: str) -> Tracer:
    """The tracer of a part, such as `moe.router`; its spans go nowhere until `set_up`."""
    return trace.get_tracer(part, moe_version())


def set_up(endpoint: str, *, name: str, instance: str) -> Callable[[], None]:
    """Sends spans to an OTLP collector over gRPC, `http://host:4317`; returns what flushes and ends it.

    Nothing is set up for an empty endpoint. Raises StartupError for one that is no URL. May be called once a process.
    """
    if not endpoint:
        return lambda: None
    if not endpoint.startswith(_SCHEMES):
        raise StartupError(f"--otlp-endpoint {endpoint}: want http://host:port or https://host:port")
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    facts = {"service.name": name, "service.instance.id": instance, "service.version": moe_version()}
    provider = TracerProvider(resource=Resource.create(facts))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    trace.set_tracer_provider(provider)
    return provider.shutdown
