"""What a directory tells Prometheus: whether its view may be old, and how much it sees."""

from moe.discovery.directory import Directory
from moe.runtime.metrics import DISCOVERY_LOST, DISCOVERY_REPLICAS, DISCOVERY_VERSION, Reading


def readings(directory: Directory) -> tuple[Reading, ...]:
    """Of this moment. Cheap, safe from any thread."""
    seen = directory.current()
    ready = sum(each.ready for each in seen.experts)
    return (
        Reading(
            DISCOVERY_LOST,
            "1 while the view may be old: its source can't be read.",
            "gauge",
            {"": bool(directory.trouble())},
        ),
        Reading(DISCOVERY_VERSION, "Version of the view; grows with every change.", "gauge", {"": seen.version}),
        Reading(
            DISCOVERY_REPLICAS,
            "Expert processes listed.",
            "gauge",
            {"ready": ready, "not ready": len(seen.experts) - ready},
            "state",
        ),
    )
