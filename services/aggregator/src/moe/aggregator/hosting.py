"""The combiner that an implementation of the wire wants: ours, or the limits of the one that it brings along."""

from moe.aggregator.combiner import Combiner
from moe.wire.choice import Wire
from moe.wire.combining import Combining
from moe.wire.settings import CombinerLimits


def combiner_for(wire: Wire, limits: CombinerLimits) -> Combining | CombinerLimits:
    """What to make this wire's ends with. Both execute one policy, and pass one table of tests."""
    return limits if wire.own_combiner else Combiner(limits)
