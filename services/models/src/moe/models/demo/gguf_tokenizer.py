"""Turns the tokenizer inside a GGUF file into Hugging Face's tokenizer.json and tokenizer_config.json.

Built from the vocabulary and merges directly: transformers' own GGUF reader leaves out the digit splitting of this
family. Byte-level BPE as in GPT-2; `smollm` splits every digit off first (llama.cpp's table of pre-tokenizers).
"""

from typing import Any

from moe.models.demo.gguf_dense import GgufLlama
from moe.models.dense.writer import as_json
from moe.models.errors import UnsupportedModelError
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL = 3  # ggml's token type of special tokens


def tokenizer_files(source: GgufLlama) -> dict[str, str]:
    """File name -> text. Raises UnsupportedModelError for another kind of tokenizer."""
    kind, preparation = source.value("tokenizer.ggml.model"), source.value("tokenizer.ggml.pre")
    if (kind, preparation) != ("gpt2", "smollm"):
        raise UnsupportedModelError(
            f"{source.path}: tokenizer {kind!r} / {preparation!r}; only gpt2 / smollm is understood"
        )
    return {
        "tokenizer.json": byte_level_tokenizer(source).to_str(pretty=True) + "\n",
        "tokenizer_config.json": as_json(tokenizer_config(source)),
    }


def byte_level_tokenizer(source: GgufLlama) -> Tokenizer:
    """The BPE with its special tokens."""
    tokens = source.value("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in source.value("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = source.value("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer


def tokenizer_config(source: GgufLlama) -> dict[str, Any]:
    """Special tokens, the longest context and the ChatML template as the GGUF has it."""
    tokens = source.value("tokenizer.ggml.tokens")
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {key: tokens[int(source.value(f"tokenizer.ggml.{name}_token_id"))] for key, name in names.items()}
    return special | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(source.value("llama.context_length")),
        "chat_template": source.value("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
    }
