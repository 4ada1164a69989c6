"""A start for the distillation from nothing but the dense model: `python -m benchmarks.demo_model.start --help`.

Splits every FFN by co-activation on training text and fits the routers; writes labels and routers in the adapter's
format, which train.py takes in place of an earlier adapter.
"""

from pathlib import Path

import click
import torch
from moe.models.dense.checkpoint import DenseCheckpoint
from moe.models.dense.split import SplitSizes, partitions
from safetensors.torch import save_file

from benchmarks.demo_model.texts import DOMAINS

SIZES = SplitSizes(experts=8, shared_neurons=512, topk=4)
CHARACTERS = 8_000  # of each domain, about 2,000 tokens


@click.command()
@click.option("--dense", type=click.Path(path_type=Path, exists=True), required=True, help="Dense checkpoint.")
@click.option("--corpora", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the texts.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File to write, start.safetensors.")
def main(dense: Path, corpora: Path, out: Path) -> None:
    """Write the split's labels and routers."""
    texts = [(corpora / f"{domain}.train.txt").read_text(encoding="utf-8")[:CHARACTERS] for domain in DOMAINS]
    tensors: dict[str, torch.Tensor] = {}
    for layer, _, partition in partitions(DenseCheckpoint(dense), SIZES, texts):
        tensors[f"l{layer}.labels"], tensors[f"l{layer}.router"] = partition.labels, partition.router
        click.echo(f"layer {layer} split")
    save_file(tensors, out, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
