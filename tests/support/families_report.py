"""The table in docs/families.md, from what the exactness suite measured."""

from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

_HEAD = """# Model families

Written by `make families` from a run of `tests/exactness`; do not edit. transformers {transformers},
torch {torch}, CPU.


Each family is a small random model with weights large enough that every expert moves the logits. It is converted to
a package and served by real expert processes; the largest difference of any logit to transformers' own forward with
`grouped_mm` experts is shown, over ragged prompts in one batch, chunked prefill, 64 decoded tokens, groups 1, 2 and
one for each expert, replicas 1 and 2, and the three placements of the aggregator. The bound in float32 is 1e-4; in
bfloat16 it is the model's own sensitivity to the bound derived in
[decision 0004](decisions/0004-bfloat16-bound.md), and the figure is the difference to the single-process model as a
part of that bound.

| family (`model_type`) | arrangements | float32: largest difference | bfloat16: part of the bound |
|---|---|---|---|
"""


def write_report(path: Path, measured: Iterable[tuple[str, str, float]]) -> None:
    """measured: (family, dtype, difference), one for each test that passed."""
    by_family: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for family, dtype, difference in measured:
        by_family[family][dtype].append(difference)
    head = _HEAD.format(transformers=version("transformers"), torch=version("torch"))
    path.write_text(head + "".join(_row(family, by_family[family]) for family in sorted(by_family)))


def _row(family: str, differences: dict[str, list[float]]) -> str:
    single, half = differences.get("float32", []), differences.get("bfloat16", [])
    exact = f"{max(single):.1e}" if single else "–"
    share = f"{max(half):.2f}" if half else "–"
    return f"| `{family}` | {len(single)} | {exact} | {share} |\n"
