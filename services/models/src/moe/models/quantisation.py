"""What a manifest says of quantised experts: which are, how far each is off, and at which error one stays as it was.

An expert's matrices in a layer are kept as bytes with a scale and an offset per output channel (moe.kernels.quantised),
or in the package's own dtype. Beside them lies what the quantiser measured. Knows no files.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moe.models.fields import FieldError, Fields

Errors = dict[int, tuple[tuple[float, float], ...]]


@dataclass(frozen=True)
class Quantisation:
    """limit: mean relative error of outputs above which an expert is kept in the package's dtype.

    errors: layer -> for each expert the mean and the greatest relative error of its outputs. kept: layer -> the experts
    that are not quantised, ascending.
    """

    limit: float
    errors: Errors
    kept: dict[int, tuple[int, ...]]

    def quantised(self, layer: int, expert: int) -> bool:
        """Whether an expert's matrices in a layer are bytes."""
        return expert not in self.kept[layer]

    def to_json(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        return {
            "limit": self.limit,
            "errors": {str(layer): [list(pair) for pair in pairs] for layer, pairs in sorted(self.errors.items())},
            "kept": {str(layer): list(experts) for layer, experts in sorted(self.kept.items())},
        }


def read_quantisation(content: Fields, moe_layers: Mapping[int, int]) -> Quantisation:
    """Reads a manifest's group. Raises FieldError naming the field."""
    limit = content.number_or_none("limit")
    if limit is None or limit <= 0:
        raise FieldError("quantisation.limit: must be a number above 0")
    errors, kept = content.group("errors"), content.group("kept")
    found = Quantisation(
        limit,
        {
            layer: tuple(_pair(layer, value) for value in errors.items_of(str(layer), count))
            for layer, count in moe_layers.items()
        },
        {layer: _kept(layer, kept, count) for layer, count in moe_layers.items()},
    )
    for group in (errors, kept, content):
        group.done()
    return found


def _pair(layer: int, value: object) -> tuple[float, float]:
    numbers = [number for number in value if type(number) is float] if isinstance(value, list) else []
    if len(numbers) != 2 or not isinstance(value, list) or len(value) != 2 or not all(0 <= n < 1e30 for n in numbers):
        raise FieldError(f"quantisation.errors.{layer}: each must be two numbers from 0 on, mean and greatest error")
    return numbers[0], numbers[1]


def _kept(layer: int, group: Fields, count: int) -> tuple[int, ...]:
    value = dict(group.items()).get(str(layer))
    ids = [expert for expert in value if type(expert) is int] if isinstance(value, list) else []
    if not isinstance(value, list) or len(ids) != len(value) or ids != sorted({*ids} & {*range(count)}):
        raise FieldError(f"quantisation.kept.{layer}: must be a list of expert ids below {count}, ascending")
    return tuple(ids)
