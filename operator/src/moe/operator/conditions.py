"""What is so and why, in words for people: conditions of models and expert groups, and the events of their changes.

PackageReady   what the claim holds is known and can be served
Available      a client's request is answered now
Progressing    something is being brought about
Degraded       something is wrong that time alone won't settle

Each says what to do. A condition's time moves only when its status does; an event is told only when status or reason
change, so that nothing is written while nothing happens.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from moe.operator.desired import Desired
from moe.operator.kinds import Ref
from moe.operator.load import load_of
from moe.operator.naming import (
    ROUTER_PORT,
    aggregator_name,
    router_name,
    selector,
    service_name,
)
from moe.operator.observed import (
    Body,
    Observed,
    Rollout,
    conversion_of,
    expert_spec,
    inspection_of,
    owned_by,
    pod_problem,
    written,
)
from moe.operator.resources import Condition, ExpertStatus, ModelStatus, PackageFacts

Answer = Literal["True", "False", "Unknown"]
_LONGEST = 1024
"""Characters of a message; an event takes no more."""

_NOT_YET = ("Available", "False")
_NAMED = 4
"""Names that a message spells out; the rest is a number."""


@dataclass(frozen=True)
class Part:
    """A component or expert group as it stands."""

    name: str
    rollout: Rollout
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Transition:
    """A condition that became something else; told as an event."""

    about: Ref
    condition: Condition
    before: Condition | None

    @property
    def warning(self) -> bool:
        """Whether it is for the worse. What was never there is not lost: a model on its way is no cause for alarm."""
        kind, status = self.condition.type, self.condition.status
        if kind == "Available":
            return status == "False" and self.before is not None and self.before.status == "True"
        if kind == "Progressing":
            return self.condition.reason == "Stuck"
        return (status == "True") == (kind == "Degraded")


def model_status(observed: Observed, wanted: Desired, failures: Mapping[Ref, str], now: str) -> ModelStatus:
    """The status of a model. failures: what could not be written, and why. now: RFC 3339."""
    before = observed.status
    routers = _part(observed, "router", router_name(observed.name))
    parts = _parts(observed, wanted)
    package = _package(observed, wanted)
    answers = (
        package,
        _available(observed, wanted, package, parts, routers),
        _progressing(wanted, package, (*parts, routers)),
        _degraded(observed, wanted, package, (*parts, routers), failures),
    )
    groups = [part for part in parts if part.name in {group.name for group in wanted.groups}]
    serving = sum(part.rollout.ready > 0 for part in groups)
    namespace = observed.model["metadata"]["namespace"]
    return ModelStatus(
        observed_generation=observed.generation,
        package=wanted.facts,
        experts=f"{serving}/{len(groups)}" if groups else "",
        routers=f"{routers.rollout.ready}/{routers.rollout.wanted}",
        endpoint=f"{service_name(observed.name)}.{namespace}.svc:{ROUTER_PORT}" if wanted.groups else "",
        conditions=_settled(answers, before.conditions, observed.generation, now),
    )


def expert_status(observed: Observed, body: Body, facts: PackageFacts | None, now: str) -> ExpertStatus:
    """The status of a MoEExpert."""
    before, ours = written(body), owned_by(body, observed.uid)
    name, spec = str(body["metadata"]["name"]), expert_spec(body)
    part = _part(observed, "expert", name, group=name)
    ready = part.rollout.ready
    answer = _group_available(part, spec.replicas) if ours else _not_planned(observed)
    load = load_of(observed, name, before.load_percent) if ours else None
    labels = selector(observed.name, "expert", name)
    generation = int(body["metadata"].get("generation", 0))
    return ExpertStatus(
        observed_generation=generation,
        replicas=part.rollout.replicas,
        ready_replicas=ready,
        ready=f"{ready}/{spec.replicas}",
        experts=in_short(spec.experts),
        version=facts.digest[:12] if facts else "",
        load="" if load is None else f"{load}%",
        load_percent=load,
        selector=",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        conditions=_settled((answer,), before.conditions, generation, now),
    )


def stray_status(body: Body, now: str) -> ExpertStatus:
    """The status of a MoEExpert whose model is not there."""
    before = written(body)
    spec, generation = expert_spec(body), int(body["metadata"].get("generation", 0))
    text = f"there is no MoEModel {spec.model} in this namespace; make it, and it makes its own expert groups"
    return replace(
        before,
        observed_generation=generation,
        ready=f"0/{spec.replicas}",
        experts=in_short(spec.experts),
        load="",
        load_percent=None,
        conditions=_settled((_condition("Available", "False", "NoModel", text),), before.conditions, generation, now),
    )


def transitions(about: Ref, before: Iterable[Condition], after: Iterable[Condition]) -> Iterator[Transition]:
    """Conditions whose status or reason have changed. What is unknown, without fault or not there yet from the start is
    no news."""
    known = {each.type: each for each in before}
    for each in after:
        old = known.get(each.type)
        expected = each.status == "Unknown" or each.reason == "NoFault" or (each.type, each.status) == _NOT_YET
        if old is None and expected:
            continue
        if old is None or (old.status, old.reason) != (each.status, each.reason):
            yield Transition(about, each, old)


def in_short(ids: Iterable[int]) -> str:
    """`3`, `0-15`, `0-3,7`; a long list is cut."""
    runs: list[list[int]] = []
    for each in sorted(ids):
        if runs and each == runs[-1][1] + 1:
            runs[-1][1] = each
        else:
            runs.append([each, each])
    text = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _package(observed: Observed, wanted: Desired) -> Condition:
    claim = observed.spec.package.claim
    if wanted.facts is not None:
        facts = wanted.facts
        text = f"{facts.name}: {facts.experts} experts in {facts.layers} layers, top-{facts.topk}"
        return _condition("PackageReady", "True", "Read", text)
    if observed.claim is None:
        return _condition(
            "PackageReady",
            "False",
            "ClaimMissing",
            f"there is no PersistentVolumeClaim {claim} in this namespace; make it, or a MoEModel that names another",
        )
    converted = conversion_of(observed)
    if converted.fault:
        text = f"{observed.spec.package.source} can't be converted: {converted.fault}. It is tried again in ten minutes"
        return _condition("PackageReady", "False", "ConversionFailed", text)
    fault = inspection_of(observed).fault
    if observed.spec.package.source and not converted.done and (converted.uid or fault):
        problems = _problems(observed, "conversion")
        text = _with_problems(f"a Job converts {observed.spec.package.source} into claim {claim}", problems)
        return _condition("PackageReady", "Unknown", "Converting", text)
    if fault:
        text = f"the package on claim {claim} can't be served: {fault}. It is looked at again every minute"
        return _condition("PackageReady", "False", "PackageUnusable", text)
    problems = _problems(observed, "package")
    if problems:
        return _condition("PackageReady", "False", "InspectionFailing", "; ".join(problems))
    before = next((each for each in observed.status.conditions if each.type == "PackageReady"), None)
    if before is not None and before.reason == "PackageUnusable":
        return before
    return _condition("PackageReady", "Unknown", "Inspecting", f"a Job reads what claim {claim} holds")


def _available(
    observed: Observed, wanted: Desired, package: Condition, parts: tuple[Part, ...], routers: Part
) -> Condition:
    groups = {group.name for group in wanted.groups}
    missing = [part for part in parts if part.name in groups and part.rollout.ready == 0]
    aggregators = next((part for part in parts if part.name == aggregator_name(observed.name)), None)
    alone = aggregators is not None and aggregators.rollout.ready == 0
    if routers.rollout.ready > 0 and not missing and not alone:
        text = f"{routers.rollout.ready} of {routers.rollout.wanted} routers answer"
        return _condition("Available", "True", "Serving", text)
    if package.status != "True":
        return _condition("Available", "False", package.reason, package.message)
    if wanted.fault:
        return _condition("Available", "False", "WishesUnfit", wanted.fault)
    if missing:
        return _without_experts(observed, missing, len(groups), answering=routers.rollout.ready > 0 and not alone)
    if aggregators is not None and alone:
        text = _with_problems("no aggregator is ready", aggregators.problems)
        return _condition("Available", "False", "AggregatorMissing", text)
    if routers.rollout.body is not None and routers.rollout.wanted == 0:
        text = f"there are 0 routers; kubectl scale deployment/{routers.name} --replicas=1"
        return _condition("Available", "False", "ScaledToZero", text)
    text = _with_problems("no router is ready yet", routers.problems)
    return _condition("Available", "False", "RouterMissing", text)


def _without_experts(observed: Observed, missing: list[Part], groups: int, *, answering: bool) -> Condition:
    """answering: requests reach a router, and meet the policy."""
    text, policy = _missing_text(missing, groups), observed.spec.routing.missing_expert.policy
    if answering and policy == "renormalise" and len(missing) < groups:
        return _condition("Available", "True", "ServingWithoutExperts", f"answers go without some experts: {text}")
    if answering and policy == "fail":
        text = f"requests that need them fail: {text}"
    elif answering:
        text = f"requests wait for them, {observed.spec.routing.layer_timeout_seconds:g} s at most: {text}"
    return _condition("Available", "False", "ExpertsMissing", text)


def _missing_text(missing: list[Part], groups: int) -> str:
    idle = [part.name for part in missing if part.rollout.body is not None and part.rollout.wanted == 0]
    text = f"{len(missing)} of {groups} expert groups have no ready pod: {_names([part.name for part in missing])}"
    if idle:
        text += f"; scaled to 0: {_names(idle)} (kubectl scale moeexpert/{idle[0]} --replicas=1)"
    return _with_problems(text, [problem for part in missing for problem in part.problems])


def _progressing(wanted: Desired, package: Condition, parts: tuple[Part, ...]) -> Condition:
    if package.status == "Unknown":
        return _condition("Progressing", "True", package.reason, package.message)
    if package.status == "False" or wanted.fault:
        return _condition("Progressing", "False", "Blocked", wanted.fault or package.message)
    open_parts = [part for part in parts if not part.rollout.complete]
    stuck = [part.name for part in open_parts if part.rollout.stuck]
    if stuck:
        text = f"no progress for ten minutes: {_names(stuck)}; see Degraded for the cause"
        return _condition("Progressing", "False", "Stuck", text)
    if open_parts:
        text = f"{len(parts) - len(open_parts)} of {len(parts)} Deployments are as wished; "
        return _condition(
            "Progressing", "True", "RollingOut", text + f"waiting for {_names([p.name for p in open_parts])}"
        )
    return _condition("Progressing", "False", "AsWished", f"all {len(parts)} Deployments are as wished")


def _degraded(
    observed: Observed,
    wanted: Desired,
    package: Condition,
    parts: tuple[Part, ...],
    failures: Mapping[Ref, str],
) -> Condition:
    if wanted.fault:
        text = f"{wanted.fault}. Make another MoEModel with wishes that fit the package"
        return _condition("Degraded", "True", "WishesUnfit", text)
    if failures:
        shown = [f"{ref}: {text}" for ref, text in sorted(failures.items())]
        return _condition("Degraded", "True", "WriteRefused", _some(shown))
    if package.status == "False":
        return _condition("Degraded", "True", package.reason, package.message)
    problems = [problem for part in parts for problem in part.problems]
    if problems:
        return _condition("Degraded", "True", "PodsFailing", _some(problems))
    if observed.outdated:
        text = (
            f"{_names(list(observed.outdated))}: older than the operator; fields that are new can't be set. "
            "helm upgrade, or kubectl apply --server-side -f charts/moe/crds"
        )
        return _condition("Degraded", "True", "DefinitionsOutdated", text)
    return _condition("Degraded", "False", "NoFault", "nothing is known to be wrong")


def _group_available(part: Part, wanted: int) -> Condition:
    if part.rollout.ready > 0:
        text = f"{part.rollout.ready} of {wanted} pods are ready"
        return _condition("Available", "True", "Serving", _with_problems(text, part.problems))
    if wanted == 0:
        text = f"there are 0 replicas; kubectl scale moeexpert/{part.name} --replicas=1"
        return _condition("Available", "False", "ScaledToZero", text)
    return _condition("Available", "False", "NoReadyPod", _with_problems("no pod is ready yet", part.problems))


def _not_planned(observed: Observed) -> Condition:
    text = (
        f"MoEModel {observed.name} has no such group; the operator makes a MoEExpert for each of its groups and leaves "
        "this one alone. Delete it"
    )
    return _condition("Available", "False", "NotPlanned", text)


def _parts(observed: Observed, wanted: Desired) -> tuple[Part, ...]:
    """Expert groups, and the aggregator if it has pods of its own."""
    groups = [_part(observed, "expert", group.name, group=group.name) for group in wanted.groups]
    own = observed.spec.aggregator.placement == "own" and bool(wanted.groups)
    return (*groups, *([_part(observed, "aggregator", aggregator_name(observed.name))] if own else []))


def _part(observed: Observed, component: str, name: str, *, group: str = "") -> Part:
    rollout = observed.deployment(name)
    refusal = (f"{name}: {rollout.refusal}",) if rollout.refusal else ()
    return Part(name, rollout, (*refusal, *_problems(observed, component, group)))


def _problems(observed: Observed, component: str, group: str = "") -> tuple[str, ...]:
    return tuple(filter(None, map(pod_problem, observed.pods_of(component, group))))


def _condition(kind: str, status: Answer, reason: str, message: str) -> Condition:
    cut = message if len(message) <= _LONGEST else f"{message[: _LONGEST - 3]}..."
    return Condition(kind, status, reason, cut, "")


def _settled(
    answers: Iterable[Condition], before: Iterable[Condition], generation: int, now: str
) -> tuple[Condition, ...]:
    known = {each.type: each for each in before}
    return tuple(
        replace(each, observed_generation=generation, last_transition_time=_since(each, known.get(each.type), now))
        for each in answers
    )


def _since(answer: Condition, before: Condition | None, now: str) -> str:
    return before.last_transition_time if before is not None and before.status == answer.status else now


def _with_problems(text: str, problems: Iterable[str]) -> str:
    found = list(problems)
    return f"{text}: {_some(found)}" if found else text


def _some(texts: list[str]) -> str:
    shown = "; ".join(texts[:_NAMED])
    return shown if len(texts) <= _NAMED else f"{shown}; and {len(texts) - _NAMED} more"


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
