"""Each part declares what it imports: an image, or a part installed alone, holds no more than that."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECTS = sorted([*ROOT.glob("*/pyproject.toml"), *ROOT.glob("services/*/pyproject.toml")])
OPTIONAL = {"moe-wire-native"}
"""Run without where there is no Rust toolchain."""


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(file: Path) -> set[str]:
    requirements = tomllib.loads(file.read_text())["project"].get("dependencies", [])
    return {normalised(re.split(r"[^\w.-]", each, maxsplit=1)[0]) for each in requirements}


def imported(source: Path) -> set[str]:
    """Modules that a file imports, wherever in it: `a.b.c`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module in {"moe", "google"}}
    return found


def providers(module: str, distributions: dict[str, list[str]]) -> set[str]:
    """Distributions that may bring a module; none for the standard library's."""
    words = module.split(".")
    if words[0] in sys.stdlib_module_names or module in {"moe", "google"}:
        return set()
    if words[0] == "moe":
        return {f"moe-{words[1]}"}
    if words[0] == "google":
        return {"protobuf"}
    return {normalised(each) for each in distributions.get(words[0], [words[0]])}


@pytest.mark.parametrize("project", PROJECTS, ids=lambda file: file.parent.name)
def test_a_part_declares_every_package_that_it_imports(project: Path) -> None:
    distributions = dict(packages_distributions())
    own = normalised(tomllib.loads(project.read_text())["project"]["name"])
    allowed = declared(project) | {own} | OPTIONAL
    undeclared = {
        f"{source.relative_to(ROOT)} imports {module}"
        for source in (project.parent / "src").rglob("*.py")
        for module in imported(source)
        if (found := providers(module, distributions)) and not found & allowed
    }
    assert not undeclared


def test_the_lock_pins_every_package_that_a_part_declares() -> None:
    lock = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    own = {normalised(tomllib.loads(file.read_text())["project"]["name"]) for file in PROJECTS}
    wanted = set().union(*(declared(file) for file in PROJECTS)) - own
    assert wanted <= {normalised(each) for each in lock}
