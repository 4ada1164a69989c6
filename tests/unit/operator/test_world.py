"""What the operator remembers of the cluster."""

from moe.operator.kinds import Ref
from moe.operator.world import ModelKey, World

HERE = ModelKey("here", "demo")


def body(kind, name, version=1, uid="u", **more):
    labels = {"moe.dev/model": "demo"} if kind not in ("MoEModel", "MoEExpert", "PersistentVolumeClaim") else {}
    metadata = {"name": name, "namespace": "here", "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"kind": kind, "metadata": metadata, **more}


MODEL = body("MoEModel", "demo", spec={"package": {"claim": "models"}})


def test_objects_belong_to_the_model_that_their_label_names():
    world = World()
    world.put(MODEL)
    assert world.put(body("Service", "demo-000")) == {HERE}
    assert set(world.observed(HERE).objects) == {Ref("Service", "demo-000")}


def test_a_moeexpert_belongs_to_the_model_that_it_names():
    world = World()
    world.put(MODEL)
    world.put(body("MoEExpert", "mine", spec={"model": "demo"}))
    assert [each["metadata"]["name"] for each in world.experts(HERE)] == ["mine"]


def test_a_claim_concerns_every_model_whose_package_it_holds():
    world = World()
    world.put(MODEL)
    world.put({**MODEL, "metadata": {**MODEL["metadata"], "name": "second", "uid": "v"}})
    assert world.put(body("PersistentVolumeClaim", "models")) == {HERE, ModelKey("here", "second")}
    assert world.put(body("PersistentVolumeClaim", "others")) == set()


def test_an_old_watch_event_does_not_undo_what_a_write_has_answered():
    world = World()
    world.put(MODEL)
    world.put(body("Service", "demo", version=12, spec={"new": True}))
    world.put(body("Service", "demo", version=11, spec={"new": False}))
    assert world.observed(HERE).objects[Ref("Service", "demo")]["spec"] == {"new": True}


def test_versions_are_numbers_and_no_texts():
    world = World()
    world.put(MODEL)
    world.put(body("Service", "demo", version=9, spec={"at": 9}))
    world.put(body("Service", "demo", version=10, spec={"at": 10}))
    assert world.observed(HERE).objects[Ref("Service", "demo")]["spec"] == {"at": 10}


def test_a_late_deletion_of_an_object_that_was_made_again_forgets_nothing():
    world = World()
    world.put(MODEL)
    world.put(body("Service", "demo", version=5, uid="new"))
    world.drop(body("Service", "demo", version=9, uid="old"))
    assert Ref("Service", "demo") in world.observed(HERE).objects


def test_a_model_that_is_gone_is_not_observed():
    world = World()
    world.put(MODEL)
    world.drop(MODEL)
    assert world.observed(HERE) is None


def test_pods_are_told_apart_from_what_the_operator_makes():
    world = World()
    world.put(MODEL)
    world.put(body("Pod", "demo-000-x"))
    observed = world.observed(HERE)
    assert (len(observed.pods), len(observed.objects)) == (1, 0)


def test_of_field_managers_only_the_owners_of_replicas_are_kept():
    world = World()
    world.put(MODEL)
    managed = [
        {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
        {"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {}}},
    ]
    deployment = body("Deployment", "demo-000")
    deployment["metadata"]["managedFields"] = managed
    world.put(deployment)
    kept = world.observed(HERE).objects[Ref("Deployment", "demo-000")]["metadata"]["managedFields"]
    assert [each["manager"] for each in kept] == ["kubectl"]
