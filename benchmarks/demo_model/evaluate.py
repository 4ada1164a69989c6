"""Perplexity of the dense and the demo model on held-out text: `python -m benchmarks.demo_model.evaluate --help`.

Takes the checkpoint that moe.models.demo writes, as transformers runs it, so that what is measured is what is served.
Writes JSON: settings, and per model and k the perplexity of every domain; `--table` prints it as Markdown.
"""

import json
import time
from pathlib import Path
from typing import Any

import click
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from benchmarks.demo_model.perplexity import perplexities
from benchmarks.demo_model.precision import dtype_option
from benchmarks.demo_model.texts import DOMAINS, LENGTH, evaluation_rows

TOPKS = (4, 8, 6, 3, 2)  # the served one first, in case the run is cut short


def load(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The checkpoint, its bf16 weights computed with in `dtype`."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()


def set_topk(model: PreTrainedModel, topk: int) -> None:
    """Route every layer to `topk` experts."""
    for layer in model.model.layers:
        layer.mlp.gate.top_k = topk


def markdown(results: dict[str, dict[str, float]]) -> str:
    """A table: one row a model and k, one column a domain, and the ratio to the dense model over all tokens."""
    columns = [*DOMAINS, "all"]
    lines = ["| model | " + " | ".join(columns) + " | x dense |", "|---|" + "---:|" * (len(columns) + 1)]
    for name, values in results.items():
        cells = [f"{values[column]:.2f}" for column in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {values['all'] / results['dense']['all']:.2f} |")
    return "\n".join(lines)


@click.command()
@click.option("--dense", type=click.Path(path_type=Path, exists=True), required=True, help="Dense checkpoint.")
@click.option("--moe", type=click.Path(path_type=Path, exists=True), required=True, help="Demo checkpoint.")
@click.option("--corpora", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the texts.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="JSON file to write.")
@click.option("--rows", default=8, show_default=True, help="Rows of 512 tokens per domain.")
@click.option("--topk", "topks", type=int, multiple=True, default=TOPKS, show_default=True, help="Experts a token.")
@click.option("--table", is_flag=True, help="Print the table as Markdown.")
@dtype_option
def main(
    *,
    dense: Path,
    moe: Path,
    corpora: Path,
    out: Path,
    rows: int,
    topks: tuple[int, ...],
    table: bool,
    dtype: torch.dtype,
) -> None:
    """Measure dense, then the demo model at every k; the JSON is written anew after each."""
    sets = evaluation_rows(corpora, AutoTokenizer.from_pretrained(dense), rows)
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "tokens": {name: int(values.numel()) for name, values in sets.items()},
        "row_tokens": LENGTH,
        "results": {},
    }
    models = [("dense", dense, None), *((f"k={topk}", moe, topk) for topk in topks)]
    model, loaded = None, None
    for name, path, topk in models:
        started = time.monotonic()
        if model is None or loaded != path:
            model, loaded = load(path, dtype), path
        if topk is not None:
            set_topk(model, topk)
        report["results"][name] = perplexities(model, sets)
        out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        click.echo(f"{name}: {report['results'][name]} in {time.monotonic() - started:.0f} s")
    if table:
        click.echo(markdown(report["results"]))


if __name__ == "__main__":
    main()
