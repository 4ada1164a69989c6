"""Writes the dense demo model, the distillation's teacher: `python -m benchmarks.demo_model.dense OUT`."""

from pathlib import Path

import click
from moe.models.demo.build import write_dense_checkpoint
from moe.models.demo.fetch import obtain_gguf
from moe.models.demo.gguf_dense import GgufLlama

from benchmarks.demo_model.build import tell


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--gguf", type=click.Path(path_type=Path), help="The GGUF file; downloaded when not given.")
def main(out: Path, gguf: Path | None) -> None:
    """Write a Hugging Face Llama checkpoint to OUT."""
    write_dense_checkpoint(GgufLlama(obtain_gguf(gguf)), out, progress=tell)


if __name__ == "__main__":
    main()
