"""A Mixtral-like backbone of medium size with random weights, as a checkpoint that the router's loader reads."""

from pathlib import Path

import torch
from transformers import MixtralConfig, MixtralForCausalLM

HIDDEN, LAYERS, EXPERTS, TOPK = 1024, 16, 16, 2


def write_medium(directory: Path) -> Path:
    """Writes it. The experts, which a backbone never reads, are as narrow as can be."""
    torch.manual_seed(0)
    config = MixtralConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        intermediate_size=8,
        num_local_experts=EXPERTS,
        num_experts_per_tok=TOPK,
        vocab_size=32000,
        max_position_embeddings=4096,
    )
    MixtralForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    return directory
