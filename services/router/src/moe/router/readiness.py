"""When a router becomes ready, which it then stays.

Ready means that clients are sent here. What a router lacks later, an expert group or the aggregator, all routers of the
model lack; to leave the Service's endpoints for it would turn the declared policy (wait, renormalise, fail with the
group's name) into a refused connection. What it lacks at its start may be its own view, which is not complete yet.
"""

from moe.router.groups import Fleet
from moe.router.layer_call import CallSettings
from moe.wire.port import MissingPolicy


def answers(fleet: Fleet, settings: CallSettings) -> bool:
    """Whether a router that starts can answer as wished.

    Every group has a ready replica; under RENORMALISE one group does, as a router that is started while an expert is
    away has to answer without it. A view that has not been read lists none.
    """
    if not settings.embedded and not fleet.aggregators:
        return False
    missing = len(fleet.unready_groups())
    return missing == 0 or (settings.policy is MissingPolicy.RENORMALISE and missing < len(fleet.groups))
