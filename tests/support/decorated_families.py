"""All families of transformers whose experts are decorated, built without memory from their default configurations."""

import functools
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

LAYERS = 8
"""Enough for every default pattern of dense and sparse layers to show at least one sparse layer."""

_GENERATES = re.compile(r"For(CausalLM|ConditionalGeneration)$")


def decorated_families() -> list[str]:
    """Names of the families' folders, found by the decorator in their sources."""
    models = Path(transformers.__file__).parent / "models"
    files = sorted(models.glob("*/modeling_*.py"))
    return sorted({file.parent.name for file in files if "@use_experts_implementation" in file.read_text()})


@functools.cache
def build_smallest(family: str) -> tuple[nn.Module, object]:
    """A model of the family with few layers on the meta device and its text configuration.

    Raises LookupError when no class of the family can be built from a default configuration with experts in it.
    """
    failures = []
    for kind in _classes(importlib.import_module(f"transformers.models.{family}.modeling_{family}")):
        for shorten in (True, False):
            try:
                model = _build(kind, shorten=shorten)
            except Exception as error:  # whatever a family's classes raise for their own defaults
                failures.append(f"{kind.__name__}: {type(error).__name__}: {error}")
                continue
            if any(hasattr(module, "_is_expert_parallel") for module in model.modules()):
                return model, model.config.get_text_config()
            failures.append(f"{kind.__name__}: no experts by default")
    raise LookupError("; ".join(failures))


def _classes(module: ModuleType) -> list[type[PreTrainedModel]]:
    own = [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, PreTrainedModel) and kind.__module__ == module.__name__
    ]
    generating = [kind for kind in own if _GENERATES.search(kind.__name__)]
    return generating or [kind for kind in own if kind.__name__.endswith("Model") and "PreTrained" not in kind.__name__]


def _build(kind: type[PreTrainedModel], *, shorten: bool) -> PreTrainedModel:
    config_class = kind.config_class
    if not shorten:
        config = config_class()
    elif "text_config" in config_class.sub_configs:
        config = config_class(text_config={"num_hidden_layers": LAYERS})
    else:
        config = config_class(num_hidden_layers=LAYERS)
    with torch.device("meta"):
        return kind(config)
