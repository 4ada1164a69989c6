"""The custom resources' schema: complete, bounded, fresh, and without a field that does nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from moe.discovery.cluster_objects import wishes_of
from moe.operator.desired import desired
from moe.operator.resources import ModelSpec, definitions, model_definition, read, write
from moe.operator.resources.__main__ import main
from support.small_world import FACTS, IMAGE, SmallWorld

ROOT = Path(__file__).parents[3]


def schemas():
    for each in definitions():
        schema = each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        yield from walk(schema, each["spec"]["names"]["kind"])


def walk(schema, path):
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")


def spec_leaves():
    """Every field of a model's wishes that holds a value."""
    schema = model_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for path, inner in walk(schema, ""):
        if inner.get("type") != "object" or "additionalProperties" in inner:
            yield path.lstrip(".")


def test_every_field_has_a_text_for_kubectl_explain():
    missing = [path for path, schema in schemas() if not path.endswith("[]") and not schema.get("description")]
    assert missing == []


def test_nothing_is_unbounded_that_a_rule_or_the_store_would_pay_for():
    for path, schema in schemas():
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
        if schema.get("type") == "string" and "enum" not in schema:
            assert "maxLength" in schema, path


def test_rules_of_a_type_and_of_a_field_of_it_both_hold():
    rules = [each["rule"] for each in dict(schemas())["MoEModel.spec.package"]["x-kubernetes-validations"]]
    assert "self == oldSelf" in rules
    assert len(rules) == 3


def test_unknown_fields_are_not_kept():
    assert "x-kubernetes-preserve-unknown-fields" not in json.dumps(definitions())


def test_conditions_are_a_map_by_type():
    by_path = dict(schemas())
    assert by_path["MoEModel.status.conditions"]["x-kubernetes-list-map-keys"] == ["type"]


def test_defaults_of_the_schema_are_the_types():
    defaulted = apply_defaults(
        model_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"],
        {"package": {"claim": "models"}},
    )
    assert read(ModelSpec, defaulted) == read(ModelSpec, {"package": {"claim": "models"}})


def apply_defaults(schema, value):
    """As the API server does it."""
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, inner in schema.get("properties", {}).items():
        if name not in filled and "default" in inner:
            filled[name] = inner["default"]
        if name in filled:
            filled[name] = apply_defaults(inner, filled[name])
    return filled


def test_what_is_read_can_be_written_back():
    spec = read(ModelSpec, CHANGES["router.tolerations[].tolerationSeconds"])
    assert read(ModelSpec, write(spec)) == spec


def test_the_definitions_in_the_tree_are_those_of_the_types():
    assert main([str(ROOT / "k8s/crds"), str(ROOT / "charts/moe/crds"), "--check"]) == 0


def test_a_stale_definition_is_named(tmp_path, capsys):
    main([str(tmp_path)])
    file = tmp_path / "moemodels.moe.dev.yaml"
    file.write_text(file.read_text().replace("kubectl", "kubectI", 1))
    assert main([str(tmp_path), "--check"]) == 1
    assert str(file) in capsys.readouterr().err


BASE = {"package": {"claim": "models"}}
TOLERATED = {"key": "gpu", "operator": "Equal", "value": "a", "effect": "NoExecute", "tolerationSeconds": 5}
TOLERATED_OTHERWISE = {
    "key": "fpga",
    "operator": "Exists",
    "value": "b",
    "effect": "NoSchedule",
    "tolerationSeconds": 6,
}


SOURCED = {"package": {"claim": "models", "subPath": "demo", "source": "checkpoints/tiny"}}
AMOUNTS = {
    "requests.cpu": {"requests": {"cpu": "2"}},
    "requests.memory": {"requests": {"memory": "1Gi"}},
    "limits.cpu": {"limits": {"cpu": "2"}},
    "limits.memory": {"limits": {"memory": "1Gi"}},
}


def placed(component, **more):
    """Wishes that place a component's pods, by the path that they change."""
    found = {f"{component}.resources.{path}": {"resources": value} for path, value in AMOUNTS.items()}
    found |= {
        f"{component}.nodeSelector": {"nodeSelector": {"disk": "fast"}},
        f"{component}.priorityClassName": {"priorityClassName": "high"},
        f"{component}.tolerations": {"tolerations": [{"operator": "Exists"}]},
    }
    for name, value in TOLERATED_OTHERWISE.items():
        found[f"{component}.tolerations[].{name}"] = {"tolerations": [{**TOLERATED, name: value}]}
    return {path: {**BASE, component: {**value, **more}} for path, value in found.items()}


CHANGES = {
    "package.claim": {"package": {"claim": "others"}},
    "package.subPath": {"package": {"claim": "models", "subPath": "demo"}},
    "package.source": SOURCED,
    **{f"package.conversion.{at}": {"package": {**SOURCED["package"], "conversion": v}} for at, v in AMOUNTS.items()},
    "image": {**BASE, "image": "registry/moe:2"},
    "imagePullPolicy": {**BASE, "imagePullPolicy": "Always"},
    "imagePullSecrets": {**BASE, "imagePullSecrets": ["pull"]},
    "imagePullSecrets[]": {**BASE, "imagePullSecrets": ["pull"]},
    **placed("router"),
    **placed("aggregator"),
    **placed("experts"),
    "router.replicas": {**BASE, "router": {"replicas": 3}},
    "router.maxRunning": {**BASE, "router": {"maxRunning": 3}},
    "router.maxContext": {**BASE, "router": {"maxContext": 300}},
    "router.kvTokens": {**BASE, "router": {"kvTokens": 300}},
    "aggregator.placement": {**BASE, "aggregator": {"placement": "embedded"}},
    "aggregator.replicas": {**BASE, "aggregator": {"replicas": 2}},
    "experts.perPod": {**BASE, "experts": {"perPod": 2}},
    "experts.replicas": {**BASE, "experts": {"replicas": 2}},
    "experts.gpus": {**BASE, "experts": {"gpus": 1}},
    "experts.spread": {**BASE, "experts": {"spread": "zones"}},
    "routing.missingExpert.policy": {**BASE, "routing": {"missingExpert": {"policy": "fail"}}},
    "routing.topK": {**BASE, "routing": {"topK": 1}},
    "routing.strategy": {**BASE, "routing": {"topK": 1, "strategy": "drop"}},
    "routing.layerTimeoutSeconds": {**BASE, "routing": {"layerTimeoutSeconds": 5}},
    "routing.hedgeAfterSeconds": {**BASE, "routing": {"hedgeAfterSeconds": 1}},
    "routing.deterministic": {**BASE, "routing": {"deterministic": True}},
}
"""For every field, wishes that differ from BASE in it."""


def rendered(spec):
    """Everything that is made for a model with these wishes."""
    world = SmallWorld(facts=FACTS)
    world.model["spec"] = spec
    world.settle()
    wanted = desired(world.observed, IMAGE)
    unread = SmallWorld()
    unread.model["spec"] = spec
    unread.settle()
    unread.inspected(code=2, message="there is no manifest.json")
    unread.settle()
    wanted = replace(wanted, objects=(*wanted.objects, *unread.objects.values()))
    watched = wishes_of({"spec": spec})  # what routers read of the MoEModel themselves
    return json.dumps([sorted(map(str, wanted.objects)), sorted(map(str, wanted.replicas.items())), str(watched)])


def test_the_table_of_effects_has_every_field_and_no_other():
    assert sorted(CHANGES) == sorted(spec_leaves())


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_a_field_that_is_accepted_changes_something_that_is_made(path):
    component, inside, _ = path.partition(".tolerations[]")
    base = {**BASE, component: {"tolerations": [TOLERATED]}} if inside else BASE
    if path.startswith("package.conversion"):
        base = SOURCED
    if path == "routing.strategy":
        base = CHANGES["routing.topK"]
    assert rendered(CHANGES[path]) != rendered(base)
