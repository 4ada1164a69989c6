"""The image's recipe knows every part, and skaffold names what is there."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]


def test_the_image_installs_every_part() -> None:
    recipe = (ROOT / "docker/Dockerfile").read_text().split()
    parts = {
        f"./{file.parent.relative_to(ROOT)}"
        for pattern in ("*", "services/*")
        for file in ROOT.glob(f"{pattern}/pyproject.toml")
    }
    assert parts <= set(recipe)


def test_its_libraries_are_those_of_the_parts_without_development_tools() -> None:
    done = subprocess.run([sys.executable, ROOT / "docker/requirements.py"], capture_output=True, text=True, check=True)
    wanted = set(done.stdout.splitlines())
    assert {"torch", "grpcio", "kopf", "kubernetes", "pip"} <= wanted
    assert not {each for each in wanted if each.startswith("moe-")} | (wanted & {"ruff", "mypy", "pytest", "maturin"})


def test_skaffold_builds_that_recipe_and_sets_values_that_the_chart_has() -> None:
    wanted = yaml.safe_load((ROOT / "skaffold.yaml").read_text())
    (artifact,) = wanted["build"]["artifacts"]
    (release,) = wanted["deploy"]["helm"]["releases"]
    assert (ROOT / artifact["docker"]["dockerfile"]).is_file()
    values: Any = yaml.safe_load((ROOT / release["chartPath"] / "values.yaml").read_text())
    for name, template in release["setValueTemplates"].items():
        section, key = name.split(".")
        assert key in values[section]
        assert template.endswith(f"_{artifact['image']}}}}}")
