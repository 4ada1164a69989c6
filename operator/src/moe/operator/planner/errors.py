"""Why there is no plan.

PlanError
├── UnfitModel           the model's facts can't be planned for
├── UnfitWish            one wish is out of its bounds; names the wish, its value and the bound
└── ConflictingWishes    two wishes that exclude each other
"""


class PlanError(Exception):
    """There is no plan; the message names the value and the bound."""


class UnfitModel(PlanError):  # noqa: N818 - says what is wrong without a suffix
    """The model's facts can't be planned for."""


class UnfitWish(PlanError):  # noqa: N818
    """A wish is out of its bounds. wish: its field in Wishes; value: what was wished."""

    def __init__(self, wish: str, value: object, bound: str) -> None:
        super().__init__(f"{wish} is {value}; {bound}")
        self.wish = wish
        self.value = value


class ConflictingWishes(PlanError):  # noqa: N818
    """Two wishes that exclude each other."""
