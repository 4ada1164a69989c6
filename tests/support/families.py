"""Tiny random checkpoints of every family that must work exactly, as real Hugging Face checkpoints on disk.

Weights are large enough that leaving out or swapping any expert moves the logits visibly: with the families' own
initialisation (standard deviation 0.02) experts would drown in the residual stream and a wrong one would pass unseen.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from moe.models.convert import convert_checkpoint
from transformers import PreTrainedConfig, PreTrainedModel

WEIGHT_SCALE = 0.15
VOCABULARY = 128

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LATENT_ATTENTION: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
_LINEAR_ATTENTION: dict[str, Any] = {
    "head_dim": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_SHARED: dict[str, Any] = {
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
_GROUPED: dict[str, Any] = {
    "intermediate_size": 96,
    "moe_intermediate_size": 48,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
_LOCAL: dict[str, Any] = {"intermediate_size": 48, "num_local_experts": 8, "num_experts_per_tok": 2}


def _builder(name: str, *parts: dict[str, Any], **own: Any) -> Callable[[], PreTrainedConfig]:
    def build() -> PreTrainedConfig:
        values: dict[str, Any] = {}
        for part in (_COMMON, *parts, own):
            values |= part
        config: PreTrainedConfig = getattr(transformers, name)(**values)
        return config

    return build


_CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "mixtral": _builder("MixtralConfig", _LOCAL, intermediate_size=96),
    "qwen2_moe": _builder("Qwen2MoeConfig", _SHARED, intermediate_size=96, decoder_sparse_step=1),
    "qwen3_moe": _builder(
        "Qwen3MoeConfig",
        head_dim=16,
        intermediate_size=96,
        moe_intermediate_size=48,
        num_experts=8,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        norm_topk_prob=True,
    ),
    "olmoe": _builder("OlmoeConfig", intermediate_size=48, num_experts=8, num_experts_per_tok=2),
    "deepseek_v2": _builder(
        "DeepseekV2Config",
        _LATENT_ATTENTION,
        _GROUPED,
        num_experts_per_tok=2,
        n_group=4,
        topk_group=2,
        topk_method="group_limited_greedy",
        routed_scaling_factor=4.0,
    ),
    "deepseek_v3": _builder(
        "DeepseekV3Config",
        _LATENT_ATTENTION,
        _GROUPED,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
    ),
    "granitemoe": _builder("GraniteMoeConfig", _LOCAL),
    "phimoe": _builder("PhimoeConfig", _LOCAL),
    "glm4_moe": _builder("Glm4MoeConfig", _GROUPED, head_dim=16, num_experts_per_tok=2, n_group=1, topk_group=1),
    "gpt_oss": _builder("GptOssConfig", _LOCAL, head_dim=16, sliding_window=16),
    "qwen3_next": _builder("Qwen3NextConfig", _LINEAR_ATTENTION, _SHARED, intermediate_size=96),
    "qwen3_5_moe_text": _builder("Qwen3_5MoeTextConfig", _LINEAR_ATTENTION, _SHARED),
    "llama4_text": _builder(
        "Llama4TextConfig",
        head_dim=16,
        intermediate_size=48,
        intermediate_size_mlp=96,
        num_local_experts=4,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
        attention_chunk_size=16,
    ),
}

FAMILIES = tuple(_CONFIGS)
"""Names as transformers' `model_type` has them."""


def family_config(family: str, **changes: Any) -> PreTrainedConfig:
    """The tiny configuration of a family; `changes` set attributes on it."""
    config = _CONFIGS[family]()
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def make_model(family: str, seed: int = 0, config: PreTrainedConfig | None = None) -> PreTrainedModel:
    """A random float32 model of a family in memory, the same for the same arguments, in evaluation mode."""
    torch.manual_seed(seed)
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(
        config or family_config(family), dtype=torch.float32
    )
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if _is_random(name, tensor):
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * WEIGHT_SCALE)
    return model.eval()


def _is_random(name: str, tensor: torch.Tensor) -> bool:
    """Norms stay near one, decay rates of linear attention and rotary frequencies keep their meaning."""
    norm = "norm" in name.lower() and name.endswith("weight")
    return (
        tensor.is_floating_point() and not norm and "inv_freq" not in name and not name.endswith(("A_log", "dt_bias"))
    )


def write_checkpoint(
    family: str,
    out: Path,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    *,
    shard_size: str = "50GB",
    config: PreTrainedConfig | None = None,
) -> Path:
    """Writes a family's random model as a Hugging Face checkpoint into the directory `out` and returns it.

    shard_size: as `save_pretrained` understands it, e.g. "200KB" for many shards.
    """
    transformers.utils.logging.disable_progress_bar()
    make_model(family, seed, config).to(dtype).save_pretrained(out, max_shard_size=shard_size)
    return out


def write_package(family: str, out: Path, dtype: torch.dtype = torch.float32, seed: int = 0, **conversion: Any) -> Path:
    """Writes a family's random model as a model package into `out`, its checkpoint into `<out>-checkpoint`.

    conversion: further arguments of `convert_checkpoint`.
    """
    checkpoint = out.with_name(f"{out.name}-checkpoint")
    if not checkpoint.exists():
        write_checkpoint(family, checkpoint, dtype, seed)
    return convert_checkpoint(checkpoint, out, **conversion)


def load_reference(checkpoint: Path, experts: str = "grouped_mm") -> PreTrainedModel:
    """The whole model as transformers loads it, in the checkpoint's dtype: what exactness is measured against.

    Not `make_model(...).to(dtype)`: that would round rotary frequencies, which loading keeps in float32.
    """
    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    # Llama4's experts have one implementation only and refuse the argument.
    choice = {} if config.model_type == "llama4_text" else {"experts_implementation": experts}
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, **choice)
    return model.eval()
