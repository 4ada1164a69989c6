"""Reads a dense model's configuration and writes that of the Mixture of Experts made from it.

Which dense families are understood, and why others are refused, stands here alone. Values that the families default
differently (rope, norm epsilon, ties) are always written out. transformers' own configuration classes read the source.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe.models.errors import CheckpointError, UnsupportedModelError

FAMILIES = ("llama", "mistral", "qwen2")
CARRIED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "hidden_act", "max_position_embeddings", "initializer_range", "rms_norm_eps",
    "tie_word_embeddings", "rope_parameters", "bos_token_id", "eos_token_id", "pad_token_id", "attention_dropout",
)  # fmt: skip
"""Fields that mean the same in the dense and the sparse families."""


@dataclass(frozen=True)
class DenseShape:
    """What the conversion needs to know of a dense model; `fields` are the target's carried fields."""

    family: str
    layers: int
    hidden: int
    neurons: int
    activation: str
    qkv_bias: bool
    sliding_window: int | None
    layer_types: tuple[str, ...]
    fields: dict[str, Any]


def read_shape(directory: Path) -> DenseShape:
    """Reads config.json. Raises CheckpointError (no or unreadable config) and UnsupportedModelError (what and why)."""
    from transformers import AutoConfig

    path = directory / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: missing; a Hugging Face checkpoint directory has one")
    try:
        config = AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not readable as a model's configuration: {error}") from error
    refuse_unsupported(config, path)
    windows = sliding_layers(config)
    return DenseShape(
        family=config.model_type,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        neurons=config.intermediate_size,
        activation=config.hidden_act,
        qkv_bias=config.model_type == "qwen2",
        sliding_window=config.sliding_window if "sliding_attention" in windows else None,
        layer_types=windows,
        fields=carried_fields(config),
    )


def refuse_unsupported(config: Any, path: Path) -> None:
    """Raises UnsupportedModelError for what the sparse families have no place for."""
    if config.model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UnsupportedModelError(
            f"{path}: model_type {config.model_type!r} can't be turned into experts; understood are {known}"
        )
    for field in ("attention_bias", "mlp_bias"):
        if getattr(config, field, False):
            raise UnsupportedModelError(
                f"{path}: {field} is true, and Mixture-of-Experts families have no such bias; choose a model without"
            )
    if getattr(config, "quantization_config", None):
        raise UnsupportedModelError(f"{path}: the weights are quantised; choose the model's unquantised checkpoint")


def sliding_layers(config: Any) -> tuple[str, ...]:
    """The attention type of every layer, as Qwen2-MoE's `layer_types` has it."""
    if config.model_type == "qwen2":
        return tuple(config.layer_types)
    window = config.model_type == "mistral" and config.sliding_window is not None
    kind = "sliding_attention" if window else "full_attention"
    return (kind,) * int(config.num_hidden_layers)


def carried_fields(config: Any) -> dict[str, Any]:
    """The fields that go over unchanged; `head_dim` only where it isn't hidden_size / heads."""
    fields = {name: getattr(config, name) for name in CARRIED}
    if fields["num_key_value_heads"] is None:
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    if config.dtype is not None:
        fields["dtype"] = str(config.dtype).removeprefix("torch.")
    head_dim = getattr(config, "head_dim", None)
    if head_dim and head_dim * config.num_attention_heads != config.hidden_size:
        fields["head_dim"] = head_dim
    return fields


def mixtral_config(shape: DenseShape, *, experts: int, topk: int) -> dict[str, Any]:
    """A Mixtral whose experts have the dense FFN's size; top-k weights are renormalised to one."""
    return shape.fields | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": experts,
        "num_experts_per_tok": topk,
        "sliding_window": shape.sliding_window,
        "router_jitter_noise": 0.0,
    }


def qwen2_moe_config(
    shape: DenseShape, *, experts: int, topk: int, expert_neurons: int, shared_neurons: int, renormalise: bool
) -> dict[str, Any]:
    """A Qwen2-MoE with experts in every layer."""
    return shape.fields | {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "num_experts": experts,
        "num_experts_per_tok": topk,
        "moe_intermediate_size": expert_neurons,
        "shared_expert_intermediate_size": shared_neurons,
        "norm_topk_prob": renormalise,
        "qkv_bias": shape.qkv_bias,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": shape.sliding_window is not None,
        "sliding_window": shape.sliding_window,
        "layer_types": list(shape.layer_types),
    }
