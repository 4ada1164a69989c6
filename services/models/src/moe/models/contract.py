"""What the rest of moe sees of a model: a backbone that steps over packed tokens and asks a callback for its experts.

The router knows these types and nothing of transformers. Rows are tokens of several sequences packed one after the
other; a sequence's keys and values live in a slot that the scheduler hands out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one sequence within a packed step.

    slot: where its keys and values live. start: position of its first token, equal to the number of tokens already
    in the slot. count: tokens in this step, at least 1 (1 when decoding, more in a prefill chunk).
    """

    slot: int
    start: int
    count: int


@dataclass(frozen=True)
class PackedBatch:
    """One step's input: the segments in order, their token ids packed, and the rows whose logits are wanted.

    token_ids: int64 [rows], rows = sum of the segments' counts. logit_rows: int64 [wanted], indices into the rows.
    """

    segments: Sequence[Segment]
    token_ids: Tensor
    logit_rows: Tensor


class Experts(Protocol):
    """Computes the routed experts of one layer."""

    def __call__(self, layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        """Returns [n, hidden], the sum over k of weights[:, k] * expert[index[:, k]](hidden), in hidden's dtype.

        hidden [n, hidden]; index int64 [n, k], an index >= the layer's experts is a dropped slot and contributes 0;
        weights [n, k], float32 or hidden's dtype; rows int64 [n], for each row of `hidden` its row in the
        PackedBatch (a forward may hold a part of the batch, and a family may send a row k times).
        Called from the thread that runs `Backbone.step`, in layer order.
        """


@runtime_checkable
class OverlappingExperts(Protocol):
    """Experts elsewhere, during whose work the caller has time."""

    def overlap(
        self, layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor, meanwhile: Callable[[], None]
    ) -> Tensor:
        """As `Experts`; calls `meanwhile` at most once, when the rows are on their way. Its errors pass through."""


@dataclass(frozen=True)
class BackboneInfo:
    """Facts that the router needs. moe_layers: decoder layer index -> number of routed experts."""

    family: str
    vocabulary: int
    hidden: int
    topk: int
    max_context: int
    moe_layers: dict[int, int]
    eos_token_ids: frozenset[int]
    kv_bytes_per_token: int


Strategy = Literal["family", "drop"]
"""How other than the checkpoint's own top-k experts are taken.

family: the family's own selection, scores and normalisation, as if its configuration said so. drop: the checkpoint's
own selection, of which only the heaviest are asked; their weights stay as they are, the others' are missing.
"""


class Backbone(Protocol):
    """A model without its routed experts, with a slot cache."""

    info: BackboneInfo

    def allocate(self, slots: int, slot_tokens: int) -> None:
        """Reserves the cache: `slots` sequences of at most `slot_tokens` tokens. Raises MemoryError by size."""

    def step(self, batch: PackedBatch, experts: Experts) -> Tensor:
        """Runs the packed tokens through the model; returns float32 logits [wanted, vocabulary].

        A segment with start 0 begins a new sequence in its slot, whatever was there before.
        """

    def release(self, slot: int) -> None:
        """Tells that a slot's sequence is over (recurrent state is dropped, pages are freed)."""

    def route(self, topk: int, strategy: "Strategy") -> None:
        """Experts per token from the next step on, and how they are chosen; topk 0: as the checkpoint has it.

        Raises BackboneError for what the family can't do; all stays as it was then.
        """
