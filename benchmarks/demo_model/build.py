"""Writes the demo model with any adapter, not just the committed one: `python -m benchmarks.demo_model.build OUT`."""

from pathlib import Path

import click
from moe.models.demo.adapter import Adapter
from moe.models.demo.build import TOPK, write_split_checkpoint
from moe.models.demo.fetch import obtain_gguf
from moe.models.demo.gguf_dense import GgufLlama


def tell(done: int, total: int, label: str) -> None:
    """A line for every layer; progress in bytes says less here."""
    click.echo(label)


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--adapter", type=click.Path(path_type=Path, exists=True), required=True, help="What train.py wrote.")
@click.option("--gguf", type=click.Path(path_type=Path), help="The GGUF file; downloaded when not given.")
def main(out: Path, adapter: Path, gguf: Path | None) -> None:
    """Write a Hugging Face Qwen2-MoE checkpoint to OUT."""
    dense = GgufLlama(obtain_gguf(gguf))
    write_split_checkpoint(dense, Adapter.load(adapter), out, topk=TOPK, progress=tell)


if __name__ == "__main__":
    main()
