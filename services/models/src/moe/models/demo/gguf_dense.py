"""Reads a Llama-type GGUF file as Hugging Face tensors (bf16) and configuration.

The gguf package (llama.cpp's own reader) parses and dequantises; this module knows the names of both worlds and that
ggml stores query and key rows in interleaved rotary order, where Hugging Face has the halves one after the other.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from moe.models.dense.layout import FeedForward
from moe.models.errors import CheckpointError, UnsupportedModelError
from torch import Tensor

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
OUTER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


class GgufLlama:
    """An opened GGUF file of the llama architecture."""

    def __init__(self, path: Path) -> None:
        """Parses the metadata. Raises CheckpointError (not a sound GGUF) and UnsupportedModelError (another model)."""
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise CheckpointError(f"{path}: not a readable GGUF file: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._values: dict[str, Any] = {}
        architecture = self.value("general.architecture")
        if architecture != "llama":
            raise UnsupportedModelError(f"{path}: architecture {architecture!r}; only llama is understood")
        self.layers = int(self.value("llama.block_count"))
        self.heads = int(self.value("llama.attention.head_count"))
        self.kv_heads = int(self.value("llama.attention.head_count_kv"))

    def value(self, key: str) -> Any:
        """A metadata value. Raises CheckpointError when it is missing."""
        if key not in self._values:
            field = self._reader.fields.get(key)
            if field is None:
                raise CheckpointError(f"{self.path}: metadata {key!r} is missing")
            self._values[key] = field.contents()  # kept: decoding the vocabulary takes half a second
        return self._values[key]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in bf16."""
        return 2 * sum(int(tensor.n_elements) for tensor in self._tensors.values())

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding: GGUF then has no `output` tensor."""
        return "output.weight" not in self._tensors

    def config(self) -> dict[str, Any]:
        """config.json of the dense LlamaForCausalLM."""
        hidden = int(self.value("llama.embedding_length"))
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "vocab_size": len(self.value("tokenizer.ggml.tokens")),
            "hidden_size": hidden,
            "intermediate_size": int(self.value("llama.feed_forward_length")),
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": hidden // self.heads,
            "hidden_act": "silu",
            "max_position_embeddings": int(self.value("llama.context_length")),
            # stored as float32: 1e-5 would come back as 9.999999747378752e-06
            "rms_norm_eps": float(f"{self.value('llama.attention.layer_norm_rms_epsilon'):.6g}"),
            "rope_theta": float(self.value("llama.rope.freq_base")),
            "tie_word_embeddings": self.tied,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": int(self.value("tokenizer.ggml.bos_token_id")),
            "eos_token_id": int(self.value("tokenizer.ggml.eos_token_id")),
            "pad_token_id": int(self.value("tokenizer.ggml.padding_token_id")),
        }

    def outer_tensors(self) -> dict[str, Tensor]:
        """Embeddings, final norm and, unless it is tied, the head."""
        names = [name for name in OUTER_NAMES if name != "output" or not self.tied]
        return {f"{OUTER_NAMES[name]}.weight": self._tensor(f"{name}.weight") for name in names}

    def layer_backbone(self, layer: int) -> dict[str, Tensor]:
        """Attention and norms of a layer under Hugging Face's names."""
        tensors = {}
        for source, target in LAYER_NAMES.items():
            weight = self._tensor(f"blk.{layer}.{source}.weight")
            if source in ("attn_q", "attn_k"):
                weight = halves_from_interleaved(weight, self.heads if source == "attn_q" else self.kv_heads)
            tensors[f"model.layers.{layer}.{target}.weight"] = weight
        return tensors

    def feed_forward(self, layer: int) -> FeedForward:
        """The FFN of a layer: gate and up [neurons, hidden], down [hidden, neurons]."""
        return FeedForward(*(self._tensor(f"blk.{layer}.ffn_{part}.weight") for part in ("gate", "up", "down")))

    def _tensor(self, name: str) -> Tensor:
        """One tensor, dequantised to fp32 and rounded to bf16."""
        if name not in self._tensors:
            raise CheckpointError(f"{self.path}: tensor {name!r} is missing")
        stored = self._tensors[name]
        try:
            values = gguf.quants.dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            kind = stored.tensor_type.name
            raise UnsupportedModelError(f"{self.path}: tensor {name!r} has type {kind}, which can't be read") from error
        return torch.from_numpy(np.array(values, dtype=np.float32)).bfloat16()


def halves_from_interleaved(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from ggml's rotary order (pair by pair) to Hugging Face's (all firsts, then all seconds).

    weight [heads * head_dim, hidden]; the inverse of the permutation that llama.cpp's convert_hf_to_gguf applies.
    """
    rows, hidden = weight.shape
    return weight.view(heads, rows // heads // 2, 2, hidden).transpose(1, 2).reshape(rows, hidden).contiguous()
