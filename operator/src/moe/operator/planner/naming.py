"""Names of deployments, groups and processes: DNS labels, so that Kubernetes takes them too."""

import hashlib
import re

from moe.operator.planner.errors import UnfitModel

LONGEST_DEPLOYMENT_NAME = 40
"""Characters. Kubernetes allows 63 in a label (RFC 1123); the rest is for `-g000-0` and what it adds to pods."""


def deployment_name(model: str) -> str:
    """The model's name as a DNS label: `Qwen1.5-MoE A2.7B` is `qwen1-5-moe-a2-7b`. A long one ends in a digest.

    Raises UnfitModel when nothing is left of it.
    """
    label = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    if not label:
        raise UnfitModel(f"the model's name is {model!r}; want at least one letter a-z or digit in it")
    if not label[0].isalpha():
        label = f"m-{label}"
    if len(label) <= LONGEST_DEPLOYMENT_NAME:
        return label
    digest = hashlib.sha256(model.encode("utf-8", "backslashreplace")).hexdigest()[:6]
    return f"{label[: LONGEST_DEPLOYMENT_NAME - 7].rstrip('-')}-{digest}"


def group_name(deployment: str, index: int, experts: tuple[int, ...]) -> str:
    """`demo-003` for expert 3 alone, `demo-g001` for the second group of several experts."""
    return f"{deployment}-{experts[0]:03d}" if len(experts) == 1 else f"{deployment}-g{index:03d}"


def replica_name(group: str, index: int) -> str:
    """`demo-003-0` for the first replica."""
    return f"{group}-{index}"
