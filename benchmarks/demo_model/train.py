"""Distil the dense model into the split one: `python -m benchmarks.demo_model.train --help`.

Starts from a split (made by split_labels.py), an earlier adapter, or its own saved state, and runs until a moment on
the clock: the learning rate warms up and then follows a cosine of the wall-clock time, so that a shared machine's
speed doesn't matter. Every ten minutes, at the end and on SIGTERM the adapter and the state are written atomically.
"""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import cos, pi
from pathlib import Path

import click
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.demo_model.distillation import distil_step
from benchmarks.demo_model.perplexity import perplexities
from benchmarks.demo_model.precision import dtype_option
from benchmarks.demo_model.student import adapter_tensors, build_student, load_adapter
from benchmarks.demo_model.texts import DOMAINS, TrainingRows, evaluation_rows, token_rows

ROWS = 2  # rows of 512 tokens drawn at once; an update takes `--batches` such draws
WINDOW = 256  # tokens of context in training: half a row, because attention's cost on a CPU grows with its square
DOMAIN_WEIGHTS = {
    "finance": 2, "legal": 5, "techdoc": 3, "code": 3, "scripture": 4, "world": 3, "chat": 8,
}  # fmt: skip  # more of the domains that lose most by splitting, and of chat, which the demo is for
WARM_UP_STEPS = 25
FLOOR = 0.03  # of the peak rate, at the end
SAVE_SECONDS = 600


@dataclass
class Progress:
    """How far the training has come; moments in seconds since the epoch. What is saved beside the state."""

    start: float
    end: float
    step: int = 0
    tokens: int = 0

    def rate(self) -> float:
        """Share of the peak learning rate: linear warm-up by steps, cosine by wall-clock time down to FLOOR."""
        passed = min(1.0, (time.time() - self.start) / (self.end - self.start))
        return min(1.0, (self.step + 1) / WARM_UP_STEPS) * (FLOOR + (1 - FLOOR) * 0.5 * (1 + cos(pi * passed)))

    def metadata(self) -> dict[str, str]:
        """As safetensors wants it."""
        return {"start": repr(self.start), "step": str(self.step), "tokens": str(self.tokens)}


def moment(text: str) -> float:
    """HH:MM, today or else tomorrow, as seconds since the epoch."""
    clock = datetime.strptime(text, "%H:%M")
    at = datetime.now().replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    return (at if at > datetime.now() else at + timedelta(days=1)).timestamp()


def make_optimizer(student: PreTrainedModel, rate: float) -> torch.optim.AdamW:
    """AdamW without decay; `rate` is the peak for matrices and gates, half of it for norms."""
    named = [(name, parameter) for name, parameter in student.named_parameters() if parameter.requires_grad]
    gates = [parameter for name, parameter in named if name.endswith((".router", ".shared_gate"))]
    norms = [parameter for name, parameter in named if name.endswith(".tuning")]
    matrices = [parameter for name, parameter in named if name.endswith((".A", ".B"))]
    groups = [
        {"params": parameters, "peak": peak}
        for parameters, peak in ((matrices, rate), (gates, rate), (norms, rate / 2))
    ]
    return torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), weight_decay=0.0, foreach=True)


def write_atomically(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """A reader sees the old file or the new one, never a part."""
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata=metadata)
    partial.replace(path)


def save(student: PreTrainedModel, optimizer: torch.optim.AdamW, folder: Path, progress: Progress) -> None:
    """Write adapter.safetensors (for use) and state.safetensors (to resume: fp32 parameters and AdamW moments)."""
    write_atomically(adapter_tensors(student), folder / "adapter.safetensors", {"format": "pt"})
    state = {}
    for name, parameter in student.named_parameters():
        if parameter in optimizer.state:
            state[f"{name}:value"] = parameter.detach()
            state.update({f"{name}:{key}": value for key, value in optimizer.state[parameter].items()})
    write_atomically(state, folder / "state.safetensors", progress.metadata())


def resume(student: PreTrainedModel, optimizer: torch.optim.AdamW, path: Path, end: float) -> Progress:
    """Read back what save() wrote: parameters, moments, steps and the schedule's start. Rows are drawn afresh."""
    state = load_file(path)
    for name, parameter in student.named_parameters():
        if f"{name}:value" in state:
            parameter.data.copy_(state[f"{name}:value"])
            optimizer.state[parameter] = {key: state[f"{name}:{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}
    with safe_open(path, framework="pt") as file:
        saved = file.metadata()
    return Progress(float(saved["start"]), end, int(saved["step"]), int(saved["tokens"]))


def batch_source(corpora: Path, tokenizer: PreTrainedTokenizerBase, seed: int) -> Callable[[], Tensor]:
    """Draws batches [ROWS * LENGTH / WINDOW, WINDOW], each row's domain by DOMAIN_WEIGHTS."""
    sources = {
        domain: TrainingRows(token_rows(corpora / f"{domain}.train.txt", tokenizer), seed + index)
        for index, domain in enumerate(DOMAINS)
    }
    draws = random.Random(seed)
    weights = [DOMAIN_WEIGHTS[domain] for domain in DOMAINS]

    def draw() -> Tensor:
        domains = draws.choices(DOMAINS, weights, k=ROWS)
        return torch.stack([sources[domain].draw() for domain in domains]).view(-1, WINDOW)

    return draw


def update(optimizer: torch.optim.AdamW, share: float) -> None:
    """One optimiser step at `share` of the peak rates, the gradient's norm clipped at 1."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def load_models(dense: Path, start: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Teacher and student; their layers compiled, which nearly halves the time of a step on a CPU."""
    # eager: on a CPU the backward of scaled_dot_product_attention takes twice the time of plain matrix products
    teacher, student = (
        AutoModelForCausalLM.from_pretrained(dense, dtype=dtype, attn_implementation=attention).eval()
        for attention in ("sdpa", "eager")
    )
    adapter = load_file(start)
    build_student(student, adapter)
    load_adapter(student, adapter)
    for layer in (*teacher.model.layers, *student.model.layers):
        layer.forward = torch.compile(layer.forward, dynamic=False)
    return teacher, student


def look(model: PreTrainedModel, monitor: dict[str, Tensor]) -> dict[str, float]:
    """Perplexity on a few held-out rows, uncompiled: another batch shape would be compiled anew."""
    with torch.compiler.set_stance("force_eager"):
        return perplexities(model, monitor)


@dataclass
class Training:
    """One run; `monitor` are a few held-out rows per domain, only looked at."""

    teacher: PreTrainedModel
    student: PreTrainedModel
    optimizer: torch.optim.AdamW
    draw: Callable[[], Tensor]
    monitor: dict[str, Tensor]
    progress: Progress
    out: Path
    batches: int

    def run(self) -> None:
        """Steps until the end; a line every ten steps, a save and a look at held-out text every ten minutes."""
        signal.signal(signal.SIGTERM, self.stop)
        click.echo(f"teacher {look(self.teacher, self.monitor)}")
        click.echo(f"start   {look(self.student, self.monitor)}")
        saved, recent = time.time(), []
        while time.time() < self.progress.end:
            recent.append(self.step())
            if len(recent) == 10:
                minutes = (time.time() - self.progress.start) / 60
                click.echo(f"step {self.progress.step} KL {sum(recent) / 10:.3f} minutes {minutes:.1f}")
                recent.clear()
            if time.time() - saved > SAVE_SECONDS:
                self.save()
                saved = time.time()
        self.save()
        click.echo(f"done: {self.progress.step} steps, {self.progress.tokens} tokens")

    def step(self) -> float:
        """One update from `batches` draws; returns their mean KL in nats."""
        losses = []
        for _ in range(self.batches):
            batch = self.draw()
            losses.append(distil_step(self.teacher, self.student, batch))
            self.progress.tokens += batch.numel()
        update(self.optimizer, self.progress.rate())
        self.progress.step += 1
        return sum(losses) / len(losses)

    def save(self) -> None:
        """Write adapter and state, and tell the perplexity."""
        save(self.student, self.optimizer, self.out, self.progress)
        click.echo(f"saved at step {self.progress.step}: {look(self.student, self.monitor)}")

    def stop(self, *_: object) -> None:
        """On SIGTERM: end after this step."""
        self.progress.end = 0.0


@click.command()
@click.option("--dense", type=click.Path(path_type=Path, exists=True), required=True, help="Dense checkpoint.")
@click.option("--corpora", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the texts.")
@click.option("--start", type=click.Path(path_type=Path, exists=True), required=True, help="Split or adapter.")
@click.option("--state", type=click.Path(path_type=Path, exists=True), help="state.safetensors to resume.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for adapter and state.")
@click.option("--until", required=True, help="End, HH:MM by the local clock.")
@click.option("--rate", default=1e-3, show_default=True, help="Peak learning rate.")
@click.option("--batches", default=1, show_default=True, help="Draws of 1,024 tokens that an update sums up.")
@click.option("--seed", default=0, show_default=True)
@dtype_option
def main(
    *,
    dense: Path,
    corpora: Path,
    start: Path,
    state: Path | None,
    out: Path,
    until: str,
    rate: float,
    batches: int,
    seed: int,
    dtype: torch.dtype,
) -> None:
    """Train until the given moment."""
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(dense)
    teacher, student = load_models(dense, start, dtype)
    optimizer = make_optimizer(student, rate)
    progress = Progress(time.time(), moment(until))
    if state is not None:
        progress = resume(student, optimizer, state, progress.end)
    training = Training(
        teacher=teacher,
        student=student,
        optimizer=optimizer,
        draw=batch_source(corpora, tokenizer, seed + progress.step),
        monitor=evaluation_rows(corpora, tokenizer, 1),
        progress=progress,
        out=out,
        batches=batches,
    )
    training.run()


if __name__ == "__main__":
    main()
