"""Rows of tokens from the corpora, for training (endless, shuffled) and evaluation (fixed)."""

import random
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

DOMAINS = ("finance", "legal", "techdoc", "code", "scripture", "world", "chat")
LENGTH = 512  # tokens in a row


def token_rows(path: Path, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """[rows, LENGTH] int64: the whole file, cut into rows; the rest is dropped."""
    text = path.read_text(encoding="utf-8").replace("<|doc|>", "")
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor(ids[: len(ids) // LENGTH * LENGTH]).view(-1, LENGTH)


def evaluation_rows(corpora: Path, tokenizer: PreTrainedTokenizerBase, rows: int) -> dict[str, Tensor]:
    """Per domain up to `rows` held-out rows, spread evenly over the file."""
    chosen = {}
    for domain in DOMAINS:
        everything = token_rows(corpora / f"{domain}.eval.txt", tokenizer)
        step = max(1, len(everything) // rows)
        chosen[domain] = everything[::step][:rows]
    return chosen


class TrainingRows:
    """Draws rows of a domain in a shuffled order, each once before any comes again."""

    def __init__(self, rows: Tensor, seed: int) -> None:
        self._rows = rows
        self._random = random.Random(seed)
        self._order: list[int] = []

    def draw(self) -> Tensor:
        """One row, [LENGTH]."""
        if not self._order:
            self._order = self._random.sample(range(len(self._rows)), len(self._rows))
        return self._rows[self._order.pop()]
