"""Runs a dense model over calibration text one layer at a time, so that only one layer's weights are in memory.

transformers' own decoder layers compute, in fp32; between layers only the hidden states of the calibration rows are
kept. transformers is imported where it is used: that takes seconds, which `moe --help` shouldn't.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from moe.models.dense.checkpoint import DenseCheckpoint
from moe.models.dense.layout import FeedForward
from moe.models.errors import CheckpointError, ConversionError
from tokenizers import Tokenizer
from torch import Tensor, nn

ROW_TOKENS = 256
MAX_ROWS = 24
MIN_TOKENS = 64


def calibration_rows(checkpoint: DenseCheckpoint, texts: Sequence[str]) -> list[Tensor]:
    """At most MAX_ROWS rows of at most ROW_TOKENS tokens, drawn evenly from all texts. Raises ConversionError."""
    tokenizer = open_tokenizer(checkpoint.directory / "tokenizer.json")
    encoded = [torch.tensor(tokenizer.encode(text).ids, dtype=torch.int64) for text in texts]
    tokens = sum(len(ids) for ids in encoded)
    if tokens < MIN_TOKENS:
        raise ConversionError(f"calibration_texts hold {tokens} tokens; give texts of at least {MIN_TOKENS} in all")
    rows = [row for ids in encoded for row in torch.split(ids, ROW_TOKENS) if len(row)]
    step = max(1, len(rows) // MAX_ROWS)
    return rows[::step][:MAX_ROWS]


def open_tokenizer(path: Path) -> Tokenizer:
    """The checkpoint's own tokenizer. Raises CheckpointError naming the file."""
    if not path.is_file():
        raise CheckpointError(f"{path}: missing, and calibration needs a tokenizer; save the model's fast one")
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower type
        raise CheckpointError(f"{path}: not a readable tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class LayerwiseRun:
    """Hidden states of the calibration rows, advanced layer by layer."""

    def __init__(self, checkpoint: DenseCheckpoint, rows: Sequence[Tensor]) -> None:
        embeddings = checkpoint.tensor("model.embed_tokens.weight")
        self._checkpoint = checkpoint
        self._hidden = [embeddings[row].float()[None] for row in rows]

    def layers(self) -> Iterator[tuple[int, FeedForward, Tensor]]:
        """(layer, its FFN as stored, that FFN's inputs [tokens, hidden] fp32), in order."""
        for layer in range(self._checkpoint.shape.layers):
            ffn = self._checkpoint.feed_forward(layer)
            yield layer, ffn, self._advance(layer, ffn)

    @torch.inference_mode()
    def _advance(self, layer: int, ffn: FeedForward) -> Tensor:
        model = self._one_layer_model(layer, ffn)
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []
        decoder = model.model.layers[0]
        decoder.mlp.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0][0]))
        decoder.register_forward_hook(lambda _, __, result: outputs.append(result))
        for hidden in self._hidden:
            model.model(inputs_embeds=hidden, use_cache=False)
        self._hidden = outputs
        return torch.cat(inputs)

    def _one_layer_model(self, layer: int, ffn: FeedForward) -> Any:
        """The family's own model with this layer as its only one; embeddings and head stay on the meta device."""
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(str(self._checkpoint.directory), local_files_only=True)
        if getattr(config, "layer_types", None):
            config.layer_types = [config.layer_types[layer]]
        config.num_hidden_layers = 1
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        weights = self._checkpoint.layer_backbone(layer)
        prefix = f"model.layers.{layer}."
        state = {name.replace(prefix, "model.layers.0.", 1): tensor.float() for name, tensor in weights.items()}
        for part in ("gate", "up", "down"):
            state[f"model.layers.0.mlp.{part}_proj.weight"] = getattr(ffn, part).float()
        state["model.norm.weight"] = torch.ones(config.hidden_size)
        unexpected = model.load_state_dict(state, strict=False, assign=True).unexpected_keys
        if unexpected:
            raise CheckpointError(f"{self._checkpoint.directory}: layer {layer} has unknown tensors: {unexpected}")
        model.model.rotary_emb = restored_rotary(model.model.rotary_emb, config)
        return model


def restored_rotary(rotary: nn.Module, config: Any) -> nn.Module:
    """The position embedding made anew off the meta device: its buffers are computed, not loaded."""
    return type(rotary)(config=config)
