"""MoEExpert: one expert group of a model, with replicas of its own. Made by the operator from the MoEModel."""

from dataclasses import dataclass
from typing import ClassVar

from moe.operator.resources.fields import Rule, described, immutable
from moe.operator.resources.parts import Condition, Resources

_MADE = "the operator makes a MoEExpert for each group of its MoEModel"


@dataclass(frozen=True)
class ExpertSpec:
    """What is wished of an expert group."""

    model: str = described("Name of the MoEModel that it belongs to.", longest=63, rules=(immutable("model", _MADE),))
    experts: tuple[int, ...] = described(
        "Ids of the experts it holds, ascending.",
        most=4096,
        minimum=0,
        maximum=65535,
        rules=(
            immutable("experts", _MADE),
            Rule("size(self) > 0", "an expert group holds at least one expert"),
        ),
    )
    replicas: int = described(
        "Pods of this group. `kubectl scale moeexpert/NAME --replicas=2` sets it, and owns it from then on.",
        default=1,
        minimum=0,
        maximum=64,
    )
    resources: Resources | None = described(
        "Of each pod of this group, instead of the model's experts.resources.", default=None
    )


@dataclass(frozen=True)
class ExpertStatus:
    """What the operator sees."""

    observed_generation: int = described("The metadata.generation that this is about.", default=0, minimum=0)
    replicas: int = described("Pods there are.", default=0, minimum=0)
    ready_replicas: int = described("Pods that are ready.", default=0, minimum=0)
    ready: str = described("Ready pods, of those wished: 1/2.", default="", longest=32)
    experts: str = described("The experts' ids in short: 3, or 0-15.", default="", longest=64)
    version: str = described(
        "Version of the weights: the first digits of the package's digest.", default="", longest=64
    )
    load: str = described(
        "Part of the last half minute in which it computed, the mean of the ready pods that could be read: 35%. Empty "
        "when none could be.",
        default="",
        longest=8,
    )
    load_percent: int | None = described(
        "The same as a number, for programs; absent when no pod could be read. It stays until the load has moved by "
        "three points.",
        default=None,
        minimum=0,
        maximum=100,
    )
    selector: str = described("Label selector of the pods, for autoscalers.", default="", longest=512)
    conditions: tuple[Condition, ...] = described("What is so and why.", default=(), most=16, list_key="type")


@dataclass(frozen=True)
class MoEExpert:
    """One expert group of a model: its pods, scaled by themselves."""

    RULES: ClassVar[tuple[Rule, ...]] = ()

    spec: ExpertSpec = described("What is wished.")
    status: ExpertStatus | None = described("What the operator sees; written by it alone.", default=None)
