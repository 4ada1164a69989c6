"""One model in a cluster that lives in memory, for stories about decisions: what is decided is carried out at once.

It does what the API server does to objects (uids, generations, owners of replicas) and, when asked, what controllers
do to Deployments; it decides nothing.
"""

import itertools
import json
from typing import Any

from moe.operator.conditions import expert_status, model_status
from moe.operator.desired import Actions, actions, desired
from moe.operator.difference import slim
from moe.operator.kinds import Ref, ref_of
from moe.operator.observed import Observed
from moe.operator.resources import write

IMAGE = "registry/moe:1"
FACTS = {"name": "demo", "digest": "d" * 64, "experts": 4, "layers": 2, "topk": 2}
Body = dict[str, Any]


class SmallWorld:
    def __init__(self, *, name: str = "demo", claim: bool = True, facts: Body | None = None, **spec: Any) -> None:
        self._numbers = itertools.count(1)
        self.now = 0
        metadata = {"name": name, "namespace": "here", "uid": "model-uid", "generation": 1, "resourceVersion": "1"}
        self.model: Body = {
            "apiVersion": "moe.dev/v1alpha1",
            "kind": "MoEModel",
            "metadata": metadata,
            "spec": {"package": {"claim": "models", "subPath": "demo"}, **spec},
        }
        self.objects: dict[Ref, Body] = {}
        self.pods: list[Body] = []
        self.claim: Body | None = {"metadata": {"name": "models"}} if claim else None
        self.outdated: tuple[str, ...] = ()
        self.shares: dict[str, float | None] = {}
        if facts:
            self.model["status"] = {"package": facts}

    @property
    def observed(self) -> Observed:
        objects = {ref: slim(body) for ref, body in self.objects.items()}
        return Observed(self.model, objects, tuple(self.pods), self.claim, self.outdated, self.shares)

    def decide(self) -> Actions:
        return actions(self.observed, desired(self.observed, IMAGE))

    def settle(self) -> list[str]:
        """Decides and does until nothing is left to do; returns what was done, in order."""
        done: list[str] = []
        for _ in range(10):
            todo = self.decide()
            if not todo:
                return done
            done += self._carry_out(todo)
        raise AssertionError(f"never settles: {done[-8:]}")

    def say(self, failures: dict[Ref, str] | None = None) -> dict[str, tuple[str, str, str]]:
        """Writes the statuses; returns the model's conditions: type -> (status, reason, message)."""
        self.now += 1
        wanted = desired(self.observed, IMAGE)
        status = model_status(self.observed, wanted, failures or {}, f"t{self.now}")
        self.model["status"] = write(status)
        for ref, body in self.objects.items():
            if ref.kind == "MoEExpert":
                body["status"] = write(expert_status(self.observed, body, wanted.facts, f"t{self.now}"))
        return {each.type: (each.status, each.reason, each.message) for each in status.conditions}

    def wish(self, **spec: Any) -> None:
        self.model["spec"] |= spec
        self.model["metadata"]["generation"] += 1

    def scale(self, kind: str, name: str, replicas: int, manager: str = "kubectl") -> None:
        body = self.objects[Ref(kind, name)]
        body["spec"]["replicas"] = replicas
        # as Kubernetes has it: a 0 that comes through the scale subresource is nobody's
        noted = replicas or manager.startswith("moe-operator")
        body["metadata"]["managedFields"] = [_owner(manager)] if noted else []
        body["metadata"]["generation"] += 1

    def inspected(self, *, code: int = 0, message: str = json.dumps(FACTS)) -> None:
        """The inspection's pod has ended."""
        state = {"terminated": {"exitCode": code, "message": message}}
        self.add_pod("demo-package-x", "package", state=state)
        template = self.objects[Ref("Job", "demo-package")]["spec"]["template"]
        self.pods[-1]["metadata"]["annotations"] = dict(template["metadata"]["annotations"])

    def converted(self, *, failed: str = "") -> None:
        """The conversion's Job has ended."""
        kind = "Failed" if failed else "Complete"
        self.objects[Ref("Job", "demo-conversion")]["status"] = {"conditions": [{"type": kind, "status": "True"}]}
        if failed:
            self.add_pod("demo-conversion-x", "conversion", state={"terminated": {"exitCode": 2, "message": failed}})

    def add_pod(
        self, name: str, component: str, group: str = "", *, conditions: tuple[Body, ...] = (), **status: Any
    ) -> None:
        labels = {"moe.dev/component": component} | ({"moe.dev/group": group} if group else {})
        self.pods.append(
            {
                "metadata": {"name": name, "labels": labels, "creationTimestamp": f"{next(self._numbers):04d}"},
                "status": {"conditions": list(conditions), "containerStatuses": [status]},
            }
        )

    def add_ready_expert(self, name: str, group: str, *, ready: bool = True) -> Body:
        """A pod that a reading can be taken of, or none while it is not ready; its uid is its name."""
        self.add_pod(name, "expert", group, conditions=({"type": "Ready", "status": str(ready)},))
        pod = self.pods[-1]
        pod["metadata"]["uid"] = name
        pod["status"]["podIP"] = f"10.0.0.{len(self.pods)}"
        return pod

    def roll_out(self, *but: str) -> None:
        """All Deployments but those become what their specs say."""
        for ref, body in self.objects.items():
            if ref.kind == "Deployment" and ref.name not in but:
                count = body["spec"].get("replicas", 1)
                counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), count)
                body["status"] = {"observedGeneration": body["metadata"]["generation"], **counts}

    def refs(self, kind: str) -> list[str]:
        return sorted(ref.name for ref in self.objects if ref.kind == kind)

    def _carry_out(self, todo: Actions) -> list[str]:
        done = []
        for manifest, _ in todo.apply:
            self._apply(json.loads(json.dumps(manifest)))
            done.append(f"apply {ref_of(manifest)}")
        for ref, count in todo.scale:
            self.scale(ref.kind, ref.name, count, manager="moe-operator-replicas")
            done.append(f"scale {ref} to {count}")
        for ref in todo.delete:
            del self.objects[ref]
            done.append(f"delete {ref}")
        return done

    def _apply(self, manifest: Body) -> None:
        ref = ref_of(manifest)
        old = self.objects.get(ref)
        if old is None:
            manifest["metadata"] |= {"uid": f"{ref}-uid", "generation": 1}
            if "replicas" in manifest.get("spec", {}):
                manifest["metadata"]["managedFields"] = [_owner("moe-operator")]
            elif ref.kind in ("Deployment", "MoEExpert"):
                manifest["spec"]["replicas"] = 1
            self.objects[ref] = manifest
            return
        kept = old.get("spec", {}).get("replicas")
        old |= {key: value for key, value in manifest.items() if key not in ("metadata", "spec")}
        old["metadata"] |= manifest["metadata"]
        old["metadata"]["generation"] += 1
        if "spec" in manifest:
            old["spec"] = {**({"replicas": kept} if kept is not None else {}), **manifest["spec"]}


def _owner(manager: str) -> Body:
    return {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
