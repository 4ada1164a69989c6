"""What follows from the types and the chart is fresh, and the chart's values are what its schema takes."""

import importlib.util
import json
from pathlib import Path

import yaml
from moe.operator.resources.definitions import RELEASE
from moe.runtime.version import moe_version

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts/moe"


def load_render():
    spec = importlib.util.spec_from_file_location("moe_charts_render", ROOT / "charts/render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


render = load_render()
VALUES = list(render.read_values((CHART / "values.yaml").read_text()))


def leaves(values, path=""):
    described = {each.path for each in VALUES}
    for name, value in values.items():
        at = f"{path}.{name}".lstrip(".")
        if isinstance(value, dict) and at not in described:
            yield from leaves(value, at)
        else:
            yield at


def test_everything_that_is_written_from_the_types_is_fresh(capsys):
    assert render.main(["--check", "--helm", ""]) == 0, capsys.readouterr().err


def test_every_value_has_a_comment_and_so_a_row_and_a_schema():
    assert sorted(leaves(yaml.safe_load((CHART / "values.yaml").read_text()))) == sorted(each.path for each in VALUES)


def closed(schema):
    return schema.get("additionalProperties") is not None and all(
        closed(inner)
        for inner in schema["properties"].values()
        if inner.get("type") == "object" and "properties" in inner
    )


def test_the_schema_of_the_values_is_closed_at_every_level():
    assert closed(json.loads((CHART / "values.schema.json").read_text()))


def test_chart_definitions_and_programs_are_of_one_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == RELEASE == moe_version()
