"""Who computes with how many threads."""

import pytest
from moe.operator.planner import UnfitWish, thread_budget

SHARES = {
    "demo on two cores": ((2, 8), (2, 1)),
    "one core": ((1, 8), (1, 1)),
    "as many cores as experts": ((8, 8), (8, 1)),
    "two cores for each": ((16, 8), (16, 2)),
    "a remainder is left over": ((15, 8), (15, 1)),
    "one group alone": ((4, 1), (4, 4)),
    "a large machine": ((128, 8), (16, 16)),
    "two routers share": ((8, 8, 2), (4, 1)),
    "more routers than cores": ((2, 8, 4), (1, 1)),
}


@pytest.mark.parametrize(("arguments", "threads"), SHARES.values(), ids=SHARES)
def test_cores_are_shared_so_that_a_layer_does_not_oversubscribe_them(arguments, threads):
    budget = thread_budget(*arguments)
    assert (budget.router, budget.expert) == threads


def test_a_number_chosen_by_hand_is_kept():
    budget = thread_budget(8, 8, router=3, expert=2)
    assert (budget.router, budget.expert) == (3, 2)


def test_experts_of_one_thread_let_the_router_spin_shortly():
    assert dict(thread_budget(2, 8).environment) == {"GOMP_SPINCOUNT": "3000"}


def test_experts_of_several_threads_must_not_spin():
    assert dict(thread_budget(16, 8).environment) == {"OMP_WAIT_POLICY": "PASSIVE"}


@pytest.mark.parametrize(
    ("chosen", "wish"), [({"router": 9}, "router_threads is 9"), ({"expert": 0}, "expert_threads is 0")]
)
def test_a_number_beyond_the_cores_is_refused(chosen, wish):
    with pytest.raises(UnfitWish, match=f"{wish}; want 1 to 8"):
        thread_budget(8, 8, **chosen)
