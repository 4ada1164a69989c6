"""The manifest of a model package: what is in it, checked field by field, whoever wrote it.

A manifest comes from a stranger's disk, so reading it trusts nothing: wrong types, absurd numbers, paths that leave the
package and unknown schema versions are PackageErrors that name the field. Writing is deterministic. It knows nothing
of where the package lies and opens no other file; transformers is not needed.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from moe.kernels.ffn import FfnSpec
from moe.models.errors import PackageError, PackageVersionError
from moe.models.fields import (
    MAX_COUNT,
    FieldError,
    Fields,
    parse_json,
    relative_path,
    sha256_text,
)
from moe.models.quantisation import Quantisation, read_quantisation

MANIFEST_NAME = "manifest.json"
PROBES_NAME = "probes.json"
BACKBONE_DIRECTORY = "backbone"
EXPERTS_DIRECTORY = "experts"
SCHEMA = "moe.package/v1"
QUANTISED_SCHEMA = "moe.package/v2"
"""As v1, with `quantisation`: a version that knows only v1 would take bytes for numbers, so it has to refuse."""

GROUPED_SCHEMA = "moe.package/v3"
"""As v2, with `quantisation.group_size`: scales have another shape."""

SCHEMAS = (SCHEMA, QUANTISED_SCHEMA, GROUPED_SCHEMA)
"""Schema versions that this version reads."""

MAX_MANIFEST_BYTES = 64 << 20
MAX_EXPERTS = 1 << 16
MAX_LAYERS = 1 << 12
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""Dtypes that experts may be stored in."""

BACKBONE_SUFFIXES = frozenset({".json", ".safetensors", ".txt", ".jinja", ".model"})
"""Kinds of files that a backbone may hold; none of them can carry code (.model is a SentencePiece protobuf)."""

NAME_PATTERN = r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"
"""Package names go into host names and Kubernetes labels."""


@dataclass(frozen=True)
class FileFacts:
    """What a package's file must be: its sha256 in hexadecimal and its size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class ExpertFacts:
    """Sizes and formula of the routed experts: rows of `hidden` columns, `inner` columns after the activation."""

    hidden: int
    inner: int
    ffn: FfnSpec

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one expert's tensors in one layer by name, in the order in which they lie in the file."""
        up_rows = self.inner * (2 if self.ffn.gated else 1)
        shapes: dict[str, tuple[int, ...]] = {"up": (up_rows, self.hidden), "down": (self.hidden, self.inner)}
        if self.ffn.bias:
            shapes |= {"up_bias": (up_rows,), "down_bias": (self.hidden,)}
        return shapes


@dataclass(frozen=True)
class Manifest:
    """A model package in words and numbers.

    family: the model type of Hugging Face transformers; architecture: its class there. dtype: of the experts, and what
    the backbone is loaded in by default. hidden, vocabulary, layers: of the whole model. moe_layers: decoder layer ->
    count of its routed experts. topk: experts per token. files: path relative to the package, with `/` -> facts.
    tools: name -> version of what made the package. quantisation: which experts are bytes; None for none.
    """

    name: str
    family: str
    architecture: str
    dtype: str
    hidden: int
    vocabulary: int
    layers: int
    moe_layers: dict[int, int]
    topk: int
    experts: ExpertFacts
    has_tokenizer: bool
    source: str
    licence: str
    notice: str
    files: dict[str, FileFacts] = field(repr=False)
    tools: dict[str, str]
    schema: str = SCHEMA
    quantisation: Quantisation | None = None

    def __post_init__(self) -> None:
        want = schema_of(self.quantisation)
        if self.schema != want:
            raise ValueError(f"schema {self.schema}: a manifest with this quantisation is of {want}")

    @property
    def ffn(self) -> FfnSpec:
        """The formula of the experts."""
        return self.experts.ffn

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch knows it."""
        return DTYPES[self.dtype]

    @property
    def expert_count(self) -> int:
        """Expert ids are below this number; a layer may have fewer."""
        return max(self.moe_layers.values())

    @property
    def total_bytes(self) -> int:
        """Size of all files but the manifest."""
        return sum(facts.size for facts in self.files.values())

    def layers_of(self, expert: int) -> tuple[int, ...]:
        """The layers that have an expert of this id, ascending."""
        return tuple(layer for layer, count in sorted(self.moe_layers.items()) if expert < count)

    def to_bytes(self) -> bytes:
        """The manifest as it is written: JSON, the same bytes for the same content."""
        content = asdict(self)
        content["moe_layers"] = {str(layer): count for layer, count in sorted(self.moe_layers.items())}
        content["files"] = dict(sorted(content["files"].items()))
        if self.quantisation is None:
            del content["quantisation"]
        else:
            content["quantisation"] = self.quantisation.to_json()
        return (json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode("utf-8")


def schema_of(quantisation: Quantisation | None) -> str:
    """The version of a manifest that says this of its experts: the oldest that can."""
    if quantisation is None:
        return SCHEMA
    return QUANTISED_SCHEMA if quantisation.group_size is None else GROUPED_SCHEMA


def expert_file(expert: int) -> str:
    """Path within a package of an expert's tensors, over all layers."""
    return f"{EXPERTS_DIRECTORY}/expert-{expert:05d}.safetensors"


def expert_tensor(layer: int, part: str) -> str:
    """Name of a tensor in an expert's file; part: up, down, up_bias or down_bias."""
    return f"layers.{layer}.{part}"


def sha256_of_manifest(raw: bytes) -> str:
    """The identity of a package: the sha256 of its manifest's bytes, which hold the sha256 of every file."""
    return hashlib.sha256(raw).hexdigest()


def parse_manifest(raw: bytes, file: Path) -> Manifest:
    """Reads a manifest's bytes; `file` is for messages.

    Raises PackageVersionError for a schema that isn't understood, PackageError for anything else, naming the field.
    """
    try:
        content = Fields(parse_json(raw, MAX_MANIFEST_BYTES), "")
        schema = content.text("schema", maximum=100)
        if schema not in SCHEMAS:
            raise PackageVersionError(
                f"schema {schema!r} is not understood; this version reads {', '.join(SCHEMAS)}. "
                "Convert the model again, or use a version of moe that reads it",
                file=file,
            )
        return _manifest(content)
    except FieldError as error:
        raise PackageError(str(error), file=file) from error


def _manifest(content: Fields) -> Manifest:
    schema, moe_layers = content.text("schema"), _moe_layers(content)
    manifest = Manifest(
        schema=schema,
        quantisation=_quantisation(content, schema, moe_layers),
        name=content.text("name", pattern=NAME_PATTERN),
        family=content.text("family", pattern=r"[A-Za-z0-9_.-]{1,100}"),
        architecture=content.text("architecture", pattern=r"[A-Za-z0-9_]{1,200}"),
        dtype=content.choice("dtype", tuple(DTYPES)),
        hidden=content.count("hidden", 1, MAX_COUNT),
        vocabulary=content.count("vocabulary", 1, MAX_COUNT),
        layers=content.count("layers", 1, MAX_LAYERS),
        moe_layers=moe_layers,
        topk=content.count("topk", 1, MAX_EXPERTS),
        experts=_experts(content.group("experts")),
        has_tokenizer=content.flag("has_tokenizer"),
        source=content.text("source"),
        licence=content.text("licence"),
        notice=content.text("notice"),
        files=_files(content.group("files")),
        tools={name: str(version) for name, version in content.group("tools").items()},
    )
    content.done()
    _check_whole(manifest)
    return manifest


def _quantisation(content: Fields, schema: str, moe_layers: dict[int, int]) -> Quantisation | None:
    if schema == SCHEMA:
        return None
    return read_quantisation(content.group("quantisation"), moe_layers, grouped=schema == GROUPED_SCHEMA)


def _moe_layers(content: Fields) -> dict[int, int]:
    layers = content.group("moe_layers")
    found: dict[int, int] = {}
    for name, _ in layers.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 5 and name == str(int(name))):
            raise FieldError(f"moe_layers: {name[:40]!r} is no layer number")
        found[int(name)] = layers.count(name, 1, MAX_EXPERTS)
    return dict(sorted(found.items()))


def _experts(content: Fields) -> ExpertFacts:
    facts = ExpertFacts(
        hidden=content.count("hidden", 1, MAX_COUNT),
        inner=content.count("inner", 1, MAX_COUNT),
        ffn=_ffn(content.group("ffn")),
    )
    content.done()
    return facts


def _ffn(content: Fields) -> FfnSpec:
    values: dict[str, Any] = {
        "activation": content.text("activation", maximum=100),
        "gated": content.flag("gated"),
        "bias": content.flag("bias"),
        "limit": content.number_or_none("limit"),
        "alpha": content.number_or_none("alpha"),
    }
    content.done()
    try:
        return FfnSpec(**values)
    except ValueError as error:
        raise FieldError(f"experts.ffn: {error}") from error


def _files(content: Fields) -> dict[str, FileFacts]:
    files = {}
    for path, _ in content.items():
        relative_path("files", path)
        facts = content.group(path)
        files[path] = FileFacts(sha256=sha256_text(facts, "sha256"), size=facts.count("size", 0, 1 << 60))
        facts.done()
    return files


def _check_whole(manifest: Manifest) -> None:
    """What one field says of another."""
    if not manifest.moe_layers:
        raise FieldError("moe_layers: is empty; a package needs at least one layer of experts")
    if max(manifest.moe_layers) >= manifest.layers:
        raise FieldError(f"moe_layers: has layer {max(manifest.moe_layers)}, but layers is {manifest.layers}")
    if manifest.topk > min(manifest.moe_layers.values()):
        raise FieldError(f"topk: is {manifest.topk}, but a layer has {min(manifest.moe_layers.values())} experts")
    wanted = dict.fromkeys(expert_file(expert) for expert in range(manifest.expert_count))
    wanted |= dict.fromkeys([PROBES_NAME, f"{BACKBONE_DIRECTORY}/config.json"])
    missing = next((path for path in wanted if path not in manifest.files), None)
    if missing is not None:
        raise FieldError(f"files: {missing!r} is not listed")
    extra = next((path for path in manifest.files if path not in wanted and not _of_backbone(path)), None)
    if extra is not None:
        raise FieldError(f"files: {extra!r} has no place in a package")


def _of_backbone(path: str) -> bool:
    return path.startswith(f"{BACKBONE_DIRECTORY}/") and Path(path).suffix in BACKBONE_SUFFIXES


def read_probes(raw: bytes, file: Path, manifest: Manifest, length: int) -> Mapping[int, list[list[float]]]:
    """Reads probes.json: layer -> for each expert its sketch of `length` numbers. Raises PackageError."""
    try:
        content = Fields(parse_json(raw, 1 << 30), "")
        found = {
            layer: [_sketch(content, layer, value, length) for value in content.items_of(str(layer), count)]
            for layer, count in manifest.moe_layers.items()
        }
        content.done()
    except FieldError as error:
        raise PackageError(str(error), file=file) from error
    return found


def _sketch(content: Fields, layer: int, value: object, length: int) -> list[float]:
    numbers = [number for number in value if type(number) is float] if isinstance(value, list) else []
    if len(numbers) != length or not isinstance(value, list) or len(value) != length:
        raise FieldError(f"{layer}: a sketch must be a list of {length} numbers")
    return numbers
