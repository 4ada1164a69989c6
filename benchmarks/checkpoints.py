"""Writes the random checkpoints that are measured: Mixtral's architecture in bfloat16, with a small tokenizer.

    python -m benchmarks.checkpoints S M                 # into $MOE_HOME/../benchmarks
    python -m benchmarks.checkpoints E8 E64 --out DIR

S and M are a small and a middling model; E8, E64 and E256 have the same active size and a growing number of experts.
Weights are drawn from a seed, an expert at a time, so that memory stays at one tensor's size.
"""

import argparse
import json
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.places import benchmarks_home, made_from

SEED = 20260101
VOCABULARY = 4096
DONE = "checkpoint.done"
_RMS_EPSILON = 1e-5


@dataclass(frozen=True)
class Size:
    """Of a Mixtral-like model. ffn: inner width of an expert. Heads are 64 wide, four of them share a key.

    decided: how many times as large as its input's products of gates are. Among very many experts some are as good as
    alike to a random gate, and rounding chooses; with 4 the first weighs most, so that answers can be compared.
    """

    name: str
    hidden: int
    layers: int
    experts: int
    topk: int
    ffn: int
    vocabulary: int = VOCABULARY
    decided: float = 1.0

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.hidden // 64

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return max(1, self.heads // 4)

    @property
    def parameters(self) -> int:
        """All of them."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * 64
        moe = self.experts * (3 * self.hidden * self.ffn + self.hidden)
        return self.layers * (attention + moe + 2 * self.hidden) + 2 * self.vocabulary * self.hidden + self.hidden


SIZES = {
    size.name: size
    for size in (
        Size("S", hidden=512, layers=8, experts=8, topk=2, ffn=1024),
        Size("M", hidden=1024, layers=16, experts=16, topk=2, ffn=2048),
        Size("E8", hidden=512, layers=8, experts=8, topk=2, ffn=512, decided=4.0),
        Size("E64", hidden=512, layers=8, experts=64, topk=2, ffn=512, decided=4.0),
        Size("E256", hidden=512, layers=8, experts=256, topk=2, ffn=512, decided=4.0),
    )
}


def ensure_checkpoint(size: Size, home: Path) -> Path:
    """The checkpoint's folder, written unless one of this size and seed is there. A run that was cut off leaves nothing
    that looks whole."""
    folder = home / "checkpoints" / size.name
    done, wanted = folder / DONE, f"{size}, seed {SEED}"
    if not made_from(done, wanted):
        shutil.rmtree(folder, ignore_errors=True)
        print(f"checkpoints: writing {size.name}, {size.parameters / 1e6:.0f} M parameters", file=sys.stderr)
        write_checkpoint(size, folder)
        done.write_text(wanted, encoding="utf-8")
    return folder


def write_checkpoint(size: Size, folder: Path, seed: int = SEED) -> None:
    """Writes configuration, one file of weights a layer with its index, and the tokenizer. The folder must be new."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    weight_map: dict[str, str] = {}
    total = 0
    count = size.layers + 1
    for number, tensors in enumerate(_files(size, generator), start=1):
        file = f"model-{number:05d}-of-{count:05d}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)
    _write_json(folder / "config.json", _configuration(size))
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    _write_tokenizer(size, folder)


def _files(size: Size, generator: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """Tensors by name, a file at a time: the layers, then what stands around them."""
    for layer in range(size.layers):
        yield _layer(size, f"model.layers.{layer}", generator)
    ends = {
        "model.embed_tokens.weight": _drawn(generator, size.vocabulary, size.hidden, scale=1.0),
        "model.norm.weight": torch.ones(size.hidden, dtype=torch.bfloat16),
        "lm_head.weight": _drawn(generator, size.vocabulary, size.hidden),
    }
    yield ends


def _layer(size: Size, name: str, generator: torch.Generator) -> dict[str, Tensor]:
    """Names as in mistralai's Mixtral checkpoints: w1 gates, w3 goes up, w2 down."""
    hidden, keys = size.hidden, size.kv_heads * 64
    tensors = {
        f"{name}.self_attn.q_proj.weight": _drawn(generator, hidden, hidden),
        f"{name}.self_attn.k_proj.weight": _drawn(generator, keys, hidden),
        f"{name}.self_attn.v_proj.weight": _drawn(generator, keys, hidden),
        f"{name}.self_attn.o_proj.weight": _drawn(generator, hidden, hidden),
        f"{name}.input_layernorm.weight": torch.ones(hidden, dtype=torch.bfloat16),
        f"{name}.post_attention_layernorm.weight": torch.ones(hidden, dtype=torch.bfloat16),
        f"{name}.block_sparse_moe.gate.weight": _drawn(
            generator, size.experts, hidden, scale=size.decided / math.sqrt(hidden)
        ),
    }
    for expert in range(size.experts):
        place = f"{name}.block_sparse_moe.experts.{expert}"
        tensors[f"{place}.w1.weight"] = _drawn(generator, size.ffn, hidden)
        tensors[f"{place}.w2.weight"] = _drawn(generator, hidden, size.ffn)
        tensors[f"{place}.w3.weight"] = _drawn(generator, size.ffn, hidden)
    return tensors


def _drawn(generator: torch.Generator, out: int, into: int, scale: float | None = None) -> Tensor:
    """Normal, scaled so that a product keeps the size of its input: hidden states stay finite in every layer."""
    values = torch.randn(out, into, generator=generator)
    return (values * (1 / math.sqrt(into) if scale is None else scale)).to(torch.bfloat16)


def _configuration(size: Size) -> dict[str, object]:
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "torch_dtype": "bfloat16",
        "hidden_size": size.hidden,
        "intermediate_size": size.ffn,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "num_local_experts": size.experts,
        "num_experts_per_tok": size.topk,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": 4096,
        "rms_norm_eps": _RMS_EPSILON,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "sliding_window": None,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def words(size: Size) -> list[str]:
    """The vocabulary: three special tokens, then words that no text holds."""
    return ["<unk>", "<s>", "</s>", *(f"w{number}" for number in range(3, size.vocabulary))]


def _write_tokenizer(size: Size, folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    ids = {word: number for number, word in enumerate(words(size))}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the checkpoints that are named and prints where they are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints", description=__doc__.partition("\n")[0])
    parser.add_argument("sizes", nargs="+", choices=sorted(SIZES), metavar="SIZE", help=f"one of {', '.join(SIZES)}")
    parser.add_argument("--out", type=Path, help="folder for all of it; default: benchmarks beside the model store")
    chosen = parser.parse_args(argv)
    for name in chosen.sizes:
        print(ensure_checkpoint(SIZES[name], chosen.out or benchmarks_home()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
