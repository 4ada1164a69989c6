"""A tiny recurrent "model" behind moe.models.contract.Backbone, for tests of the engine: quick, exact, easy to break.

Every row is computed by itself, so its bits don't depend on the batch. Token t goes to the experts t and t + 1 (modulo
their number) in every layer, so a test chooses by the prompt which groups are needed; with another top-k to so many
from t on.
"""

from collections.abc import Sequence

import torch
from moe.models.contract import BackboneInfo, Experts, PackedBatch, Segment, Strategy
from moe.models.seams.errors import BackboneError
from torch import Tensor

VOCABULARY = 32
HIDDEN = 8
EXPERTS = 4
LAYERS = 2
END = 1
"""The model's end token."""

EXPLODES = 30
"""A step with this token raises; the model itself never says it."""

NOT_A_NUMBER = 31
"""This token's hidden state is NaN; the model itself never says it."""


def multiply(layer: int, expert: int, rows: Tensor) -> Tensor:
    """The experts: each scales by a number of its own."""
    return rows * (0.1 * (expert + 1) + layer * 0.05)


class FakeBackbone:
    """See the module. slot_tokens and slots as allocated; `released` are the slots in order of release."""

    def __init__(self, max_context: int = 64) -> None:
        generator = torch.Generator().manual_seed(4)
        self._embedding = torch.randn(VOCABULARY, HIDDEN, generator=generator)
        self._embedding[NOT_A_NUMBER] = torch.nan
        self._head = torch.randn(VOCABULARY, HIDDEN, generator=generator)
        self._head[END] = 0.0
        self._never = torch.zeros(VOCABULARY)
        self._never[[EXPLODES, NOT_A_NUMBER]] = -1e4
        self._states: dict[int, list[Tensor]] = {}
        self._topk = 2
        self.released: list[int] = []
        self.steps: list[PackedBatch] = []
        self.info = BackboneInfo(
            family="fake",
            vocabulary=VOCABULARY,
            hidden=HIDDEN,
            topk=2,
            max_context=max_context,
            moe_layers=dict.fromkeys(range(LAYERS), EXPERTS),
            eos_token_ids=frozenset({END}),
            kv_bytes_per_token=HIDDEN * 4,
        )

    def allocate(self, slots: int, slot_tokens: int) -> None:
        self.slots, self.slot_tokens = slots, slot_tokens

    def step(self, batch: PackedBatch, experts: Experts) -> Tensor:
        self.steps.append(batch)
        if EXPLODES in batch.token_ids.tolist():
            raise ValueError("token 30 explodes")
        hidden = torch.stack(self._contexts(batch))
        index = torch.stack([(batch.token_ids + rank) % EXPERTS for rank in range(self._topk)], dim=1)
        weights = torch.tensor([[0.75, 0.25, 0.125, 0.0625]])[:, : self._topk].repeat(len(index), 1)
        rows = torch.arange(len(index))
        for layer in range(LAYERS):
            hidden = hidden + experts(layer, hidden, index, weights, rows)
        logits = [self._head @ hidden[row] + self._never for row in batch.logit_rows.tolist()]
        return torch.stack(logits) if logits else torch.empty(0, VOCABULARY)

    def route(self, topk: int, strategy: Strategy) -> None:
        if topk > EXPERTS:
            raise BackboneError(f"top-k is {topk}; want 1 to {EXPERTS}")
        self._topk = topk or 2

    def release(self, slot: int) -> None:
        self.released.append(slot)
        self._states.pop(slot, None)

    def _contexts(self, batch: PackedBatch) -> list[Tensor]:
        """Each row's state: half the one before it in its slot, plus its token."""
        contexts, tokens = [], iter(batch.token_ids.tolist())
        for segment in batch.segments:
            states = self._states.setdefault(segment.slot, [])
            if segment.start == 0:
                states.clear()
            assert len(states) == segment.start, f"slot {segment.slot} holds {len(states)}, not {segment.start}"
            assert segment.start + segment.count <= self.slot_tokens
            for _ in range(segment.count):
                before = states[-1] if states else torch.zeros(HIDDEN)
                states.append(before / 2 + self._embedding[next(tokens)])
                contexts.append(states[-1])
        return contexts


def local_experts(layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
    """The experts of a layer without any service, added by groups of two as the services would."""
    answer = torch.zeros_like(hidden)
    for group in (range(2), range(2, EXPERTS)):
        part = torch.zeros_like(hidden)
        for row in range(len(hidden)):
            for k in range(index.shape[1]):
                if int(index[row, k]) in group:
                    part[row] += weights[row, k] * multiply(layer, int(index[row, k]), hidden[row])
        answer += part
    return answer


def reference_logits(tokens: Sequence[int], topk: int = 0) -> Tensor:
    """[tokens, vocabulary]: the model alone, everything in one step."""
    backbone = FakeBackbone()
    backbone.route(topk, "family")
    backbone.allocate(1, len(tokens))
    every = torch.arange(len(tokens))
    return backbone.step(PackedBatch((Segment(0, 0, len(tokens)),), torch.tensor(tokens), every), local_experts)


def reference_greedy(prompt: Sequence[int], count: int, topk: int = 0) -> list[int]:
    """The greedy continuation, token by token from the start each time; stops after the end token."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(int(reference_logits(tokens, topk)[-1].argmax()))
        if tokens[-1] == END:
            break
    return tokens[len(prompt) :]
