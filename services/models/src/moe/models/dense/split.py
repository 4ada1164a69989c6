"""Splits every FFN of a dense model into a shared and several routed experts, as a Qwen2-MoE checkpoint.

No neuron is lost or added: with all experts chosen and a router of zeros the new model equals the dense one. With
fewer experts the model is an approximation until it is trained; docs/demo-model.md says by how much on one model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from moe.models.dense.calibration import LayerwiseRun, calibration_rows
from moe.models.dense.checkpoint import DenseCheckpoint
from moe.models.dense.clustering import label_neurons
from moe.models.dense.configuration import qwen2_moe_config
from moe.models.dense.layout import FeedForward, Partition, split_tensors
from moe.models.dense.router_fit import expert_norms, fit_router
from moe.models.dense.writer import CheckpointWriter
from moe.models.errors import ConversionError
from moe.models.progress import Meter, Progress, silent
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class SplitSizes:
    """How an FFN is cut: `shared_neurons` always compute, the rest form `experts` equal experts, `topk` chosen."""

    experts: int
    shared_neurons: int
    topk: int

    def check(self, neurons: int) -> None:
        """Raises ConversionError naming the size that doesn't fit an FFN of `neurons`."""
        if self.experts < 2 or self.experts > 128 or self.experts & (self.experts - 1):
            raise ConversionError(
                f"experts={self.experts}: must be a power of two from 2 to 128, so that scaling the experts is exact"
            )
        if not 1 <= self.topk <= self.experts:
            raise ConversionError(f"topk={self.topk}: must be from 1 to experts={self.experts}")
        if not 1 <= self.shared_neurons < neurons:
            raise ConversionError(f"shared_neurons={self.shared_neurons}: must be from 1 to {neurons - 1}")
        if (neurons - self.shared_neurons) % self.experts:
            fitting = [count for count in range(1, neurons) if (neurons - count) % self.experts == 0]
            nearest = min(fitting, key=lambda count: abs(count - self.shared_neurons), default=None)
            remedy = "choose fewer experts" if nearest is None else f"use {nearest}"
            raise ConversionError(
                f"shared_neurons={self.shared_neurons}: the other {neurons - self.shared_neurons} of {neurons} neurons "
                f"can't be divided equally among {self.experts} experts; {remedy}"
            )


@torch.inference_mode()
def partition_layer(ffn: FeedForward, inputs: Tensor, activation: str, sizes: SplitSizes) -> Partition:
    """Cluster one FFN's neurons and fit its router on inputs [tokens, hidden], in fp32."""
    from transformers.activations import ACT2FN

    wide = FeedForward(ffn.gate.float(), ffn.up.float(), ffn.down.float())
    activations = ACT2FN[activation](F.linear(inputs, wide.gate)) * F.linear(inputs, wide.up)
    contributions = activations.abs() * wide.down.norm(dim=0)
    labels = label_neurons(contributions, experts=sizes.experts, shared_neurons=sizes.shared_neurons)
    router = fit_router(inputs, expert_norms(activations, wide, labels, sizes.experts))
    return Partition(labels, router, torch.zeros(inputs.shape[1]))


def partitions(
    checkpoint: DenseCheckpoint, sizes: SplitSizes, calibration_texts: Sequence[str]
) -> Iterator[tuple[int, FeedForward, Partition]]:
    """(layer, its FFN, its partition) for every layer, in order; one layer in memory at a time."""
    run = LayerwiseRun(checkpoint, calibration_rows(checkpoint, calibration_texts))
    for layer, ffn, inputs in run.layers():
        yield layer, ffn, partition_layer(ffn, inputs, checkpoint.shape.activation, sizes)


def split(
    src: Path,
    out: Path,
    *,
    experts: int,
    shared_neurons: int,
    topk: int,
    calibration_texts: Sequence[str],
    progress: Progress = silent,
) -> None:
    """Write the split model to the new directory `out`; the same input on the same machine gives the same bytes.

    Raises ConversionError and its kinds: sizes that don't fit, a source that is damaged or not understood, a target
    that exists or doesn't fit the disk.
    """
    checkpoint = DenseCheckpoint(src)
    shape, sizes = checkpoint.shape, SplitSizes(experts, shared_neurons, topk)
    sizes.check(shape.neurons)
    config = qwen2_moe_config(
        shape,
        experts=experts,
        topk=topk,
        expert_neurons=(shape.neurons - shared_neurons) // experts,
        shared_neurons=shared_neurons,
        renormalise=False,
    )
    meter = Meter(progress, checkpoint.nbytes())
    with CheckpointWriter(out, shards=shape.layers + 1, needed=checkpoint.nbytes()) as writer:
        meter.add(writer.write_shard(checkpoint.outer_tensors()), "embeddings")
        for layer, ffn, partition in partitions(checkpoint, sizes, calibration_texts):
            tensors = checkpoint.layer_backbone(layer) | split_tensors(layer, ffn, partition)
            meter.add(writer.write_shard(tensors), f"layer {layer + 1} of {shape.layers}")
        writer.finish(config, checkpoint.text_files())
    meter.finish("done")
