"""Writes a checkpoint of Mixtral's or Qwen2-MoE's architecture as GGUF, bf16 or q8_0, one tensor in memory at a time.

Layout as llama.cpp reads its `llama` and `qwen2moe` architectures: experts of a layer stacked. In `llama`, query and
key rows are reordered for its rotary embedding, which pairs neighbours where transformers pairs halves. There is no
vocabulary in the file: ids go in.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

TYPES = {"bf16": GGMLQuantizationType.BF16, "q8_0": GGMLQuantizationType.Q8_0}
_FILE_TYPES = {"bf16": 32, "q8_0": 7}
_ARCHITECTURES = {"mixtral": "llama", "qwen2_moe": "qwen2moe"}
_PARTS_OF_MIXTRAL = {"gate": "w1", "down": "w2", "up": "w3"}
_PARTS = ("gate", "down", "up")


class _Checkpoint:
    """Tensors of a checkpoint by name."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        self._map = json.loads((folder / "model.safetensors.index.json").read_bytes())["weight_map"]
        self._folder = folder

    @property
    def experts(self) -> int:
        """Routed experts of a layer."""
        return int(self.config.get("num_local_experts") or self.config["num_experts"])

    def __call__(self, name: str) -> Tensor:
        with safe_open(self._folder / self._map[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor.float()

    def stacked(self, pattern: str) -> Tensor:
        """That tensor of every expert; `{}` in the pattern is its number."""
        return torch.stack([self(pattern.format(expert)) for expert in range(self.experts)])


def write_gguf(checkpoint: Path, target: Path, kind: str) -> None:
    """Writes `target`, in one step at the end. kind: of TYPES. Norms and gates stay float32.

    Raises KeyError for an architecture that it doesn't know.
    """
    source = _Checkpoint(checkpoint)
    part = target.with_suffix(".part")
    writer = GGUFWriter(part, _ARCHITECTURES[source.config["model_type"]])
    _describe(writer, source, kind)
    for name, tensor in _tensors(source):
        data, stored = _stored(name, tensor, TYPES[kind])
        writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, tensor in _tensors(source):
        writer.write_tensor_data(_stored(name, tensor, TYPES[kind])[0])
    writer.close()
    part.replace(target)


def _describe(writer: GGUFWriter, source: _Checkpoint, kind: str) -> None:
    config = source.config
    heads = config["num_attention_heads"]
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(source.experts)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if config["model_type"] == "qwen2_moe":
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    writer.add_file_type(_FILE_TYPES[kind])


def _tensors(source: _Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """By GGUF's names, in the file's order."""
    yield "token_embd.weight", source("model.embed_tokens.weight")
    for layer in range(source.config["num_hidden_layers"]):
        there, here = f"model.layers.{layer}", f"blk.{layer}"
        yield from _attention(source, there, here)
        experts = _mixtral_experts if source.config["model_type"] == "mixtral" else _qwen2_experts
        yield from experts(source, there, here)
    yield "output_norm.weight", source("model.norm.weight")
    tied = source.config.get("tie_word_embeddings", False)
    yield "output.weight", source("model.embed_tokens.weight" if tied else "lm_head.weight")


def _attention(source: _Checkpoint, there: str, here: str) -> Iterator[tuple[str, Tensor]]:
    config = source.config
    yield f"{here}.attn_norm.weight", source(f"{there}.input_layernorm.weight")
    for name, heads in (("q", config["num_attention_heads"]), ("k", config["num_key_value_heads"])):
        weight = source(f"{there}.self_attn.{name}_proj.weight")
        yield f"{here}.attn_{name}.weight", neighbours(weight, heads) if config["model_type"] == "mixtral" else weight
    yield f"{here}.attn_v.weight", source(f"{there}.self_attn.v_proj.weight")
    yield f"{here}.attn_output.weight", source(f"{there}.self_attn.o_proj.weight")
    yield f"{here}.ffn_norm.weight", source(f"{there}.post_attention_layernorm.weight")


def _mixtral_experts(source: _Checkpoint, there: str, here: str) -> Iterator[tuple[str, Tensor]]:
    yield f"{here}.ffn_gate_inp.weight", source(f"{there}.block_sparse_moe.gate.weight")
    for name, part in _PARTS_OF_MIXTRAL.items():
        stacked = source.stacked(f"{there}.block_sparse_moe.experts.{{}}.{part}.weight")
        yield f"{here}.ffn_{name}_exps.weight", stacked


def _qwen2_experts(source: _Checkpoint, there: str, here: str) -> Iterator[tuple[str, Tensor]]:
    yield f"{here}.ffn_gate_inp.weight", source(f"{there}.mlp.gate.weight")
    yield f"{here}.ffn_gate_inp_shexp.weight", source(f"{there}.mlp.shared_expert_gate.weight").flatten()
    for name in _PARTS:
        yield f"{here}.ffn_{name}_exps.weight", source.stacked(f"{there}.mlp.experts.{{}}.{name}_proj.weight")
        yield f"{here}.ffn_{name}_shexp.weight", source(f"{there}.mlp.shared_expert.{name}_proj.weight")


def neighbours(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head reordered so that those a half apart become neighbours: 0, n/2, 1, n/2 + 1, ..."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def _stored(name: str, tensor: Tensor, kind: GGMLQuantizationType) -> tuple[NDArray[Any], GGMLQuantizationType]:
    """As the file holds it; norms and gates stay float32."""
    values = tensor.contiguous().numpy()
    if "norm" in name or "ffn_gate_inp" in name:
        return values.astype(np.float32), GGMLQuantizationType.F32
    return quantize(values, kind), kind
