"""Reads the facts that the router needs from a model's configuration."""

from dataclasses import dataclass
from typing import Any

from moe.models.contract import BackboneInfo

SHIFTING_ROTARY = frozenset({"longrope", "dynamic"})
"""Rotary scalings whose frequencies change for all positions once a sequence outgrows its original length."""


@dataclass(frozen=True)
class ModelFacts:
    """What a configuration says. max_context: tokens of the longest sequence that is exact."""

    family: str
    vocabulary: int
    hidden: int
    layers: int
    max_context: int
    eos_token_ids: frozenset[int]

    def info(self, *, topk: int, moe_layers: dict[int, int], kv_bytes_per_token: int) -> BackboneInfo:
        """With what was found in the modules."""
        return BackboneInfo(
            family=self.family,
            vocabulary=self.vocabulary,
            hidden=self.hidden,
            topk=topk,
            max_context=self.max_context,
            moe_layers=moe_layers,
            eos_token_ids=self.eos_token_ids,
            kv_bytes_per_token=kv_bytes_per_token,
        )


def read_facts(model: Any) -> ModelFacts:
    """The facts of a loaded model."""
    config = model.config.get_text_config()
    return ModelFacts(
        family=config.model_type,
        vocabulary=config.vocab_size,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        max_context=max_context(config),
        eos_token_ids=eos_token_ids(model),
    )


def max_context(config: Any) -> int:
    """Longest sequence in tokens.

    Where rotary frequencies shift with length (Phi-3.5-MoE's longrope), keys cached before the shift would be
    wrong after it and sequences of one step would need different frequencies: the original length is the limit.
    """
    longest = int(config.max_position_embeddings)
    rotary = getattr(config, "rope_parameters", None) or {}
    if rotary.get("rope_type") in SHIFTING_ROTARY:
        return min(longest, int(rotary.get("original_max_position_embeddings") or longest))
    return longest


def eos_token_ids(model: Any) -> frozenset[int]:
    """Ids that end a text: those of the generation configuration where there is one, else of the model's."""
    generation = getattr(model, "generation_config", None)
    given = getattr(generation, "eos_token_id", None)
    if given is None:
        given = model.config.get_text_config().eos_token_id
    if given is None:
        return frozenset()
    return frozenset(given) if isinstance(given, list | tuple) else frozenset({int(given)})
