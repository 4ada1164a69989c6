"""The demo's build: a tiny GGUF and a tiny adapter give the checkpoint that the formula promises, every time."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from moe.models.demo import build
from moe.models.demo.adapter import Adapter
from moe.models.demo.gguf_dense import GgufLlama, halves_from_interleaved
from moe.models.dense.layout import SHARED
from moe.models.errors import CheckpointError, ConversionError, UnsupportedModelError
from moe.models.progress import silent
from support.tiny_dense import load
from torch.nn import functional as F
from transformers import AutoTokenizer

LAYERS, HIDDEN, NEURONS, HEADS, KV_HEADS = 2, 32, 48, 4, 2
EXPERTS, RANK = 4, 2
CHARACTERS = [chr(code) for code in range(33, 127)]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *CHARACTERS, "Ġ", "Ċ", "hi", "12"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def random(seed: int, *shape: int) -> np.ndarray:
    """Values that bf16 holds exactly, so that only the code under test can round."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.3
    return values.bfloat16().float().numpy()


def dense_weights() -> dict[str, np.ndarray]:
    sizes = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (HIDDEN // 2, HIDDEN),
        "attn_v": (HIDDEN // 2, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (NEURONS, HIDDEN),
        "ffn_up": (NEURONS, HIDDEN),
        "ffn_down": (HIDDEN, NEURONS),
        "attn_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
    }
    weights = {
        f"blk.{layer}.{name}.weight": random(100 * layer + index, *size)
        for layer in range(LAYERS)
        for index, (name, size) in enumerate(sizes.items())
    }
    return weights | {
        "token_embd.weight": random(1000, len(TOKENS), HIDDEN),
        "output_norm.weight": random(1001, HIDDEN),
    }


def write_gguf(path: Path, *, architecture: str = "llama", pre: str = "smollm", leave_out: str = "") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(NEURONS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in TOKENS])
    writer.add_token_merges(["h i", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, weight in dense_weights().items():
        if name != leave_out:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def adapter_tensors() -> dict[str, torch.Tensor]:
    """16 shared neurons and 4 experts of 8, interleaved."""
    labels = torch.tensor([SHARED, 0, 1, SHARED, 2, 3] * 8, dtype=torch.uint8)
    tensors = {}
    for layer in range(LAYERS):
        tensors[f"l{layer}.labels"] = labels
        tensors[f"l{layer}.router"] = torch.from_numpy(random(2000 + layer, EXPERTS, HIDDEN))
        for index, (part, size) in enumerate(
            {"gate": (NEURONS, HIDDEN), "up": (NEURONS, HIDDEN), "down": (HIDDEN, NEURONS)}.items()
        ):
            tensors[f"l{layer}.{part}.A"] = torch.from_numpy(random(3000 + 10 * layer + index, size[0], RANK))
            tensors[f"l{layer}.{part}.B"] = torch.from_numpy(random(4000 + 10 * layer + index, RANK, size[1]))
    return tensors


def build_tiny(tmp_path: Path, name: str, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    source = tmp_path / "tiny.gguf"
    if not source.exists():
        write_gguf(source)
    adapter = Adapter(adapter_tensors() if tensors is None else tensors, "tiny adapter")
    build.write_split_checkpoint(GgufLlama(source), adapter, tmp_path / name, topk=2, progress=silent)
    return tmp_path / name


def split_ffn(x: torch.Tensor, tensors: dict[str, torch.Tensor], layer: int, topk: int) -> torch.Tensor:
    """Neuron by neuron: shared ones weigh 2 sigmoid(gate x), those of a chosen expert E softmax(router x)."""
    gate, up, down = (
        (
            torch.from_numpy(dense_weights()[f"blk.{layer}.ffn_{part}.weight"])
            + tensors[f"l{layer}.{part}.A"] @ tensors[f"l{layer}.{part}.B"]
        ).bfloat16().float()
        for part in ("gate", "up", "down")
    )  # fmt: skip
    probabilities = F.softmax(x @ tensors[f"l{layer}.router"].T, -1)
    shared_gate = tensors.get(f"l{layer}.shared_gate", torch.zeros(HIDDEN))
    result = torch.zeros_like(x)
    for token in range(len(x)):
        chosen = set(probabilities[token].topk(topk).indices.tolist())
        for neuron, owner in enumerate(tensors[f"l{layer}.labels"].tolist()):
            if owner != SHARED and owner not in chosen:
                continue
            weight = (
                2 * torch.sigmoid(x[token] @ shared_gate) if owner == SHARED else EXPERTS * probabilities[token, owner]
            )
            result[token] += weight * F.silu(x[token] @ gate[neuron]) * (x[token] @ up[neuron]) * down[:, neuron]
    return result


@pytest.mark.parametrize("trained_gate", [False, True])
def test_built_layer_computes_the_split_ffn_with_its_corrections(tmp_path: Path, trained_gate: bool) -> None:
    tensors = adapter_tensors()
    if trained_gate:
        tensors |= {f"l{layer}.shared_gate": torch.from_numpy(random(layer, HIDDEN)) for layer in range(LAYERS)}
    model = load(build_tiny(tmp_path, "moe", tensors))
    x = torch.from_numpy(random(5, 6, HIDDEN))
    with torch.inference_mode():
        computed = model.model.layers[1].mlp(x[None])[0]
    torch.testing.assert_close(computed, split_ffn(x, tensors, layer=1, topk=2), rtol=1e-4, atol=1e-4)


def test_without_corrections_all_experts_give_the_dense_logits(tmp_path: Path) -> None:
    tensors = {key: value * 0 if key.endswith((".A", ".router")) else value for key, value in adapter_tensors().items()}
    sparse = load(build_tiny(tmp_path, "moe", tensors))
    for layer in sparse.model.layers:
        layer.mlp.gate.top_k = EXPERTS
    build.write_dense_checkpoint(GgufLlama(tmp_path / "tiny.gguf"), tmp_path / "dense")
    tokens = torch.arange(3, 60)[None]
    with torch.inference_mode():
        difference = (sparse(tokens).logits - load(tmp_path / "dense")(tokens).logits).abs().max()
    assert difference < 1e-4


def test_trained_norms_replace_the_dense_ones(tmp_path: Path) -> None:
    norm = torch.from_numpy(random(7, HIDDEN))
    model = load(build_tiny(tmp_path, "moe", adapter_tensors() | {"l1.post_norm": norm}))
    assert torch.equal(model.model.layers[1].post_attention_layernorm.weight, norm)


def test_building_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = build_tiny(tmp_path, "a"), build_tiny(tmp_path, "b")
    assert {p.name: p.read_bytes() for p in first.iterdir()} == {p.name: p.read_bytes() for p in second.iterdir()}


def test_query_rows_leave_ggml_pair_order() -> None:
    pairs = torch.tensor([[0], [10], [1], [11], [2], [12], [3], [13]])  # two heads; n and n + 10 turn together
    assert halves_from_interleaved(pairs, heads=2).flatten().tolist() == [0, 1, 10, 11, 2, 3, 12, 13]


def test_tokenizer_splits_digits_and_keeps_special_tokens_whole(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(build_tiny(tmp_path, "moe"))
    assert tokenizer.tokenize("<|im_start|>hi 12<|im_end|>") == ["<|im_start|>", "hi", "Ġ", "1", "2", "<|im_end|>"]


def test_tokenizer_brings_the_chat_template(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(build_tiny(tmp_path, "moe"))
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert (text, tokenizer.eos_token) == ("<|im_start|>user\nhi<|im_end|>\n", "<|im_end|>")


def test_quantised_tensor_is_dequantised(tmp_path: Path) -> None:
    path, values = tmp_path / "q8.gguf", random(9, len(TOKENS), HIDDEN)
    write_gguf(path)
    quantised = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    dense = GgufLlama(path)
    dense._tensors["output_norm.weight"] = dense._tensors["output_norm.weight"]._replace(
        data=quantised, tensor_type=gguf.GGMLQuantizationType.Q8_0
    )
    read = dense.outer_tensors()["model.norm.weight"].float()
    assert (read - torch.from_numpy(values)).abs().max() < 0.02  # Q8_0 keeps 1/254 of a block's largest value


def test_config_states_what_the_gguf_and_adapter_hold(tmp_path: Path) -> None:
    config = json.loads((build_tiny(tmp_path, "moe") / "config.json").read_text())
    expected: dict[str, Any] = {
        "model_type": "qwen2_moe",
        "num_hidden_layers": LAYERS,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 16,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
    }
    assert {key: config[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("changed", "error", "named"),
    [
        ({"architecture": "falcon"}, UnsupportedModelError, "'falcon'"),
        ({"pre": "llama-bpe"}, UnsupportedModelError, "'llama-bpe'"),
        ({"leave_out": "blk.1.ffn_up.weight"}, CheckpointError, r"blk\.1\.ffn_up\.weight"),
    ],
)
def test_unfit_gguf_is_refused_by_name(
    tmp_path: Path, changed: dict[str, str], error: type[ConversionError], named: str
) -> None:
    write_gguf(tmp_path / "tiny.gguf", **changed)
    with pytest.raises(error, match=named):
        build_tiny(tmp_path, "moe")
    assert not (tmp_path / "moe").exists()


def test_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"not a model" * 100)
    with pytest.raises(CheckpointError, match="not a readable GGUF"):
        build_tiny(tmp_path, "moe")


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("l1.labels", torch.zeros(NEURONS, dtype=torch.uint8), "labels of layer 1"),
        ("l0.labels", torch.full((7,), SHARED, dtype=torch.uint8), "labels of layer 0"),
        ("l0.up.A", torch.zeros(5, RANK), r"l0\.up\.A"),
        ("l1.router", None, r"l1\.router"),
    ],
)
def test_adapter_of_another_model_is_refused(tmp_path: Path, key: str, value: torch.Tensor | None, named: str) -> None:
    tensors = adapter_tensors()
    if value is None:
        del tensors[key]
    else:
        tensors[key] = value
    with pytest.raises(CheckpointError, match=named):
        build_tiny(tmp_path, "moe", tensors)


def test_damaged_adapter_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "adapter.safetensors"
    path.write_bytes(b"\x00" * 40)
    with pytest.raises(CheckpointError, match=r"adapter\.safetensors"):
        Adapter.load(path)
