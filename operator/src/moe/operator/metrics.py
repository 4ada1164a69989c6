"""What the operator counts, for Prometheus: names begin with moe_operator_."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

WRITES = Counter(
    "moe_operator_writes_total",
    "Objects written, by what was done and the object's kind.",
    ["verb", "kind"],
    registry=REGISTRY,
)
REQUESTS = Counter(
    "moe_operator_requests_total", "Requests to the API server, the Lease's included, watches not.", registry=REGISTRY
)
EVENTS = Counter("moe_operator_events_total", "Events written.", registry=REGISTRY)
LOOKS = Counter(
    "moe_operator_looks_total",
    "Looks at a model, by outcome: settled (nothing to do), changed, refused, failed (tried again later).",
    ["outcome"],
    registry=REGISTRY,
)
LOOK_SECONDS = Histogram("moe_operator_look_seconds", "Time that one look at a model takes.", registry=REGISTRY)
LOAD_READINGS = Counter(
    "moe_operator_load_readings_total",
    "Readings of expert pods' busy time, by outcome: read, failed.",
    ["outcome"],
    registry=REGISTRY,
)
LEADING = Gauge("moe_operator_leading", "1 while this operator holds the Lease.", registry=REGISTRY)
MODELS = Gauge("moe_operator_models", "Models known.", registry=REGISTRY)
DEFINITIONS_CURRENT = Gauge(
    "moe_operator_definitions_current",
    "1 when the cluster's custom resource definitions are this operator's own.",
    registry=REGISTRY,
)
