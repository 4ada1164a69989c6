"""A row and a key head at a time, in float64 (Vaswani et al., Attention Is All You Need, section 3.2.1)."""

import torch
from moe.kernels.attention.ranges import KeyRanges
from torch import Tensor


class ReferenceAttention:
    """As moe.kernels.attention.SlotAttention."""

    def __init__(self, keys: Tensor, values: Tensor, groups: int) -> None:
        self._keys, self._values, self._groups = keys, values, groups

    def __call__(self, query: Tensor, ranges: KeyRanges, scale: float, sinks: Tensor | None) -> Tensor:
        """[n, query heads, size] to [n, query heads, v]."""
        result = query.new_empty(*query.shape[:2], self._values.shape[-1])
        places = zip(ranges.slots.tolist(), ranges.firsts.tolist(), ranges.ends.tolist(), strict=True)
        for row, (slot, first, end) in enumerate(places):
            for head in range(self._keys.shape[1]):
                mine = slice(head * self._groups, (head + 1) * self._groups)
                scores = query[row, mine].double() @ self._keys[slot, head, first:end].double().T * scale
                if sinks is not None:
                    scores = torch.cat((scores, sinks[mine].double()[:, None]), dim=-1)
                shares = torch.softmax(scores, dim=-1)[:, : end - first]
                result[row, mine] = (shares @ self._values[slot, head, first:end].double()).to(query.dtype)
        return result

    def store(self, keys: Tensor, values: Tensor, ranges: KeyRanges) -> None:
        """See SlotAttention.store."""
        for row, (slot, end) in enumerate(zip(ranges.slots.tolist(), ranges.ends.tolist(), strict=True)):
            self._keys[slot, :, end - 1] = keys[row]
            self._values[slot, :, end - 1] = values[row]
