"""A loop like an engine's over a backbone: greedy, all prompts at once, prefill in chunks beside decoding rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from moe.models.contract import Backbone, Experts, PackedBatch, Segment
from torch import Tensor


@dataclass
class Sequenced:
    """One sequence in the loop: its tokens so far, how many the cache holds, and the logits of what was generated."""

    slot: int
    tokens: list[int]
    prompt: int
    cached: int = 0
    logits: list[Tensor] = field(default_factory=list)

    @property
    def generated(self) -> list[int]:
        """Tokens after the prompt."""
        return self.tokens[self.prompt :]


def generate(
    backbone: Backbone,
    experts: Experts,
    prompts: Sequence[Sequence[int]],
    count: int,
    *,
    chunk: int = 16,
    slots: Sequence[int] | None = None,
) -> list[Sequenced]:
    """Generates `count` tokens for each prompt; `chunk` is the most tokens of one sequence per step.

    slots: one for each prompt; the first ones when not given. The cache must be allocated.
    """
    where = slots if slots is not None else range(len(prompts))
    sequences = [Sequenced(slot, list(prompt), len(prompt)) for slot, prompt in zip(where, prompts, strict=True)]
    while running := [one for one in sequences if len(one.logits) < count]:
        _step(backbone, experts, running, chunk)
    return sequences


def _step(backbone: Backbone, experts: Experts, running: list[Sequenced], chunk: int) -> None:
    segments: list[Segment] = []
    token_ids: list[int] = []
    finished: list[tuple[Sequenced, int]] = []
    for one in running:
        new = one.tokens[one.cached : one.cached + chunk]
        segments.append(Segment(one.slot, one.cached, len(new)))
        token_ids += new
        one.cached += len(new)
        if one.cached == len(one.tokens):
            finished.append((one, len(token_ids) - 1))
    wanted = torch.tensor([row for _, row in finished], dtype=torch.int64)
    logits = backbone.step(PackedBatch(segments, torch.tensor(token_ids), wanted), experts)
    for (one, _), row in zip(finished, logits, strict=True):
        one.logits.append(row.clone())
        one.tokens.append(int(row.argmax()))


def random_prompts(lengths: Sequence[int], seed: int = 0, vocabulary: int = 128) -> list[list[int]]:
    """Prompts of these lengths, always the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocabulary, (length,), generator=generator).tolist() for length in lengths]
