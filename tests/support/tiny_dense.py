"""Tiny random dense checkpoints, written as Hugging Face would, and a word-level tokenizer to calibrate with."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 64
WORDS = [f"w{index}" for index in range(VOCABULARY)]


def write_dense(directory: Path, family: str = "llama", *, max_shard_size: str = "1GB", **fields: Any) -> Path:
    """A two-layer model (hidden 16, FFN 24, 4 heads, 2 KV heads) with weights large enough that the FFN matters."""
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(settings | fields)), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.uniform_(parameter.data, 0.5, 1.5)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    write_tokenizer(directory)
    return directory


def write_tokenizer(directory: Path) -> None:
    """Words w0 to w63 are the tokens 0 to 63."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(directory)


def calibration_texts() -> list[str]:
    """Two texts of 400 words each."""
    generator = torch.Generator().manual_seed(1)
    return [" ".join(WORDS[i] for i in torch.randint(VOCABULARY, (400,), generator=generator)) for _ in range(2)]


@torch.inference_mode()
def logits_of(model: Any) -> torch.Tensor:
    """Logits [2, 40, vocabulary] for fixed tokens."""
    tokens = torch.randint(VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(2))
    logits: torch.Tensor = model(tokens).logits
    return logits


def load(directory: Path) -> Any:
    """The checkpoint in fp32; a missing, unexpected or misshapen tensor fails."""
    model, report = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    problems = {kind: names for kind, names in report.items() if names}
    assert not problems, problems
    return model.eval()
