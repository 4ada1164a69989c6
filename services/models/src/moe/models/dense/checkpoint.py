"""A dense Hugging Face checkpoint, read tensor by tensor: one safetensors file, or shards with an index.

Only headers are read on opening; a tensor's bytes come from disk when asked for. Pickled checkpoints are refused.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from moe.models.dense.configuration import DenseShape, read_shape
from moe.models.dense.layout import FeedForward
from moe.models.errors import CheckpointError
from moe.models.safetensors_stream import SafetensorsError, TensorEntry, read_header, read_tensor
from torch import Tensor

INDEX_NAME = "model.safetensors.index.json"
TEXT_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip
"""Files that go over to the new checkpoint as they are."""


class DenseCheckpoint:
    """An opened checkpoint of a family that can be turned into experts."""

    def __init__(self, directory: Path) -> None:
        """Reads the configuration and headers. Raises CheckpointError and UnsupportedModelError."""
        self.directory = directory
        self.shape: DenseShape = read_shape(directory)
        self._entries = dict(locate_tensors(directory))

    def tensor(self, name: str) -> Tensor:
        """Reads one tensor. Raises CheckpointError when there is none of the name or its file is damaged."""
        if name not in self._entries:
            raise CheckpointError(f"{self.directory}: tensor {name!r} is missing; the checkpoint is incomplete")
        path, entry = self._entries[name]
        try:
            return read_tensor(path, entry)
        except (OSError, SafetensorsError) as error:
            raise CheckpointError(f"{path}: tensor {name!r} can't be read: {error}") from error

    def feed_forward(self, layer: int) -> FeedForward:
        """The layer's FFN, its shapes checked against the configuration."""
        neurons, hidden = self.shape.neurons, self.shape.hidden
        prefix = f"model.layers.{layer}.mlp"
        gate, up, down = (self.tensor(f"{prefix}.{part}_proj.weight") for part in ("gate", "up", "down"))
        expected = ((neurons, hidden), (neurons, hidden), (hidden, neurons))
        for part, tensor, size in zip(("gate", "up", "down"), (gate, up, down), expected, strict=True):
            if tuple(tensor.shape) != size:
                raise CheckpointError(
                    f"{self.directory}: tensor {prefix}.{part}_proj.weight has shape {tuple(tensor.shape)}; "
                    f"config.json says {size}"
                )
        return FeedForward(gate, up, down)

    def layer_backbone(self, layer: int) -> dict[str, Tensor]:
        """Everything of a layer but its FFN: attention and norms."""
        prefix = f"model.layers.{layer}."
        names = [name for name in self._entries if name.startswith(prefix) and ".mlp." not in name]
        wanted = [name for name in names if not name.endswith("rotary_emb.inv_freq")]  # old exports store a constant
        if not wanted:
            raise CheckpointError(f"{self.directory}: no tensor of layer {layer}; config.json has {self.shape.layers}")
        return {name: self.tensor(name) for name in wanted}

    def outer_tensors(self) -> dict[str, Tensor]:
        """Embeddings, final norm and, unless it is tied, the head."""
        names = ["model.embed_tokens.weight", "model.norm.weight"]
        if not self.shape.fields["tie_word_embeddings"]:
            names.append("lm_head.weight")
        return {name: self.tensor(name) for name in names}

    def text_files(self) -> list[Path]:
        """Tokenizer and generation files that exist."""
        return [path for path in (self.directory / name for name in TEXT_FILES) if path.is_file()]

    def nbytes(self, part: str = "") -> int:
        """Bytes of all tensors whose name contains `part`."""
        return sum(entry.spec.nbytes for name, (_, entry) in self._entries.items() if part in name)


def locate_tensors(directory: Path) -> Iterator[tuple[str, tuple[Path, TensorEntry]]]:
    """Every tensor's file and place. Raises CheckpointError naming the file."""
    for path in weight_files(directory):
        try:
            header = read_header(path)
        except (OSError, SafetensorsError) as error:
            raise CheckpointError(f"{path}: {error}") from error
        yield from ((name, (path, entry)) for name, entry in header.items())


def weight_files(directory: Path) -> list[Path]:
    """model.safetensors, or the shards that the index names, which must lie in the directory itself."""
    single, index = directory / "model.safetensors", directory / INDEX_NAME
    if not index.is_file():
        if not single.is_file():
            raise CheckpointError(
                f"{directory}: neither model.safetensors nor {INDEX_NAME}; pickled weights aren't read"
            )
        return [single]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index}: not an index of safetensors shards: {error!r}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (directory / name).is_file():
            raise CheckpointError(f"{index}: shard {name!r} is not a file of {directory}")
    return [directory / name for name in names]
