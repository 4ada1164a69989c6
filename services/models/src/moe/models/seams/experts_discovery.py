"""Finds the routed experts of a model in transformers, and what their modules say of themselves.

Most families' experts are classes decorated with `use_experts_implementation` (transformers 5.24,
integrations/moe.py), which leaves attributes that tell the layout; Llama4's are not decorated and described here. How
experts are called is the business of the seams beside this one; what they compute is derived in moe.models.formula.
"""

import re
from dataclasses import dataclass
from typing import Any

from moe.models.errors import UnsupportedModelError
from torch import nn

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_DECORATED = "_is_expert_parallel"
_TOPK_NAMES = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k", "top_k")


@dataclass(frozen=True)
class ExpertsModule:
    """The routed experts of one decoder layer.

    name: of the module within the model; layer: number of the decoder layer; count: of experts. gated, biased,
    post_norm: what is computed; transposed (weights are [in, out]) and concatenated (gate rows before up rows, else
    interleaved): how the fused parameters are laid out. decorated: whether it can be called through transformers'
    ExpertsInterface.
    """

    name: str
    layer: int
    module: nn.Module
    count: int
    gated: bool
    biased: bool
    post_norm: bool
    transposed: bool
    concatenated: bool
    decorated: bool

    @property
    def up_name(self) -> str:
        """Name of the fused parameter of the projection up."""
        return "gate_up_proj" if self.gated else "up_proj"

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the fused parameters, [experts, ...] each, in the order up, down, up's bias, down's bias."""
        names = (self.up_name, "down_proj")
        return (*names, *(f"{name}_bias" for name in names)) if self.biased else names


def find_experts(model: nn.Module) -> dict[int, ExpertsModule]:
    """The routed experts by decoder layer, ascending; empty for a dense model.

    Raises UnsupportedModelError when a layer can't be told from a module's name, or has two modules of experts.
    """
    found: dict[int, ExpertsModule] = {}
    for name, module in model.named_modules():
        described = _describe(name, module)
        if described is None:
            continue
        if described.layer in found:
            raise UnsupportedModelError(
                f"layer {described.layer} has two sets of routed experts, {found[described.layer].name} and {name}; "
                "only one per layer can be served"
            )
        found[described.layer] = described
    return dict(sorted(found.items()))


def _describe(name: str, module: nn.Module) -> ExpertsModule | None:
    facts: dict[str, Any] = vars(module)
    if _DECORATED in facts:
        return ExpertsModule(
            name=name,
            layer=_layer_of(name),
            module=module,
            count=facts["num_experts"],
            gated=facts["has_gate"],
            biased=facts["has_bias"],
            post_norm=facts["has_post_expert_norm"],
            transposed=facts["is_transposed"],
            concatenated=facts["is_concatenated"],
            decorated=True,
        )
    if type(module).__name__ == "Llama4TextExperts":
        return ExpertsModule(
            name=name,
            layer=_layer_of(name),
            module=module,
            count=facts["num_experts"],
            gated=True,
            biased=False,
            post_norm=False,
            transposed=True,
            concatenated=True,
            decorated=False,
        )
    return None


def _layer_of(name: str) -> int:
    numbers = _LAYER.findall(name)
    if len(numbers) != 1:
        raise UnsupportedModelError(f"the decoder layer of the experts {name!r} can't be told from the name")
    return int(numbers[0])


def experts_per_token(model: nn.Module, experts: dict[int, ExpertsModule], config: object) -> int:
    """How many experts a token goes to: what the gates beside the experts say, else the configuration.

    Raises UnsupportedModelError when neither says, or layers differ.
    """
    said = {_topk_beside(model, item.name) for item in experts.values()} - {None}
    if not said:
        said = {value for name in _TOPK_NAMES if isinstance(value := getattr(config, name, None), int)}
    if len(said) != 1:
        raise UnsupportedModelError(f"experts per token can't be told: found {sorted(map(str, said)) or 'nothing'}")
    (topk,) = said
    assert topk is not None
    return topk


def _topk_beside(model: nn.Module, name: str) -> int | None:
    parent = model.get_submodule(name.rpartition(".")[0])
    for module in (*parent.children(), parent):
        value = getattr(module, "top_k", None)
        if isinstance(value, int):
            return value
    return None
