"""What the exactness suite compares with: checkpoint, package and reference of a family, made once each."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from moe.models.convert import convert_checkpoint
from moe.models.package import Package
from moe.operator.planner import ModelFacts
from support.families import VOCABULARY, load_reference, write_checkpoint
from torch import Tensor

TOLERANCE = 1e-4
"""Float32: sums in another order differ by some 1e-6 in these models' logits, whose size is about 10."""

CHUNK = 5
"""Not a divisor of the prompts' lengths: chunks end in the middle of prompts and in their last token."""

GENERATED = 64
PROMPT_LENGTHS = (1, 3, 8, 17, 30)
"""One token, fewer than a chunk, a whole number of chunks, a remainder, and longer than the sliding windows."""


@dataclass(frozen=True)
class ExactModel:
    """A family's random model: as checkpoint, as package, and what transformers makes of the prompts."""

    family: str
    dtype: torch.dtype
    checkpoint: Path
    package: Path

    @cached_property
    def reference(self) -> Any:
        """The whole model in transformers, experts by grouped_mm."""
        return load_reference(self.checkpoint)

    @cached_property
    def facts(self) -> ModelFacts:
        """What the planner needs."""
        manifest = Package.open(self.package).manifest
        return ModelFacts(manifest.name, manifest.moe_layers, manifest.topk)

    @cached_property
    def prompts(self) -> list[list[int]]:
        """Random ids from 3 on: none of them special."""
        generator = torch.Generator().manual_seed(11)
        return [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]

    @cached_property
    def drawn(self) -> list[list[int]]:
        """The 64 tokens that transformers' generate continues each prompt with, greedy."""
        return [tokens for tokens, _ in self._generated]

    @cached_property
    def sequences(self) -> list[list[int]]:
        """Each prompt and what was drawn, but for the last token, which nothing follows."""
        return [prompt + tokens[:-1] for prompt, tokens in zip(self.prompts, self.drawn, strict=True)]

    @cached_property
    def logits(self) -> list[Tensor]:
        """Float32 [tokens, vocabulary] of each sequence: the prompt's in one forward, then as generate had them."""
        with torch.no_grad():
            prompts = [self.reference(input_ids=torch.tensor([p]), use_cache=False).logits[0] for p in self.prompts]
        steps = [logits for _, logits in self._generated]
        return [torch.cat([prompt.float(), step[1:]]) for prompt, step in zip(prompts, steps, strict=True)]

    @cached_property
    def _generated(self) -> list[tuple[list[int], Tensor]]:
        return [self._generate(prompt) for prompt in self.prompts]

    def _generate(self, prompt: list[int]) -> tuple[list[int], Tensor]:
        with torch.no_grad():
            result = self.reference.generate(
                input_ids=torch.tensor([prompt]),
                max_new_tokens=GENERATED,
                min_new_tokens=GENERATED,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
        return result.sequences[0, len(prompt) :].tolist(), torch.cat(result.logits).float()


def make_exact_model(family: str, dtype: torch.dtype, folder: Path) -> ExactModel:
    """Writes checkpoint and package below the folder."""
    checkpoint = write_checkpoint(family, folder / "checkpoint", dtype)
    package = convert_checkpoint(checkpoint, folder / "package", name="tiny")
    return ExactModel(family, dtype, checkpoint, package)


def largest_difference(got: list[Tensor], want: list[Tensor]) -> float:
    """Over all sequences, positions and tokens."""
    return max((g - w).abs().max().item() for g, w in zip(got, want, strict=True))
