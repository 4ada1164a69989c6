"""One layer call while it is open: what is planned, what has come, what won't come."""

from dataclasses import dataclass, field

from moe.wire.combining import CallPlan, PlannedPart
from moe.wire.port import MissingPart, MissingPolicy
from torch import Tensor


@dataclass(eq=False)
class OpenCall:
    """The state of a call. rows: the partials that have come, by part. given_up: parts none will deliver, and why.

    refusals: the reason why a part's last arrival could not be used.
    """

    owner: str
    plan: CallPlan
    rows: dict[int, Tensor] = field(default_factory=dict)
    given_up: dict[int, str] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Finds parts by their index."""
        self.planned: dict[int, PlannedPart] = {part.part: part for part in self.plan.parts}

    def held_bytes(self) -> int:
        """Bytes of the partials that have come."""
        return sum(rows.nbytes for rows in self.rows.values())

    def is_settled(self) -> bool:
        """Whether nothing is left to wait for. Under `wait` a part that was given up may still come in time."""
        if len(self.rows) == len(self.planned):
            return True
        if self.plan.policy is MissingPolicy.WAIT:
            return False
        return all(part in self.rows or part in self.given_up for part in self.planned)

    def missing(self) -> tuple[MissingPart, ...]:
        """The parts that an answer given now does without, each with the best reason known."""
        return tuple(
            MissingPart(number, self._reason(number), len(part.token_index))
            for number, part in self.planned.items()
            if number not in self.rows
        )

    def _reason(self, part: int) -> str:
        if part in self.given_up:
            return self.given_up[part]
        if part in self.refusals:
            return f"refused: {self.refusals[part]}"
        return "did not arrive before the deadline"
