"""A model package on disk, opened: its manifest, its backbone's directory, its experts' weights, its probes.

Opening checks what `verify` asks for and refuses anything that is not a regular file inside the package. Weights are
views of mapped files: pages are read when they are touched and shared between processes. Expert processes use this
module, so it does without transformers.
"""

import hashlib
import mmap
import stat
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import torch
from moe.kernels.ffn import ExpertWeights
from moe.kernels.group_ffn import Expert, QuantisedExpert
from moe.kernels.quantised import QuantisedWeight, scales_shape
from moe.models.errors import PackageError, PackageNotFoundError
from moe.models.manifest import (
    BACKBONE_DIRECTORY,
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    PROBES_NAME,
    FileFacts,
    Manifest,
    expert_file,
    expert_tensor,
    parse_manifest,
    read_probes,
    sha256_of_manifest,
)
from moe.models.probe import SKETCH_LENGTH, ProbeExpectation
from moe.models.safetensors_stream import DTYPE_NAMES, DTYPES, SafetensorsError, TensorEntry, TensorSpec, read_header
from torch import Tensor

PARTIAL_MARK = ".partial-"
"""Part of the name of a directory in which a package is being made; never opened as a package."""

Verify = Literal["sizes", "sha256", "none"]
HASH_BYTES = 1 << 20


class Package:
    """An opened package. Make one with `Package.open`."""

    def __init__(self, path: Path, manifest: Manifest, manifest_sha256: str) -> None:
        self.path = path
        self.manifest = manifest
        self.manifest_sha256 = manifest_sha256

    @classmethod
    def open(cls, path: Path, verify: Verify = "sizes") -> "Package":
        """Opens the package in a directory.

        verify: `sizes` checks that every listed file is there, regular and of its size; `sha256` reads them all
        as well; `none` reads the manifest only.
        Raises PackageNotFoundError, PackageVersionError or PackageError (with the file).
        """
        if verify not in get_args(Verify):
            raise ValueError(f"verify: got {verify!r}, want one of {', '.join(get_args(Verify))}")
        root = Path(path).absolute()
        raw = _read_manifest(root)
        package = cls(root, parse_manifest(raw, root / MANIFEST_NAME), sha256_of_manifest(raw))
        if verify != "none":
            for name in package.manifest.files:
                package.check_file(name, sha256=verify == "sha256")
        return package

    @property
    def backbone_dir(self) -> Path:
        """Directory with configuration, tokenizer and all tensors but the experts', as Hugging Face lays it out."""
        return self.path / BACKBONE_DIRECTORY

    def file(self, name: str) -> Path:
        """Full path of a listed file. Raises PackageError when it is not listed."""
        self._facts(name)
        return self.path / name

    def check_file(self, name: str, *, sha256: bool = False) -> None:
        """Checks a listed file's kind and size, and its content when asked. Raises PackageError naming it."""
        facts, path = self._facts(name), self.path / name
        size = regular_size(self.path, path)
        if size != facts.size:
            raise PackageError(f"holds {size} bytes; the manifest says {facts.size}", file=path)
        if sha256 and (got := sha256_of_file(path)) != facts.sha256:
            raise PackageError(f"has sha256 {got}; the manifest says {facts.sha256}", file=path)

    def expert_weights(self, expert: int) -> dict[int, Expert]:
        """The weights of an expert by layer, as read-only views of its mapped file: quantised, or in its dtype.

        Raises PackageError naming file and tensor when the file is not what the manifest says.
        """
        layers = self.manifest.layers_of(expert)
        if expert < 0 or not layers:
            raise PackageError(f"there is no expert {expert}; ids go up to {self.manifest.expert_count - 1}")
        self.check_file(expert_file(expert))
        tensors = self._map(expert)
        return {layer: self._weights(tensors, layer, expert) for layer in layers}

    def _weights(self, tensors: Mapping[str, Tensor], layer: int, expert: int) -> Expert:
        quantisation = self.manifest.quantisation
        if quantisation is None or not quantisation.quantised(layer, expert):
            parts = self.manifest.experts.shapes()
            return ExpertWeights(**{part: tensors[expert_tensor(layer, part)] for part in parts})
        up, down = (_quantised(tensors, expert_tensor(layer, part), quantisation.group_size) for part in MATRICES)
        biases = (tensors.get(expert_tensor(layer, f"{part}_bias")) for part in MATRICES)
        return QuantisedExpert(up, down, self.manifest.torch_dtype, *biases)

    def expert_tensors(self, expert: int) -> dict[str, TensorSpec]:
        """Names, dtypes and shapes that an expert's file must hold, in order."""
        dtype = DTYPE_NAMES[self.manifest.torch_dtype]
        return expert_tensor_specs(self.manifest, expert, dtype)

    def probe(self, layer: int, expert: int) -> ProbeExpectation:
        """What the expert of a layer has to answer to the probe rows. Raises PackageError when there is none."""
        if not 0 <= expert < self.manifest.moe_layers.get(layer, 0):
            raise PackageError(f"there is no expert {expert} in layer {layer}")
        sketch = tuple(self._probes[layer][expert])
        return ProbeExpectation(layer, expert, self.manifest.experts.hidden, sketch)

    @cached_property
    def _probes(self) -> Mapping[int, list[list[float]]]:
        self.check_file(PROBES_NAME)
        path = self.file(PROBES_NAME)
        return read_probes(path.read_bytes(), path, self.manifest, SKETCH_LENGTH)

    def _facts(self, name: str) -> FileFacts:
        if name not in self.manifest.files:
            raise PackageError(f"the manifest lists no file {name!r}", file=self.path / MANIFEST_NAME)
        return self.manifest.files[name]

    def _map(self, expert: int) -> dict[str, Tensor]:
        path = self.file(expert_file(expert))
        entries = read_expert_header(path, self.expert_tensors(expert))
        with path.open("rb") as file:
            # Private and writable in theory: torch warns about read-only buffers, and copies nothing until a write.
            mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        view = memoryview(mapped)
        return {name: _view(view, entry) for name, entry in entries.items()}


def _quantised(tensors: Mapping[str, Tensor], name: str, group_size: int | None) -> QuantisedWeight:
    return QuantisedWeight(tensors[name], tensors[f"{name}_scale"], tensors[f"{name}_offset"], group_size)


def _view(view: memoryview, entry: TensorEntry) -> Tensor:
    data = view[entry.offset : entry.offset + entry.spec.nbytes]
    return torch.frombuffer(data, dtype=DTYPES[entry.spec.dtype]).view(entry.spec.shape)


MATRICES = ("up", "down")


def expert_tensor_specs(manifest: Manifest, expert: int, dtype: str) -> dict[str, TensorSpec]:
    """Names, dtypes and shapes of an expert's tensors over all its layers, in file order: layer by layer, or in a
    quantised package all scales and offsets first and all bytes last, as wider elements have to come first."""
    specs: dict[str, TensorSpec] = {}
    quantisation = manifest.quantisation
    for layer in manifest.layers_of(expert):
        quantised = quantisation is not None and quantisation.quantised(layer, expert)
        for part, shape in manifest.experts.shapes().items():
            bytes_here = quantised and part in MATRICES
            specs[expert_tensor(layer, part)] = TensorSpec("I8" if bytes_here else dtype, shape)
            if quantisation is not None and bytes_here:
                scales = TensorSpec("F32", scales_shape(shape, quantisation.group_size))
                specs |= {expert_tensor(layer, part + end): scales for end in ("_scale", "_offset")}
    if quantisation is None:
        return specs
    return dict(sorted(specs.items(), key=lambda item: -DTYPES[item[1].dtype].itemsize))


def read_expert_header(path: Path, wanted: Mapping[str, TensorSpec]) -> dict[str, TensorEntry]:
    """The entries of an expert's file, which must be the wanted ones. Raises PackageError naming file and tensor."""
    try:
        entries = read_header(path)
    except SafetensorsError as error:
        raise PackageError(str(error)) from error
    for name, spec in wanted.items():
        if name not in entries:
            raise PackageError(f"tensor {name!r} is missing", file=path)
        if entries[name].spec != spec:
            raise PackageError(f"tensor {name!r} is {entries[name].spec}; the manifest says {spec}", file=path)
    extra = next((name for name in entries if name not in wanted), None)
    if extra is not None:
        raise PackageError(f"tensor {extra!r} has no place in it", file=path)
    return entries


def regular_size(root: Path, path: Path) -> int:
    """Size of a regular file below `root`. Raises PackageError for anything else: missing, a link, a device, ..."""
    for directory in path.relative_to(root).parents:
        if (root / directory).is_symlink() and directory != Path():
            raise PackageError("lies behind a symbolic link, which a package must not hold", file=path)
    try:
        facts = path.lstat()
    except FileNotFoundError as error:
        raise PackageError("is missing", file=path) from error
    except OSError as error:
        raise PackageError(f"can't be read: {error.strerror}", file=path) from error
    if not stat.S_ISREG(facts.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(facts.st_mode) else "no regular file"
        raise PackageError(f"is {kind}, which a package must not hold", file=path)
    return facts.st_size


def sha256_of_file(path: Path) -> str:
    """The sha256 of a file's content in hexadecimal. Raises PackageError when it can't be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(HASH_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise PackageError(f"can't be read: {error.strerror}", file=path) from error
    return digest.hexdigest()


def is_package(path: Path) -> bool:
    """Whether a directory looks like a package: it has a manifest and is not one being made."""
    return PARTIAL_MARK not in path.name and (path / MANIFEST_NAME).is_file()


def _read_manifest(root: Path) -> bytes:
    if not root.is_dir():
        raise PackageNotFoundError(f"there is no directory {root}")
    if PARTIAL_MARK in root.name:
        raise PackageNotFoundError(f"{root} is the leftover of an interrupted conversion, not a package; remove it")
    path = root / MANIFEST_NAME
    if not path.exists() and not path.is_symlink():
        raise PackageNotFoundError(f"{root} is no model package: it has no {MANIFEST_NAME}")
    if regular_size(root, path) > MAX_MANIFEST_BYTES:
        raise PackageError(f"is larger than {MAX_MANIFEST_BYTES} bytes", file=path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise PackageError(f"can't be read: {error.strerror}", file=path) from error
