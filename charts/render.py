"""Writes everything that follows from the typed resources and from the chart; `--check` only compares.

charts/moe/crds, k8s/crds          the definitions
charts/moe/values.schema.json      closed: what values.yaml doesn't have is refused, model.spec as the API server would
charts/moe/README.md               its table of values, from the comments of values.yaml
docs/reference/custom-resources.md what `kubectl explain` says, on one page
k8s/moe.yaml                       the operator without Helm; needs `helm` (--helm PATH), else it is left alone
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from moe.operator.resources import ModelSpec, Resources, Toleration, definitions, schema_of
from moe.operator.resources.__main__ import texts

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "moe"
_TABLE = re.compile(r"(<!-- values -->\n).*(<!-- end of values -->)", re.DOTALL)
Schema = dict[str, Any]

STRINGS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
NAMES: Schema = {"type": "array", "items": {"type": "string"}}


def main(argv: list[str]) -> int:
    """Returns 0; with --check 1 when something is stale, naming it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--helm", default=shutil.which("helm"), help="Helm's program, for k8s/moe.yaml")
    arguments = parser.parse_args(argv)
    stale = 0
    for path, text in outputs(arguments.helm):
        if path.is_file() and path.read_text() == text:
            continue
        stale += 1
        if arguments.check:
            print(f"{path.relative_to(ROOT)} is stale; run `make manifests`", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if arguments.check and stale else 0


def outputs(helm: str | None) -> Iterator[tuple[Path, str]]:
    """Every file with what should be in it."""
    for folder in (CHART / "crds", ROOT / "k8s" / "crds"):
        for name, text in texts().items():
            yield folder / name, text
    values = list(read_values((CHART / "values.yaml").read_text()))
    yield CHART / "values.schema.json", json.dumps(values_schema(values), indent=1) + "\n"
    yield CHART / "README.md", with_table((CHART / "README.md").read_text(), values)
    yield ROOT / "docs" / "reference" / "custom-resources.md", reference()
    if helm:
        yield ROOT / "k8s" / "moe.yaml", plain(helm)


@dataclass(frozen=True)
class Value:
    """A value of the chart. path: as --set has it; default: as YAML has it."""

    path: str
    text: str
    default: Any


def read_values(text: str) -> Iterator[Value]:
    """The values that a comment beginning with `# --` stands above."""
    whole = yaml.safe_load(text)
    pending: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# --"):
            pending = [stripped.removeprefix("# --").strip()]
        elif stripped.startswith("#") and pending:
            pending.append(stripped.removeprefix("#").strip())
        elif key := re.match(r"( *)([A-Za-z]+):", line):
            indent = len(key[1])
            parents = [*(each for each in parents if each[0] < indent), (indent, key[2])]
            if pending:
                path = ".".join(name for _, name in parents)
                yield Value(path, " ".join(pending), _at(whole, path))
                pending = []


def _at(whole: Any, path: str) -> Any:
    for name in path.split("."):
        whole = whole[name]
    return whole


def values_schema(values: list[Value]) -> Schema:
    """The schema of values.yaml, closed at every level. `global` is Helm's own."""
    root: Schema = {"$schema": "http://json-schema.org/draft-07/schema#", **_object()}
    for value in values:
        *parents, name = value.path.split(".")
        inner = root
        for each in parents:
            inner = inner["properties"].setdefault(each, _object())
        inner["properties"][name] = {**_value_schema(value), "description": value.text}
    root["properties"]["global"] = {"type": "object", "description": "Helm's own."}
    return root


def _object() -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _value_schema(value: Value) -> Schema:
    special: Mapping[str, Schema] = {
        "model.spec": _as_json_schema(schema_of(ModelSpec)),
        "model.name": {"type": "string", "pattern": "^[a-z]([a-z0-9-]*[a-z0-9])?$", "maxLength": 40},
        "operator.resources": _as_json_schema(schema_of(Resources)),
        "operator.tolerations": {"type": "array", "items": _as_json_schema(schema_of(Toleration))},
        "operator.replicas": {"type": "integer", "minimum": 0, "maximum": 5},
        "operator.leaseSeconds": {"type": "number", "minimum": 2, "maximum": 600},
        "operator.logLevel": {"enum": ["debug", "info", "warning", "error"]},
        "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
        "image.repository": {"type": "string", "minLength": 1},
        "test.timeoutSeconds": {"type": "integer", "minimum": 1},
    }
    if value.path in special:
        return special[value.path]
    if isinstance(value.default, dict):
        return STRINGS
    if isinstance(value.default, list):
        return NAMES
    return {"type": {bool: "boolean", int: "integer", float: "number", str: "string"}[type(value.default)]}


def _as_json_schema(schema: Schema) -> Schema:
    """A definition's schema as Helm understands it: closed, without Kubernetes' own words."""
    found = {
        key: value
        for key, value in schema.items()
        if not key.startswith("x-kubernetes") and key not in ("default", "format")
    }
    if schema.get("x-kubernetes-int-or-string"):
        found = {"type": ["integer", "number", "string"], "description": schema.get("description", "")}
    if "properties" in found:
        found["properties"] = {name: _as_json_schema(inner) for name, inner in found["properties"].items()}
        found["additionalProperties"] = False
    if "items" in found:
        found["items"] = _as_json_schema(found["items"])
    return found


def with_table(readme: str, values: list[Value]) -> str:
    """The README with its table of values in place."""
    rows = [f"| `{each.path}` | {each.text} | `{json.dumps(each.default)}` |" for each in values]
    table = "\n".join(["| value | what it does | default |", "|---|---|---|", *rows])
    return _TABLE.sub(lambda found: f"{found[1]}{table}\n{found[2]}", readme)


def reference() -> str:
    """Both custom resources, field by field."""
    head = (
        "# Custom resources\n\n"
        "Written by `make manifests` from the types in `moe.operator.resources`; `kubectl explain moemodel.spec` says\n"
        "the same. Group `moe.dev`, version `v1alpha1`. A field that is not listed here is refused.\n"
    )
    return head + "".join(_reference_of(each) for each in definitions())


def _reference_of(definition: Schema) -> str:
    names, version = definition["spec"]["names"], definition["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    columns = ", ".join(each["name"] for each in version["additionalPrinterColumns"] if not each.get("priority"))
    parts = [
        f"\n## {names['kind']}\n\n{schema['description']}\n\n"
        f"`kubectl get {names['plural']}`, short `{names['shortNames'][0]}`, in category `moe`. Columns: {columns}.\n"
    ]
    for part in ("spec", "status"):
        rows = list(_rows(schema["properties"][part], part))
        parts.append("\n| field | type | default | |\n|---|---|---|---|\n" + "".join(rows))
    rules = [each for path, each in _rules(schema, "")]
    parts.append("\nRules that the API server holds:\n\n" + "".join(f"- {each}\n" for each in rules) if rules else "")
    return "".join(parts)


def _rows(schema: Schema, path: str) -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        at = f"{path}.{name}"
        plain_default = inner.get("default") not in (None, []) and not isinstance(inner["default"], dict)
        default = json.dumps(inner["default"]) if plain_default else ""
        needed = "required" if name in schema.get("required", ()) else f"`{default}`" if default else ""
        text = inner["description"].replace("|", "\\|")
        yield f"| `{at}` | {_type(inner)} | {needed} | {text} |\n"
        yield from _rows(inner, at)
        if inner.get("type") == "array":
            yield from _rows(inner["items"], f"{at}[]")


def _type(schema: Schema) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "amount"
    if "enum" in schema:
        return " \\| ".join(schema["enum"])
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    bounds = [
        f"{word} {_number(schema[key])}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema
    ]
    named = "map" if "additionalProperties" in schema else schema["type"]
    return " ".join([named, *bounds])


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _rules(schema: Schema, path: str) -> Iterator[tuple[str, str]]:
    for each in schema.get("x-kubernetes-validations", ()):
        yield path, (f"`{path.lstrip('.')}`: " if path else "") + each["message"]
    for name, inner in schema.get("properties", {}).items():
        yield from _rules(inner, f"{path}.{name}")
    if "items" in schema:
        yield from _rules(schema["items"], f"{path}[]")


def plain(helm: str) -> str:
    """The operator without Helm, for namespace `moe`."""
    command = [
        helm,
        "template",
        "moe",
        str(CHART),
        "--namespace",
        "moe",
        "--set",
        "model.enabled=false,crds.upgrade=false",
    ]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    documents = [each for each in yaml.safe_load_all(rendered) if each]
    for each in documents:
        labels = each["metadata"].get("labels", {})
        labels.pop("helm.sh/chart", None)
        labels["app.kubernetes.io/managed-by"] = "kubectl"
    head = (
        "# The operator in namespace moe, without Helm: kubectl apply --server-side -f k8s/crds -f k8s/moe.yaml\n"
        "# Written by `make manifests` from charts/moe. Change that, not this. Set the image to your own.\n"
    )
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "moe", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }
    return head + yaml.safe_dump_all([namespace, *documents], sort_keys=False, width=120)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
