"""The tables of one model: a row for each engine, figures with their spread, ratios to the one process without hops."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.end_to_end.engines import WEIGHTS
from benchmarks.figures import paired_ratio, summary
from benchmarks.tables import number, table

COLUMNS = {
    "w1_tokens_s": "W1 tokens/s",
    "w2_first_ms": "W2 first ms",
    "w2_per_token_ms": "W2 ms/token",
}
LOAD_COLUMNS = {
    "w3_capacity_s": "requests/s",
    "w3_50_first_p50_ms": "50%: first P50",
    "w3_50_first_p99_ms": "P99",
    "w3_50_per_token_p50_ms": "token P50",
    "w3_50_per_token_p99_ms": "P99",
    "w3_90_first_p50_ms": "90%: first P50",
    "w3_90_first_p99_ms": "P99",
    "w3_90_per_token_p50_ms": "token P50",
    "w3_90_per_token_p99_ms": "P99",
}
MEMORY = "memory_gbps"
"""What the machine's memory gave, the mean of before and after a turn: it is others', too, and moves."""
BASELINE = "moe, one process"


@dataclass
class Result:
    """Of one engine. rounds: figure -> its value in each round. absent: why there are none."""

    name: str
    rounds: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    absent: str = ""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        medians = {figure: summary(values).median for figure, values in self.rounds.items()}
        facts = {"facts": self.facts, "absent": self.absent}
        return {"engine": self.name, "medians": medians, "rounds": self.rounds, **facts}


def results_text(results: Sequence[Result]) -> str:
    """W1 and W2: the table, how engines' answers were checked, then the reasons of those that are absent."""
    header = ["engine", *COLUMNS.values(), "spread", "tax W1", "tax W2", "MiB", "memory GB/s", "answers"]
    return "\n\n".join([table(header, _rows(results)), *_absent(results)])


def load_text(results: Sequence[Result], requests: int) -> str:
    """W3."""
    what = (
        f"W3: {requests} requests a part, milliseconds, at 50% and 90% of each engine's own capacity, which is how "
        "many requests a second it does when all of the same mix wait from the start."
    )
    columns = LOAD_COLUMNS | {MEMORY: "memory GB/s"}
    rows = [_figures(result, columns) for result in results]
    return "\n\n".join([what, table(["engine", *columns.values()], rows), *_absent(results)])


def _absent(results: Sequence[Result]) -> list[str]:
    return [f"absent: {result.absent}" for result in results if result.absent]


def _rows(results: Sequence[Result]) -> list[list[str]]:
    named = {result.name: result for result in results}
    rows = []
    for result in results:
        baseline = named.get(BASELINE + _weights(result.name))
        resident, answers = (str(result.facts.get(fact, "-")) for fact in ("resident_mib", "answers"))
        ends = [*_ends(result, baseline), resident, *_figures(result, {MEMORY: ""})[1:], answers]
        rows.append([*_figures(result, COLUMNS), *ends])
    return rows


def _weights(engine: str) -> str:
    """How an engine's name says what its experts hold: a tax is taken against the same."""
    return next((words for words in WEIGHTS.values() if words and words in engine), "")


def _figures(result: Result, columns: dict[str, str]) -> list[str]:
    """`absent` for an engine that has no figure at all, `-` for a figure that was not asked for."""
    cells = []
    for figure in columns:
        values = result.rounds.get(figure)
        cells.append(number(summary(values).median if values else None) if values or not result.rounds else "-")
    return [result.name, *cells]


def _ends(result: Result, baseline: Result | None) -> list[str]:
    """Largest spread; how much dearer than one process, for ours."""
    if not result.rounds:
        return ["absent", "-", "-"]
    figures = [summary(result.rounds[figure]) for figure in COLUMNS if figure in result.rounds]
    spread = f"{max(each.spread for each in figures):.0%}" if figures and figures[0].rounds > 1 else "-"
    if baseline is None or not baseline.rounds or "moe" not in result.name or result is baseline:
        return [spread, "-", "-"]
    return [spread, *tax(result, baseline)]


def tax(result: Result, baseline: Result) -> tuple[str, str]:
    """How much less throughput and how much longer a token than the baseline's, paired by round; `-` if unpaired."""
    pairs = [(baseline, result, "w1_tokens_s"), (result, baseline, "w2_per_token_ms")]
    cells = []
    for above, below, figure in pairs:
        numerators, denominators = above.rounds.get(figure, []), below.rounds.get(figure, [])
        same = len(numerators) == len(denominators) > 0
        cells.append(f"{paired_ratio(numerators, denominators) - 1:+.0%}" if same else "-")
    return cells[0], cells[1]
