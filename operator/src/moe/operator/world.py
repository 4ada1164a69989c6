"""What the operator knows of the cluster: every object it watches, in its newest version, by the model it belongs to.

Filled by watches and by the answers to the operator's own writes, so that a decision never stands on a state from
before the last write. Versions are compared as numbers, as Kubernetes has them since 1.35.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from moe.operator.difference import slim
from moe.operator.kinds import CLAIM, EXPERT, MODEL, POD, Ref, ref_of
from moe.operator.load import Shares
from moe.operator.manifests import Manifest
from moe.operator.naming import MODEL_LABEL
from moe.operator.observed import Observed


class ModelKey(NamedTuple):
    """A model's place."""

    namespace: str
    name: str


class World:
    """Used from one event loop. outdated: names of the cluster's definitions that are older than the operator.

    shares: how busy pods are, as the last round of readings found.
    """

    def __init__(self) -> None:
        self.outdated: tuple[str, ...] = ()
        self.shares: Shares = {}
        self._models: dict[ModelKey, Manifest] = {}
        self._objects: dict[ModelKey, dict[Ref, Manifest]] = {}
        self._claims: dict[ModelKey, Manifest] = {}

    def put(self, body: Mapping[str, Any]) -> set[ModelKey]:
        """Keeps an object unless a newer version is known; returns the models that it concerns."""
        shelf, key = self._place(body)
        known = shelf.get(key)
        if known is None or known["metadata"]["uid"] != body["metadata"]["uid"] or _version(body) >= _version(known):
            shelf[key] = slim(body)
        return self.concerned(body)

    def drop(self, body: Mapping[str, Any]) -> set[ModelKey]:
        """Forgets a deleted object; returns the models that it concerns."""
        concerned = self.concerned(body)
        shelf, key = self._place(body)
        known = shelf.get(key)
        if known is not None and known["metadata"]["uid"] == body["metadata"]["uid"]:
            del shelf[key]
        return concerned

    def concerned(self, body: Mapping[str, Any]) -> set[ModelKey]:
        """The models that an object is a matter of; of a claim, those whose package it is."""
        namespace = str(body["metadata"]["namespace"])
        if body["kind"] == CLAIM.name:
            name = body["metadata"]["name"]
            return {
                key
                for key, model in self._models.items()
                if key.namespace == namespace and model["spec"]["package"]["claim"] == name
            }
        return {_model_of(body)}

    def observed(self, key: ModelKey) -> Observed | None:
        """A model with everything that belongs to it; None when it is not there."""
        model = self._models.get(key)
        if model is None:
            return None
        held = self._objects.get(key, {})
        objects = {ref: body for ref, body in held.items() if ref.kind != POD.name}
        pods = tuple(body for ref, body in sorted(held.items()) if ref.kind == POD.name)
        claim = self._claims.get(ModelKey(key.namespace, model["spec"]["package"]["claim"]))
        return Observed(model, objects, pods, claim, self.outdated, self.shares)

    def has_seen(self, body: Mapping[str, Any]) -> bool:
        """Whether an object's wishes are known as they are there, or newer ones."""
        shelf, key = self._place(body)
        known = shelf.get(key)
        return (
            known is not None
            and known["metadata"]["uid"] == body["metadata"]["uid"]
            and int(known["metadata"].get("generation", 0)) >= int(body["metadata"].get("generation", 0))
        )

    def experts(self, key: ModelKey) -> list[Manifest]:
        """The MoEExperts that name a model, whether it is there or not."""
        return [body for ref, body in sorted(self._objects.get(key, {}).items()) if ref.kind == EXPERT.name]

    def models(self) -> Iterator[ModelKey]:
        """All models."""
        return iter(self._models)

    def _place(self, body: Mapping[str, Any]) -> tuple[dict[Any, Manifest], Any]:
        namespace, name = str(body["metadata"]["namespace"]), str(body["metadata"]["name"])
        if body["kind"] == MODEL.name:
            return self._models, ModelKey(namespace, name)
        if body["kind"] == CLAIM.name:
            return self._claims, ModelKey(namespace, name)
        return self._objects.setdefault(_model_of(body), {}), ref_of(body)


def _model_of(body: Mapping[str, Any]) -> ModelKey:
    metadata = body["metadata"]
    namespace = str(metadata["namespace"])
    if body["kind"] == MODEL.name:
        return ModelKey(namespace, str(metadata["name"]))
    if body["kind"] == EXPERT.name:
        return ModelKey(namespace, str(body["spec"]["model"]))
    return ModelKey(namespace, str(metadata.get("labels", {}).get(MODEL_LABEL, "")))


def _version(body: Mapping[str, Any]) -> int:
    return int(body["metadata"]["resourceVersion"])
