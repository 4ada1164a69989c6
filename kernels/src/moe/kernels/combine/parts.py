"""What the combination adds: one expert group's partial and where its rows belong."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class PartRows:
    """A partial. part: its index in the plan.

    token_index int32 or int64 [rows], strictly increasing: the answer's row of each row. rows [rows, hidden].
    """

    part: int
    token_index: Tensor
    rows: Tensor
