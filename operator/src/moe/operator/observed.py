"""What there is of a model at one moment: the objects themselves, and the questions that plans and conditions ask."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from moe.operator.kinds import Ref
from moe.operator.naming import COMPONENT_LABEL, CONVERSION_ANNOTATION, GROUP_LABEL, conversion_name
from moe.operator.resources import ExpertSpec, ExpertStatus, ModelSpec, ModelStatus, PackageFacts, read

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Observed:
    """One model and everything that belongs to it.

    objects: by kind and name; claim: the package's, if there is one; outdated: definitions older than the operator;
    shares: of pods, as `moe.operator.load.Shares` has them.
    """

    model: Body
    objects: Mapping[Ref, Body] = field(default_factory=dict)
    pods: tuple[Body, ...] = ()
    claim: Body | None = None
    outdated: tuple[str, ...] = ()
    shares: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The model's."""
        return str(self.model["metadata"]["name"])

    @property
    def uid(self) -> str:
        """The model's."""
        return str(self.model["metadata"]["uid"])

    @property
    def generation(self) -> int:
        """Of the model's wishes."""
        return int(self.model["metadata"].get("generation", 0))

    @property
    def spec(self) -> ModelSpec:
        """The model's wishes."""
        return read(ModelSpec, self.model["spec"])

    @property
    def status(self) -> ModelStatus:
        """What the operator wrote last."""
        return read(ModelStatus, self.model.get("status") or {})

    @property
    def deleted(self) -> bool:
        """Whether the model is going."""
        return "deletionTimestamp" in self.model["metadata"]

    def of_kind(self, kind: str) -> Iterator[Body]:
        """All objects of a kind."""
        return (body for ref, body in sorted(self.objects.items()) if ref.kind == kind)

    def deployment(self, name: str) -> "Rollout":
        """How a Deployment stands; one that is not there has nothing."""
        return Rollout(self.objects.get(Ref("Deployment", name)))

    def pods_of(self, component: str, group: str = "") -> tuple[Body, ...]:
        """Pods of a component, or of one expert group."""
        return tuple(
            pod
            for pod in self.pods
            if pod["metadata"].get("labels", {}).get(COMPONENT_LABEL) == component
            and (not group or pod["metadata"]["labels"].get(GROUP_LABEL) == group)
        )


@dataclass(frozen=True)
class Rollout:
    """A Deployment's state. body: None when it is not there."""

    body: Body | None

    @property
    def wanted(self) -> int:
        """Replicas wished."""
        return int(self.body["spec"].get("replicas", 1)) if self.body else 0

    @property
    def replicas(self) -> int:
        """Pods there are, of any age."""
        return self._count("replicas")

    @property
    def ready(self) -> int:
        """Pods that are ready."""
        return self._count("readyReplicas")

    @property
    def complete(self) -> bool:
        """Whether all pods are of the newest wishes, ready, and no old ones are left."""
        if self.body is None:
            return False
        seen = int(self._status.get("observedGeneration", 0)) >= int(self.body["metadata"].get("generation", 0))
        counts = (self._count("updatedReplicas"), self.replicas, self.ready)
        return seen and counts == (self.wanted,) * 3

    @property
    def stuck(self) -> bool:
        """Whether Kubernetes has given up waiting for progress."""
        return self._condition("Progressing").get("reason") == "ProgressDeadlineExceeded"

    @property
    def refusal(self) -> str:
        """Why pods can't be made at all, such as a quota; empty when they can."""
        failure = self._condition("ReplicaFailure")
        return str(failure.get("message", "")) if failure.get("status") == "True" else ""

    @property
    def _status(self) -> Body:
        return (self.body or {}).get("status") or {}

    def _count(self, name: str) -> int:
        return int(self._status.get(name, 0) or 0)

    def _condition(self, kind: str) -> Body:
        return next((each for each in self._status.get("conditions", ()) if each["type"] == kind), {})


_WAITING = {
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}


_PULLING = {"ErrImagePull", "ImagePullBackOff"}


def serving(pod: Body) -> bool:
    """Whether a pod is ready, has an address and is not on its way out."""
    status = pod.get("status") or {}
    answers = {each["type"]: each["status"] for each in status.get("conditions", ())}
    leaving = "deletionTimestamp" in pod["metadata"]
    return answers.get("Ready") == "True" and bool(status.get("podIP")) and not leaving


def pod_problem(pod: Body) -> str:
    """What keeps a pod from running, in a sentence; empty for nothing that time alone won't settle."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return f"{name} finds no node: {condition.get('message', '')}"
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting") or {}
        if waiting.get("reason") in _WAITING:
            words = _last_words(container) or waiting.get("message", "")
            return f"{name}: {waiting['reason']}: {words}".rstrip(": ") + _pulled_by(pod, waiting["reason"])
    return ""


def _pulled_by(pod: Body, reason: str) -> str:
    """The Secrets that an image could not be pulled with: the kubelet goes on without one that is not there."""
    secrets = [str(each["name"]) for each in pod.get("spec", {}).get("imagePullSecrets", ())]
    if reason not in _PULLING or not secrets:
        return ""
    return f" (pulled with {', '.join(secrets)} of imagePullSecrets: is each there, and for this registry?)"


def _last_words(container: Body) -> str:
    """Why a container ended the last time."""
    ended = container.get("lastState", {}).get("terminated")
    if not ended:
        return ""
    words = str(ended.get("message") or "").strip().splitlines()
    reason = ended.get("reason", "Error")
    return f"{reason}, exit code {ended.get('exitCode')}" + (f": {words[-1][:300]}" if words else "")


@dataclass(frozen=True)
class Conversion:
    """How the Job that makes the package of its source stands. uid: empty when there is none."""

    uid: str = ""
    done: bool = False
    fault: str = ""


def conversion_of(observed: Observed) -> Conversion:
    """By the Job's own conditions; the fault in its pods' last words."""
    job = observed.objects.get(Ref("Job", conversion_name(observed.name)))
    if job is None:
        return Conversion()
    answers = {each["type"]: each["status"] for each in (job.get("status") or {}).get("conditions", ())}
    uid = str(job["metadata"]["uid"])
    if answers.get("Failed") == "True":
        return Conversion(uid, fault=_words_of(observed.pods_of("conversion")) or "its pods said nothing")
    return Conversion(uid, done=answers.get("Complete") == "True")


def _words_of(pods: tuple[Body, ...]) -> str:
    """The last line that a container of the pods said at its end."""
    for pod in pods:
        for container in (pod.get("status") or {}).get("containerStatuses", ()):
            ended = container.get("state", {}).get("terminated") or {}
            lines = str(ended.get("message") or "").strip().splitlines()
            if lines:
                return lines[-1][:500]
    return ""


@dataclass(frozen=True)
class Inspection:
    """What the inspection's Job has found. facts: of a package that can be served; fault: why there are none."""

    facts: PackageFacts | None = None
    fault: str = ""


def inspection_of(observed: Observed) -> Inspection:
    """From the pods of the inspection, the newest that has ended; of those before a conversion none counts."""
    after = conversion_of(observed).uid
    living = [
        pod
        for pod in observed.pods_of("package")
        if "deletionTimestamp" not in pod["metadata"]
        and pod["metadata"].get("annotations", {}).get(CONVERSION_ANNOTATION, "") == after
    ]
    pods = sorted(living, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    for pod in reversed(pods):
        for container in (pod.get("status") or {}).get("containerStatuses", ()):
            ended = container.get("state", {}).get("terminated")
            if ended:
                return _report(int(ended.get("exitCode", 1)), str(ended.get("message") or ""))
    return Inspection()


def _report(code: int, message: str) -> Inspection:
    if code != 0:
        return Inspection(fault=message.strip() or f"the inspection ended with exit code {code} and said nothing")
    try:
        return Inspection(facts=read(PackageFacts, json.loads(message)))
    except (ValueError, KeyError, AttributeError) as error:
        return Inspection(fault=f"the inspection reported what this operator can't read ({error}); use one image")


def expert_spec(body: Body) -> ExpertSpec:
    """The wishes of a MoEExpert."""
    return read(ExpertSpec, body["spec"])


def written(body: Body) -> ExpertStatus:
    """The status of a MoEExpert as it was written last."""
    return read(ExpertStatus, body.get("status") or {})


def owned_by(body: Body, uid: str) -> bool:
    """Whether the object's controller is the one with that uid."""
    return any(each["uid"] == uid and each.get("controller") for each in body["metadata"].get("ownerReferences", ()))
