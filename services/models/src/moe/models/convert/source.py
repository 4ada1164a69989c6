"""A Hugging Face checkpoint directory as the converter reads it: its tensors' places and the small files beside them.

It reads safetensors only. Pickles are refused by name, code is never looked at, and only the kinds of files that a
backbone needs are taken along. It knows nothing of models.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from moe.models.errors import CheckpointError, UnsupportedModelError
from moe.models.safetensors_stream import SafetensorsError, TensorEntry, read_header, read_tensor
from torch import Tensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_JSON_BYTES = 256 << 20

COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.json",
    "chat_template.jinja",
)
"""The files beside the weights that go into a package; anything else (code, other formats, pictures) stays behind."""

_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
)
_TEMPLATES = "additional_chat_templates"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True)
class Place:
    """Where a tensor's bytes are."""

    path: Path
    entry: TensorEntry


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's tensors by name and the companions to copy, as paths relative to the directory."""

    directory: Path
    config: Mapping[str, object]
    tensors: Mapping[str, Place]
    companions: tuple[str, ...]

    @property
    def has_tokenizer(self) -> bool:
        """Whether one of the files that hold a tokenizer is there."""
        return any(name in self.companions for name in _TOKENIZERS)

    def read(self, name: str) -> Tensor:
        """One tensor, read into memory of its own. Raises CheckpointError."""
        place = self.tensors[name]
        try:
            return read_tensor(place.path, place.entry)
        except (SafetensorsError, OSError) as error:
            raise CheckpointError(f"tensor {name!r} can't be read: {error}") from error


def open_checkpoint(directory: Path) -> Checkpoint:
    """Opens a checkpoint; reads the headers of its weights, not the weights.

    Raises CheckpointError when it is incomplete, damaged or a pickle; UnsupportedModelError when it is quantised.
    """
    if not directory.is_dir():
        raise CheckpointError(f"there is no directory {directory}")
    config = _read_json(directory / "config.json")
    _refuse_quantised(config, directory)
    tensors: dict[str, Place] = {}
    for path in _weight_files(directory):
        for name, entry in _header(path).items():
            if name in tensors:
                raise CheckpointError(f"tensor {name!r} is both in {tensors[name].path} and in {path}")
            tensors[name] = Place(path, entry)
    return Checkpoint(directory, config, tensors, tuple(_companions(directory)))


def _refuse_quantised(config: Mapping[str, object], directory: Path) -> None:
    text = config.get("text_config")
    for where in (config, text if isinstance(text, dict) else {}):
        found = where.get("quantization_config") or where.get("compression_config")
        if found:
            method = found.get("quant_method", "unnamed") if isinstance(found, dict) else "unnamed"
            raise UnsupportedModelError(
                f"{directory} is quantised (method {str(method)[:40]!r}); only float32, bfloat16 and float16 "
                "weights can be converted: use the model's unquantised checkpoint"
            )


def _weight_files(directory: Path) -> list[Path]:
    """The files that transformers would load: one file, else the ones that the index names."""
    single, index = directory / SINGLE_FILE, directory / INDEX_FILE
    if single.is_file():
        return [single]
    if index.is_file():
        return _indexed_files(index)
    pickles = sorted(path.name for path in directory.iterdir() if path.suffix in _PICKLES)
    if pickles:
        raise CheckpointError(
            f"{directory / pickles[0]} is a pickle, which can run code when it is read, and is refused; "
            "convert the checkpoint to safetensors first (save_pretrained of transformers does)"
        )
    raise CheckpointError(f"{directory} holds neither {SINGLE_FILE} nor {INDEX_FILE}")


def _indexed_files(index: Path) -> list[Path]:
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is missing or empty")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors", name) is None:
            raise CheckpointError(f"{index}: {name[:200]!r} is no name of a safetensors file beside it")
        if not (index.parent / name).is_file():
            raise CheckpointError(f"{index.parent / name} is missing, though {INDEX_FILE} names it")
    return [index.parent / name for name in names]


def _header(path: Path) -> dict[str, TensorEntry]:
    try:
        return read_header(path)
    except SafetensorsError as error:
        raise CheckpointError(str(error)) from error
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}") from error


def _companions(directory: Path) -> Iterable[str]:
    yield from (name for name in COMPANIONS if (directory / name).is_file())
    templates = directory / _TEMPLATES
    if templates.is_dir():
        names = sorted(path.name for path in templates.iterdir() if path.suffix == ".jinja" and path.is_file())
        yield from (f"{_TEMPLATES}/{name}" for name in names if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name))


def _read_json(path: Path) -> Mapping[str, object]:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise CheckpointError(f"{path} is larger than {MAX_JSON_BYTES} bytes")
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return content
