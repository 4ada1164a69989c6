"""Whatever the order and number of arrivals, an answer has the bits of the addition in ascending part order."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moe.aggregator.combiner import Combiner
from moe.wire.combining import Answered, CallKey, CallPlan, PlannedPart
from moe.wire.port import MissingPolicy
from torch import Tensor

KEY = CallKey(1, 0)
TOKENS, HIDDEN, PARTS = 6, 3, 5


def _case(seed: int) -> tuple[CallPlan, dict[int, Tensor]]:
    """A plan whose parts differ by orders of magnitude, so that another order of addition shows in the bits."""
    generator = torch.Generator().manual_seed(seed)
    parts, rows = [], {}
    for part in range(PARTS):
        count = int(torch.randint(1, TOKENS + 1, (1,), generator=generator))
        index = torch.randperm(TOKENS, generator=generator)[:count].sort().values.to(torch.int32)
        parts.append(PlannedPart(part, index))
        rows[part] = torch.randn(count, HIDDEN, generator=generator) * 10.0 ** (part % 3 * 3)
    return CallPlan(KEY, TOKENS, HIDDEN, torch.float32, MissingPolicy.WAIT, None, tuple(parts)), rows


def _by_hand(plan: CallPlan, rows: dict[int, Tensor]) -> Tensor:
    sums = torch.zeros(TOKENS, HIDDEN)
    for part in plan.parts:
        for row, token in enumerate(part.token_index.tolist()):
            sums[token] += rows[part.part][row]
    return sums


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # which combiner it is does not change
)
@given(
    seed=st.integers(0, 1000),
    extra=st.lists(st.integers(0, PARTS - 1), max_size=8),
    shuffle=st.randoms(use_true_random=False),
    plan_at=st.integers(0, PARTS + 8),
)
def test_any_order_and_duplication_gives_the_same_bits(seed: int, extra: list[int], shuffle, plan_at: int) -> None:
    plan, rows = _case(seed)
    arrivals = [*range(PARTS), *extra]
    shuffle.shuffle(arrivals)
    combiner, events = Combiner(), []
    for at, part in enumerate([*arrivals, None]):
        if at == min(plan_at, len(arrivals)):
            events += combiner.plan("router", plan, 0.0)
        if part is not None:
            events += combiner.part(KEY, part, rows[part], 0.0)
    (event,) = events
    assert isinstance(event, Answered)
    assert torch.equal(event.rows, _by_hand(plan, rows))
