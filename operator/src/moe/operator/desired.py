"""From what there is of a model to what there should be: objects, replicas, deletions. Pure.

The groups come from the planner that `moe up` runs on too. What depends on something that is not there yet, such as an
expert's Deployment on its MoEExpert, is left to the next look, which the something's arrival brings about.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from moe.operator.amounts import threads_of
from moe.operator.difference import differs, marked, replicas_are_claimed, replicas_are_ours
from moe.operator.kinds import MANAGED, Ref, ref_of
from moe.operator.manifests import (
    GroupContext,
    Manifest,
    ModelContext,
    access,
    aggregator,
    conversion,
    expert_group,
    inspection,
    router,
)
from moe.operator.manifests.context import metadata
from moe.operator.naming import API_VERSION, EXPERT_KIND, aggregator_name, router_name
from moe.operator.observed import Body, Observed, conversion_of, expert_spec, inspection_of, owned_by
from moe.operator.planner import GroupPlan, ModelFacts, Placement, PlanError, Wishes, plan
from moe.operator.resources import ModelSpec, PackageFacts

_PLACEMENTS = {"own": Placement.PROCESS, "embedded": Placement.EMBEDDED}


@dataclass(frozen=True)
class Desired:
    """What there should be. objects: manifests, without replicas that are somebody else's; replicas: what the operator
    wishes where nobody else has; fault: why there is no plan, empty when there is one.
    """

    objects: tuple[Manifest, ...]
    replicas: Mapping[Ref, int]
    groups: tuple[GroupPlan, ...] = ()
    facts: PackageFacts | None = None
    fault: str = ""


@dataclass(frozen=True)
class Actions:
    """What is to be done, in this order. apply: (manifest, whether it was there); scale: (object, replicas)."""

    apply: tuple[tuple[Manifest, bool], ...] = ()
    scale: tuple[tuple[Ref, int], ...] = ()
    delete: tuple[Ref, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.refs())

    def refs(self) -> set[Ref]:
        """The objects that something is done to."""
        return {ref_of(manifest) for manifest, _ in self.apply} | {ref for ref, _ in self.scale} | set(self.delete)


def desired(observed: Observed, image: str) -> Desired:
    """What there should be of a model. image: of its pods, unless it names another."""
    spec = observed.spec
    facts = observed.status.package or inspection_of(observed).facts
    model = ModelContext(observed.name, _namespace(observed), observed.uid, spec, spec.image or image, facts)
    if facts is None:
        return Desired((*access(model), *_package_jobs(observed, model)), {})
    try:
        groups = groups_of(model.name, spec, facts)
    except PlanError as error:
        return Desired(access(model), {}, facts=facts, fault=str(error))
    objects = [*access(model), *(_expert(model, group) for group in groups)]
    replicas = {Ref(EXPERT_KIND, group.name): spec.experts.replicas for group in groups}
    for group in groups:
        objects += _group_objects(observed, model, group)
    objects += [*aggregator(model), *router(model)]
    replicas[Ref("Deployment", router_name(model.name))] = spec.router.replicas
    if spec.aggregator.placement == "own":
        replicas[Ref("Deployment", aggregator_name(model.name))] = spec.aggregator.replicas
    return Desired(tuple(objects), replicas, groups, facts)


def _package_jobs(observed: Observed, model: ModelContext) -> tuple[Manifest, ...]:
    """What finds out about the package: an inspection; where that finds none and there is a source, a conversion, and
    once that is done another inspection."""
    if observed.claim is None:
        return ()
    converted, found = conversion_of(observed), inspection_of(observed)
    if converted.done:
        return conversion(model), inspection(model, converted.uid)
    if model.spec.package.source and (converted.uid or found.fault):
        return (conversion(model),)
    return (inspection(model),)


def groups_of(name: str, spec: ModelSpec, facts: PackageFacts) -> tuple[GroupPlan, ...]:
    """The expert groups of a model. Raises PlanError when the wishes don't fit the package."""
    known = ModelFacts(name, dict.fromkeys(range(facts.layers), facts.experts), facts.topk)
    _check_gates(spec, facts)
    threads = max(threads_of(spec.router.resources), threads_of(spec.experts.resources))
    wishes = Wishes(
        cores=threads,
        experts_per_group=spec.experts.per_pod,
        aggregator=_PLACEMENTS[spec.aggregator.placement],
        aggregators=spec.aggregator.replicas,
        router_threads=threads_of(spec.router.resources),
        expert_threads=threads_of(spec.experts.resources),
    )
    return plan(known, wishes).groups


def _check_gates(spec: ModelSpec, facts: PackageFacts) -> None:
    """What routers would not heed. Raises PlanError."""
    topk = spec.routing.top_k
    if topk > facts.experts:
        raise PlanError(f"routing.topK is {topk}; want 1 to {facts.experts}, the package's experts, or 0 for its own")
    if spec.routing.strategy == "drop" and topk >= facts.topk:
        raise PlanError(
            f"routing.topK is {topk} with strategy drop; want less than {facts.topk}, the package's own, or another "
            "strategy"
        )


def actions(observed: Observed, wanted: Desired) -> Actions:
    """What has to be written so that what there is becomes what there should be; nothing when it already is."""
    if observed.deleted:
        return Actions()
    apply = []
    stale: list[Ref] = []
    for manifest in map(marked, wanted.objects):
        ref = ref_of(manifest)
        found = observed.objects.get(ref)
        if not differs(manifest, found):
            continue
        if found is None:
            apply.append((_born(manifest, wanted.replicas.get(ref)), False))
        elif ref.kind != "Job":
            apply.append((manifest, _ours(observed, ref)))
        elif _ours(observed, ref):
            stale.append(ref)  # a Job's pods can't be changed: another one comes once it is gone
    scale = [
        (ref, count) for ref, count in wanted.replicas.items() if _has_to_be_scaled(observed.objects.get(ref), count)
    ]
    return Actions(tuple(apply), tuple(scale), (*stale, *_leftovers(observed, wanted)))


def _born(manifest: Manifest, replicas: int | None) -> Manifest:
    """A manifest of what is not there yet: with its replicas, so that not even for a moment it has the default's."""
    return manifest if replicas is None else {**manifest, "spec": {**manifest["spec"], "replicas": replicas}}


def _has_to_be_scaled(found: Body | None, count: int) -> bool:
    if found is None or not replicas_are_claimed(found):
        return True
    return replicas_are_ours(found) and count != int(found["spec"].get("replicas", 1))


def _leftovers(observed: Observed, wanted: Desired) -> tuple[Ref, ...]:
    """What the operator made and no longer wishes. Job: goes by itself. Nothing goes while there is no plan, and an
    aggregator only once no router asks it any more."""
    if wanted.facts is None or wanted.fault:
        return ()
    kept = {ref_of(each) for each in wanted.objects} | {
        Ref("Job", each["metadata"]["name"]) for each in _jobs(observed)
    }
    if not observed.deployment(router_name(observed.name)).complete or _routers_change(observed, wanted):
        kept |= {ref for ref in observed.objects if ref.name == aggregator_name(observed.name)}
    kinds = {kind.name for kind in MANAGED}
    gone = [ref for ref in observed.objects if ref.kind in kinds and ref not in kept and _ours(observed, ref)]
    return tuple(sorted(gone))


def _routers_change(observed: Observed, wanted: Desired) -> bool:
    ref = Ref("Deployment", router_name(observed.name))
    return any(ref_of(each) == ref and differs(marked(each), observed.objects.get(ref)) for each in wanted.objects)


def _jobs(observed: Observed) -> list[Manifest]:
    return [dict(each) for each in observed.of_kind("Job")]


def _ours(observed: Observed, ref: Ref) -> bool:
    """Whether an object was made by the operator for this very model, or for one of its expert groups."""
    body = observed.objects[ref]
    owners = {observed.uid} | {
        str(each["metadata"]["uid"]) for each in observed.of_kind(EXPERT_KIND) if owned_by(each, observed.uid)
    }
    return any(owned_by(body, uid) for uid in owners)


def _expert(model: ModelContext, group: GroupPlan) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": EXPERT_KIND,
        "metadata": metadata(model, group.name, "expert", model.owner, group=group.name),
        "spec": {"model": model.name, "experts": list(group.experts)},
    }


def _group_objects(observed: Observed, model: ModelContext, group: GroupPlan) -> tuple[Manifest, ...]:
    """Of a group whose MoEExpert is there, with its replicas or those about to be set where they are ours."""
    body = observed.objects.get(Ref(EXPERT_KIND, group.name))
    if body is None or not owned_by(body, observed.uid):
        return ()
    own = expert_spec(body)
    replicas = model.spec.experts.replicas if replicas_are_ours(body) else own.replicas
    return expert_group(model, GroupContext(group, str(body["metadata"]["uid"]), replicas), own.resources)


def _namespace(observed: Observed) -> str:
    return str(observed.model["metadata"]["namespace"])
