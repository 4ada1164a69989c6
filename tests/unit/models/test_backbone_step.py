"""What a step refuses, what an exception leaves behind, and that sequences don't touch one another."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from moe.models.backbone import BackboneError, StepError, TransformersBackbone, load_backbone
from moe.models.backbone import cache as cache_module
from moe.models.contract import PackedBatch, Segment
from support.families import load_reference, write_checkpoint
from support.local_experts import LocalExperts
from support.packed_loop import generate, random_prompts
from torch import Tensor

FAMILY = "qwen2_moe"
RECURRENT = "qwen3_next"
SLOTS, SLOT_TOKENS = 4, 64


class Stage:
    """A backbone with its experts."""

    def __init__(self, directory: Path) -> None:
        self.backbone: TransformersBackbone = load_backbone(directory)
        self.experts = LocalExperts(load_reference(directory))
        self.backbone.allocate(SLOTS, SLOT_TOKENS)

    def step(self, segments: Sequence[Segment], token_ids: Sequence[int], rows: Sequence[int]) -> Tensor:
        batch = PackedBatch(segments, torch.tensor(token_ids), torch.tensor(rows, dtype=torch.int64))
        return self.backbone.step(batch, self.experts)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_checkpoint(name, tmp_path_factory.mktemp(name)) for name in (FAMILY, RECURRENT)}


@pytest.fixture(scope="module")
def stages(directories: dict[str, Path]) -> dict[str, Stage]:
    return {name: Stage(directory) for name, directory in directories.items()}


@pytest.fixture
def stage(stages: dict[str, Stage]) -> Stage:
    stage = stages[FAMILY]
    for slot in range(SLOTS):
        stage.backbone.release(slot)
    return stage


@pytest.fixture
def recurrent(stages: dict[str, Stage]) -> Stage:
    return stages[RECURRENT]


def one_more(position: int) -> PackedBatch:
    return PackedBatch([Segment(0, position, 1)], torch.tensor([7]), torch.tensor([0]))


class FailingExperts:
    """Answers zeros until a layer, at which it raises."""

    def __init__(self, layer: int) -> None:
        self._layer = layer

    def __call__(self, layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        if layer == self._layer:
            raise TimeoutError("expert 3 is gone")
        return torch.zeros_like(hidden)


@pytest.mark.parametrize(
    ("segments", "token_ids", "rows", "message"),
    [
        ([], [], [], "batch is empty"),
        ([Segment(4, 0, 1)], [5], [0], r"slot 4 is outside 0\.\.3"),
        ([Segment(-1, 0, 1)], [5], [0], r"slot -1 is outside 0\.\.3"),
        ([Segment(0, 0, 0)], [], [], "slot 0 has count 0"),
        ([Segment(0, 0, 65)], [5] * 65, [0], r"slot 0 would hold tokens 0\.\.64; it has room for 64"),
        ([Segment(0, -1, 1)], [5], [0], r"slot 0 would hold tokens -1"),
        ([Segment(0, 3, 1)], [5], [0], "slot 0 starts at 3, but holds 0 tokens"),
        ([Segment(0, 0, 1), Segment(0, 0, 1)], [5, 5], [0], "slot 0 occurs twice"),
        ([Segment(0, 0, 2)], [5], [0], "token_ids: got 1 ids for segments of 2 tokens"),
        ([Segment(0, 0, 1)], [128], [0], r"token_ids: 128 is outside 0\.\.127"),
        ([Segment(0, 0, 1)], [-1], [0], r"token_ids: -1 is outside 0\.\.127"),
        ([Segment(0, 0, 1)], [5], [1], r"logit_rows: 1 is outside 0\.\.0"),
        ([Segment(0, 0, 1)], [5.0], [0], "token_ids: got torch.float32"),
    ],
)
def test_a_batch_that_breaks_the_contract_is_refused_by_field_and_bound(
    stage: Stage, segments: list[Segment], token_ids: list[int], rows: list[int], message: str
) -> None:
    with pytest.raises(StepError, match=message):
        stage.step(segments, token_ids, rows)


def test_a_step_before_allocation_is_refused(directories: dict[str, Path]) -> None:
    backbone = load_backbone(directories[FAMILY])

    with pytest.raises(StepError, match="call allocate first"):
        backbone.release(0)


def test_releasing_an_unknown_slot_is_refused(stage: Stage) -> None:
    with pytest.raises(StepError, match="slot: got 9; want 0 to 3"):
        stage.backbone.release(9)


def test_a_cache_beyond_memory_is_refused_with_its_size(
    directories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "available_bytes", lambda: 2**20)

    # 100 slots x 64 tokens x 768 bytes = 4.6875 MiB
    with pytest.raises(MemoryError, match=r"100 slots of 64 tokens take 4\.69 MiB \(768 bytes a token"):
        load_backbone(directories[FAMILY]).allocate(100, 64)


def test_slots_longer_than_the_model_s_context_are_refused(stage: Stage) -> None:
    with pytest.raises(StepError, match="slot_tokens: got 513; want 1 to 512"):
        stage.backbone.allocate(1, 513)


def test_no_wanted_rows_give_no_logits(stage: Stage) -> None:
    assert stage.step([Segment(0, 0, 2)], [5, 6], []).shape == (0, 128)


def test_logits_are_float32_whatever_the_model_computes_in(directories: dict[str, Path]) -> None:
    backbone = load_backbone(directories[FAMILY], dtype=torch.bfloat16)
    backbone.allocate(1, 8)
    batch = PackedBatch([Segment(0, 0, 1)], torch.tensor([5]), torch.tensor([0]))

    assert backbone.step(batch, FailingExperts(layer=99)).dtype == torch.float32


def test_rows_come_in_the_order_asked_for(stage: Stage) -> None:
    forward = stage.step([Segment(0, 0, 3)], [5, 6, 7], [0, 1, 2])

    chosen = stage.step([Segment(0, 0, 3)], [5, 6, 7], [2, 0])

    torch.testing.assert_close(chosen, forward[[2, 0]], atol=1e-5, rtol=0)


def test_what_the_experts_raise_passes_through(stage: Stage) -> None:
    batch = PackedBatch([Segment(0, 0, 1)], torch.tensor([5]), torch.tensor([0]))

    with pytest.raises(TimeoutError, match="expert 3 is gone"):
        stage.backbone.step(batch, FailingExperts(layer=1))


def test_a_failed_step_can_be_repeated(stage: Stage) -> None:
    (wanted,) = generate(stage.backbone, stage.experts, random_prompts((9,)), 1)
    (prompt,) = random_prompts((9,))
    stage.step([Segment(0, 0, 5)], prompt[:5], [])
    rest = PackedBatch([Segment(0, 5, 4)], torch.tensor(prompt[5:]), torch.tensor([3]))
    with pytest.raises(TimeoutError):
        stage.backbone.step(rest, FailingExperts(layer=2))

    torch.testing.assert_close(stage.backbone.step(rest, stage.experts)[0], wanted.logits[0], atol=1e-5, rtol=0)


def test_a_recurrent_state_can_t_be_continued_after_a_failure(recurrent: Stage) -> None:
    recurrent.step([Segment(0, 0, 2)], [5, 6], [])
    following = PackedBatch([Segment(0, 2, 1)], torch.tensor([7]), torch.tensor([0]))
    with pytest.raises(TimeoutError):
        recurrent.backbone.step(following, FailingExperts(layer=2))

    with pytest.raises(StepError, match="slot 0 starts at 2, but holds a failed step's state; start there or at 0"):
        recurrent.backbone.step(following, recurrent.experts)


def test_a_recurrent_sequence_can_begin_anew_after_a_failure(recurrent: Stage) -> None:
    (wanted,) = generate(recurrent.backbone, recurrent.experts, random_prompts((9,)), 2)
    with pytest.raises(TimeoutError):
        recurrent.backbone.step(
            PackedBatch([Segment(0, 10, 1)], torch.tensor([7]), torch.tensor([0])), FailingExperts(layer=2)
        )

    (again,) = generate(recurrent.backbone, recurrent.experts, random_prompts((9,)), 2)

    assert torch.equal(torch.stack(again.logits), torch.stack(wanted.logits))


def test_an_answer_of_another_shape_is_refused_by_layer(stage: Stage) -> None:
    batch = PackedBatch([Segment(0, 0, 2)], torch.tensor([5, 6]), torch.tensor([0]))

    with pytest.raises(BackboneError, match=r"layer 0 answered torch.float32 \(1, 64\); want torch.float32 \(2, 64\)"):
        stage.backbone.step(batch, lambda layer, hidden, *_: hidden[:1])


class Poison:
    """Experts whose answer is not a number for some rows of the batch."""

    def __init__(self, experts: LocalExperts, first: int, last: int) -> None:
        self._experts, self._rows = experts, slice(first, last)

    def __call__(self, layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
        result = self._experts(layer, hidden, index.clamp(0, 7), weights, rows)
        result[self._rows] = float("nan")
        return result


@pytest.mark.parametrize("name", [FAMILY, RECURRENT])
def test_a_poisoned_sequence_leaves_its_neighbours_alone(stages: dict[str, Stage], name: str) -> None:
    stage = stages[name]
    first, second = random_prompts((6, 6))
    clean = stage.step([Segment(1, 0, 6)], second, [5])

    both = PackedBatch([Segment(0, 0, 6), Segment(1, 0, 6)], torch.tensor(first + second), torch.tensor([11]))
    poisoned = stage.backbone.step(both, Poison(stage.experts, 0, 6))

    torch.testing.assert_close(poisoned, clean, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [FAMILY, RECURRENT])
def test_a_poisoned_sequence_leaves_nothing_to_the_next_in_its_slot(stages: dict[str, Stage], name: str) -> None:
    stage = stages[name]
    short, long = random_prompts((6, 30))
    stage.step([Segment(0, 0, 6)], short, [])
    clean = stage.step([Segment(0, 6, 1)], [7], [0])
    poison = PackedBatch([Segment(0, 0, 30)], torch.tensor(long), torch.tensor([0]))
    stage.backbone.step(poison, Poison(stage.experts, 0, 30))

    stage.step([Segment(0, 0, 6), Segment(1, 0, 30)], short + long, [])
    # Both decode in one call over 31 keys each, of which the short one masks 24.
    again = stage.step([Segment(0, 6, 1), Segment(1, 30, 1)], [7, 7], [0])

    torch.testing.assert_close(again, clean, atol=1e-5, rtol=0)


def test_the_cache_stays_where_it_is(stage: Stage) -> None:
    cache = stage.backbone._cache
    assert cache is not None
    before = [slab.data_ptr() for slab in (*cache.keys.values(), *cache.values.values())]

    generate(stage.backbone, stage.experts, random_prompts((3, 9)), 20)

    assert [slab.data_ptr() for slab in (*cache.keys.values(), *cache.values.values())] == before
