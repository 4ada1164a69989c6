"""Copies a dense FFN into every expert, so that the new model answers exactly as the dense one does.

Sparse upcycling (Komatsuzaki et al. 2023, "Sparse Upcycling: Training Mixture-of-Experts from Dense Checkpoints"): all
experts start equal and a small random router spreads the tokens; training makes them differ. Weights of the
chosen experts must add up to one, so the target renormalises them: Mixtral, or for the biases of Qwen2 a Qwen2-MoE
with `norm_topk_prob` and a shared expert of zeros.
"""

from pathlib import Path
from typing import Any

import torch
from moe.models.dense.checkpoint import DenseCheckpoint
from moe.models.dense.configuration import DenseShape, mixtral_config, qwen2_moe_config
from moe.models.dense.layout import FeedForward, empty_expert
from moe.models.dense.writer import CheckpointWriter
from moe.models.errors import ConversionError
from moe.models.progress import Meter, Progress, silent
from torch import Tensor

ROUTER_DEVIATION = 0.02  # the families' own initialiser; large enough to spread tokens, too small to matter later


def upcycle(src: Path, out: Path, *, experts: int, topk: int, progress: Progress = silent) -> None:
    """Write the upcycled model to the new directory `out`, deterministically.

    Raises ConversionError and its kinds: counts that make no sense, a source that is damaged or not understood, a
    target that exists or doesn't fit the disk.
    """
    if experts < 2:
        raise ConversionError(f"experts={experts}: must be at least 2")
    if not 1 <= topk <= experts:
        raise ConversionError(f"topk={topk}: must be from 1 to experts={experts}")
    checkpoint = DenseCheckpoint(src)
    shape = checkpoint.shape
    needed = checkpoint.nbytes() + (experts - 1) * checkpoint.nbytes(".mlp.")
    meter = Meter(progress, needed)
    with CheckpointWriter(out, shards=shape.layers + 1, needed=needed) as writer:
        meter.add(writer.write_shard(checkpoint.outer_tensors()), "embeddings")
        for layer in range(shape.layers):
            copies = upcycled_tensors(shape, layer, checkpoint.feed_forward(layer), experts)
            size = writer.write_shard(checkpoint.layer_backbone(layer) | copies)
            meter.add(size, f"layer {layer + 1} of {shape.layers}")
        writer.finish(upcycled_config(shape, experts, topk), checkpoint.text_files())
    meter.finish("done")


def upcycled_config(shape: DenseShape, experts: int, topk: int) -> dict[str, Any]:
    """The target family's configuration."""
    if not shape.qkv_bias:
        return mixtral_config(shape, experts=experts, topk=topk)
    return qwen2_moe_config(
        shape, experts=experts, topk=topk, expert_neurons=shape.neurons, shared_neurons=1, renormalise=True
    )


def upcycled_tensors(shape: DenseShape, layer: int, ffn: FeedForward, experts: int) -> dict[str, Tensor]:
    """Router and copied experts of a layer, under the target family's names."""
    generator = torch.Generator().manual_seed(layer)
    router = torch.randn(experts, shape.hidden, generator=generator) * ROUTER_DEVIATION
    if not shape.qkv_bias:
        prefix, names = f"model.layers.{layer}.block_sparse_moe", ("w1", "w3", "w2")
        extra: dict[str, Tensor] = {}
    else:
        prefix, names = f"model.layers.{layer}.mlp", ("gate_proj", "up_proj", "down_proj")
        extra = empty_expert(f"{prefix}.shared_expert", shape.hidden, ffn.gate.dtype)
        extra[f"{prefix}.shared_expert_gate.weight"] = torch.zeros(1, shape.hidden, dtype=ffn.gate.dtype)
    copies = {
        f"{prefix}.experts.{expert}.{name}.weight": weight.clone()
        for expert in range(experts)
        for name, weight in zip(names, (ffn.gate, ffn.up, ffn.down), strict=True)
    }
    return {f"{prefix}.gate.weight": router.to(ffn.gate.dtype)} | copies | extra
