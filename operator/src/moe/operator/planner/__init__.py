"""From what a model is and what its owner wishes to which processes there are: `plan(ModelFacts, Wishes) -> Plan`.

Pure: no I/O, no clock, no randomness; the same input gives the same plan. `moe up` carries a plan out with processes,
the operator with Deployments. How long to wait before a restart and how many threads each process gets are here too.
"""

from moe.operator.planner.backoff import Backoff
from moe.operator.planner.errors import ConflictingWishes, PlanError, UnfitModel, UnfitWish
from moe.operator.planner.grouping import plan
from moe.operator.planner.naming import deployment_name
from moe.operator.planner.threads import PARTS_ENVIRONMENT, ThreadBudget, thread_budget
from moe.operator.planner.values import (
    AggregatorPlan,
    GroupPlan,
    ModelFacts,
    Placement,
    Plan,
    ReplicaPlan,
    RouterPlan,
    Wishes,
)

__all__ = [
    "PARTS_ENVIRONMENT",
    "AggregatorPlan",
    "Backoff",
    "ConflictingWishes",
    "GroupPlan",
    "ModelFacts",
    "Placement",
    "Plan",
    "PlanError",
    "ReplicaPlan",
    "RouterPlan",
    "ThreadBudget",
    "UnfitModel",
    "UnfitWish",
    "Wishes",
    "deployment_name",
    "plan",
    "thread_budget",
]
