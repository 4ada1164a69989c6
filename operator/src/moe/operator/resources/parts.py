"""Parts that both custom resources share: amounts of processor and memory, places for pods, conditions."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from moe.operator.resources.fields import Quantity, Rule, described


@dataclass(frozen=True)
class Amounts:
    """Amounts of what a node has."""

    cpu: Quantity | None = described("Cores, such as 500m or 2.", default=None)
    memory: Quantity | None = described("Memory, such as 512Mi or 2Gi.", default=None)


def _at_least(amount: str) -> Rule:
    both = f"has(self.limits) && has(self.limits.{amount}) && has(self.requests) && has(self.requests.{amount})"
    compared = f"quantity(string(self.limits.{amount})).compareTo(quantity(string(self.requests.{amount}))) >= 0"
    return Rule(f"!({both}) || {compared}", f"limits.{amount} is below requests.{amount}; raise the limit")


@dataclass(frozen=True)
class Resources:
    """What each pod of a component asks for and may use."""

    RULES: ClassVar[tuple[Rule, ...]] = (_at_least("cpu"), _at_least("memory"))

    requests: Amounts | None = described(
        "What the scheduler sets aside. Without a limit on cpu it also decides how many threads compute.", default=None
    )
    limits: Amounts | None = described(
        "What the pod may not exceed; beyond its memory it is killed. The whole cores of cpu are its threads.",
        default=None,
    )


@dataclass(frozen=True)
class Toleration:
    """A taint that pods put up with, as in a pod's own tolerations."""

    key: str | None = described(
        "The taint's key; none matches every key, with operator Exists.", default=None, longest=253
    )
    operator: Literal["Exists", "Equal"] = described("Whether the value is compared.", default="Equal")
    value: str | None = described("The taint's value, for operator Equal.", default=None, longest=63)
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = described(
        "The taint's effect; none matches every effect.", default=None
    )
    toleration_seconds: int | None = described(
        "How long a pod stays on a node after a NoExecute taint; none: for ever.", default=None, minimum=0
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("self.operator == 'Exists' || has(self.key)", "without a key the operator has to be Exists"),
        Rule("self.operator == 'Equal' || !has(self.value)", "operator Exists compares no value; leave value out"),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds needs effect NoExecute",
        ),
    )


@dataclass(frozen=True)
class Condition:
    """One answer about an object's state."""

    type: str = described("What is answered.", longest=63)
    status: Literal["True", "False", "Unknown"] = described("The answer.")
    reason: str = described("Why, in one word for programs.", longest=128)
    message: str = described("Why, in a sentence for people, with what to do.", longest=4096)
    last_transition_time: str = described("When the answer became what it is (RFC 3339).", longest=40)
    observed_generation: int = described("The metadata.generation that the answer is about.", default=0, minimum=0)
