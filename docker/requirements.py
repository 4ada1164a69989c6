"""Prints what the parts need at run time and are not themselves: one requirement a line, from their pyproject.toml.

The development tools of requirements.in stay out of the image that way; versions are those of requirements.lock.
"""

import re
import tomllib
from pathlib import Path


def requirements(checkout: Path) -> list[str]:
    """Requirements of all parts below a checkout, sorted. Raises ValueError where there is no part."""
    files = sorted([*checkout.glob("*/pyproject.toml"), *checkout.glob("services/*/pyproject.toml")])
    if not files:
        raise ValueError(f"{checkout} holds no */pyproject.toml; name the root of the repository")
    projects = [tomllib.loads(file.read_text())["project"] for file in files]
    own = {project["name"] for project in projects}
    wanted = {each for project in projects for each in project.get("dependencies", [])}
    return sorted(each for each in wanted if re.split(r"[^\w.-]", each, maxsplit=1)[0] not in own)


if __name__ == "__main__":
    print("\n".join(requirements(Path(__file__).parents[1])))
