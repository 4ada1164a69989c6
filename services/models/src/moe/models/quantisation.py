"""What a manifest says of quantised experts: which are, how far each is off, and at which error one stays as it was.

An expert's matrices in a layer are kept as bytes with a scale and an offset per output channel or per group of its
inputs (moe.kernels.quantised), or in the package's own dtype. Beside them lies what the quantiser measured. Knows no
files.
"""

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

from moe.kernels.quantised import check_group_size
from moe.models.fields import MAX_COUNT, FieldError, Fields


@dataclass(frozen=True)
class ExpertErrors:
    """How far a quantised expert is off, relative to what it was.

    mean, greatest: of its outputs, over the rows that it was compared on. weight: of both matrices' elements together
    (root of the sums of squares). rounded_rows: mean of its outputs when rows are rounded to bytes as well (W8A8).
    """

    mean: float
    greatest: float
    weight: float
    rounded_rows: float


Errors = dict[int, tuple[ExpertErrors, ...]]


@dataclass(frozen=True)
class Perplexities:
    """Over the calibration text. rounded_rows: with W8A8, None where the quantising machine could not compute it."""

    tokens: int
    before: float
    after: float
    rounded_rows: float | None


@dataclass(frozen=True)
class Quantisation:
    """limit: mean relative error of outputs above which an expert is kept in the package's dtype.

    smallest: bytes of an expert in a layer below which it is kept, too. errors: for each layer's experts. kept: for
    each layer the experts that are not quantised, ascending. perplexity: None where the package can't be run on text;
    errors are then over random rows. group_size: inputs of an output channel that share a scale and an offset; None for
    all of them.
    """

    limit: float
    smallest: int
    errors: Errors
    kept: dict[int, tuple[int, ...]]
    perplexity: Perplexities | None
    group_size: int | None = None

    def quantised(self, layer: int, expert: int) -> bool:
        """Whether an expert's matrices in a layer are bytes."""
        return expert not in self.kept[layer]

    def to_json(self) -> dict[str, Any]:
        """As it stands in a manifest; one without groups says nothing of them."""
        return ({} if self.group_size is None else {"group_size": self.group_size}) | {
            "limit": self.limit,
            "smallest": self.smallest,
            "errors": {
                str(layer): [list(astuple(each)) for each in all_] for layer, all_ in sorted(self.errors.items())
            },
            "kept": {str(layer): list(experts) for layer, experts in sorted(self.kept.items())},
            "perplexity": None if self.perplexity is None else asdict(self.perplexity),
        }


def read_quantisation(content: Fields, moe_layers: Mapping[int, int], *, grouped: bool) -> Quantisation:
    """Reads a manifest's group; grouped: it has a group size. Raises FieldError naming the field."""
    limit = content.number_or_none("limit")
    if limit is None or limit <= 0:
        raise FieldError("quantisation.limit: must be a number above 0")
    errors, kept = content.group("errors"), content.group("kept")
    found = Quantisation(
        limit,
        content.count("smallest", 0, 2**50),
        {
            layer: tuple(_errors(layer, value) for value in errors.items_of(str(layer), count))
            for layer, count in moe_layers.items()
        },
        {layer: _kept(layer, kept, count) for layer, count in moe_layers.items()},
        _perplexities(content),
        _group_size(content) if grouped else None,
    )
    for group in (errors, kept, content):
        group.done()
    return found


def _group_size(content: Fields) -> int:
    size = content.count("group_size", 1, MAX_COUNT)
    try:
        check_group_size(size)
    except ValueError as error:
        raise FieldError(f"quantisation.{error}") from error
    return size


def _errors(layer: int, value: object) -> ExpertErrors:
    names = [entry.name for entry in fields(ExpertErrors)]
    numbers = [number for number in value if type(number) is float] if isinstance(value, list) else []
    if not isinstance(value, list) or not len(value) == len(numbers) == len(names) or not all(map(_is_size, numbers)):
        raise FieldError(
            f"quantisation.errors.{layer}: each must be {len(names)} numbers from 0 on: {', '.join(names)}"
        )
    return ExpertErrors(*numbers)


def _is_size(number: float) -> bool:
    return 0 <= number < 1e30


def _perplexities(content: Fields) -> Perplexities | None:
    if content.is_null("perplexity"):
        return None
    group = content.group("perplexity")
    tokens = group.count("tokens", 1, 2**40)
    before, after, rounded = (group.number_or_none(name) for name in ("before", "after", "rounded_rows"))
    if before is None or after is None or not all(number is None or number >= 1 for number in (before, after, rounded)):
        raise FieldError(
            "quantisation.perplexity: before and after must be numbers from 1 on, rounded_rows too or null"
        )
    group.done()
    return Perplexities(tokens, before, after, rounded)


def _kept(layer: int, group: Fields, count: int) -> tuple[int, ...]:
    value = dict(group.items()).get(str(layer))
    ids = [expert for expert in value if type(expert) is int] if isinstance(value, list) else []
    if not isinstance(value, list) or len(ids) != len(value) or ids != sorted({*ids} & {*range(count)}):
        raise FieldError(f"quantisation.kept.{layer}: must be a list of expert ids below {count}, ascending")
    return tuple(ids)
