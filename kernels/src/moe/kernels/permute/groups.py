"""What sorting slots by expert yields."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor


@dataclass(frozen=True, eq=False)
class SlotGroups:
    """Slots sorted by expert, those of one expert in their old order.

    order int64 [slots]: order[i] is the old place of the slot that is now the i-th. experts: the experts that occur,
    ascending. starts: for each of them its first place in `order`, then the number of slots.
    """

    order: Tensor
    experts: tuple[int, ...]
    starts: tuple[int, ...]

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """Each expert with the old places of its slots."""
        for expert, (start, end) in zip(self.experts, pairwise(self.starts), strict=True):
            yield expert, self.order[start:end]
