"""The weights of one expert group, mapped from the package's files and checked before anything is computed with them.

Only the group's own files are read: a process needs neither the backbone nor other experts' files to be there.
Content is checked against the manifest (sha256), numbers against NaN and infinity; whether they are the right ones is
the probe's.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from moe.kernels.ffn import ExpertWeights, FfnSpec
from moe.kernels.group_ffn import Expert, QuantisedExpert
from moe.kernels.quantised import QuantisedWeight
from moe.models.errors import PackageError
from moe.models.manifest import DTYPES, PROBES_NAME, expert_file, expert_tensor
from moe.models.package import Package
from moe.runtime.errors import StartupError

AUTO_DTYPE = "auto"
Progress = Callable[[int, int], None]
PARTS = ("up", "down", "up_bias", "down_bias")


@dataclass(frozen=True, eq=False)
class GroupWeights:
    """A group's weights as they lie in its files.

    layers: layer -> expert id -> its weights, in `dtype`; hidden: columns of a row.
    """

    experts: tuple[int, ...]
    spec: FfnSpec
    dtype: torch.dtype
    hidden: int
    layers: Mapping[int, Mapping[int, Expert]]

    def experts_by_layer(self) -> dict[int, frozenset[int]]:
        """The ids that are held in each layer."""
        return {layer: frozenset(held) for layer, held in self.layers.items()}


def open_package(path: Path) -> Package:
    """Opens a package by its manifest alone. Raises StartupError naming the file."""
    try:
        return Package.open(path, verify="none")
    except PackageError as error:
        raise StartupError(str(error)) from error


def held_layers(package: Package, experts: Sequence[int]) -> dict[int, frozenset[int]]:
    """Layer -> the ids of the group that it has, by the manifest alone.

    Raises StartupError for ids that are not there or given twice.
    """
    layers: dict[int, frozenset[int]] = {}
    for expert in distinct(package, experts):
        for layer in package.manifest.layers_of(expert):
            layers[layer] = layers.get(layer, frozenset()) | {expert}
    return layers


def load_group(
    package: Package, experts: Sequence[int], dtype: str = AUTO_DTYPE, progress: Progress | None = None
) -> GroupWeights:
    """Checks and maps the weights of a group's experts; progress(done, all) is called after each.

    dtype: `auto` computes in the package's own, on views of the mapped files; another name makes converted copies.
    Raises StartupError naming the file (and the tensor) when anything is not what the manifest says, and for expert ids
    that are not there or given twice.
    """
    wanted, ids = wanted_dtype(package, dtype), distinct(package, experts)
    layers: dict[int, dict[int, Expert]] = {}
    try:
        package.check_file(PROBES_NAME, sha256=True)
        for done, expert in enumerate(ids, start=1):
            for layer, weights in _expert(package, expert, wanted).items():
                layers.setdefault(layer, {})[expert] = weights
            if progress:
                progress(done, len(ids))
    except PackageError as error:
        raise StartupError(str(error)) from error
    return GroupWeights(ids, package.manifest.ffn, wanted, package.manifest.experts.hidden, layers)


def _expert(package: Package, expert: int, dtype: torch.dtype) -> dict[int, Expert]:
    held = package.expert_weights(expert)
    name = expert_file(expert)
    package.check_file(name, sha256=True)
    for layer, weights in held.items():
        check_finite(package.file(name), layer, weights)
    return {layer: _converted(weights, dtype) for layer, weights in held.items()}


def check_finite(file: Path, layer: int, weights: Expert) -> None:
    """Raises PackageError naming the first tensor of the file that holds a NaN or an infinite value."""
    for part, tensor in _tensors(weights):
        # One pass where looking at each element takes four; no number can make a sum finite that has met another one.
        if math.isfinite(tensor.sum()):
            continue
        bad = tensor.numel() - int(torch.isfinite(tensor).sum())
        if bad:
            name = expert_tensor(layer, part)
            raise PackageError(
                f"tensor {name!r} holds {bad} values that are NaN or infinite; convert the model again", file=file
            )


def _converted(weights: Expert, dtype: torch.dtype) -> Expert:
    """A quantised expert's bytes stay; what it computes in and its biases change."""
    up_bias, down_bias = (None if bias is None else bias.to(dtype) for bias in (weights.up_bias, weights.down_bias))
    if isinstance(weights, QuantisedExpert):
        return replace(weights, dtype=dtype, up_bias=up_bias, down_bias=down_bias)
    return ExpertWeights(weights.up.to(dtype), weights.down.to(dtype), up_bias, down_bias)


def _tensors(weights: Expert) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of floats by its name in the file."""
    for part in PARTS:
        held = getattr(weights, part)
        if isinstance(held, QuantisedWeight):
            yield from ((f"{part}_scale", held.scale), (f"{part}_offset", held.offset))
        elif held is not None:
            yield part, held


def distinct(package: Package, experts: Sequence[int]) -> tuple[int, ...]:
    """The ids, ascending. Raises StartupError for none at all, one given twice and one that no layer has."""
    if not experts:
        raise StartupError("experts: none given; name at least one id, such as --experts 0,3")
    for expert, count in Counter(experts).items():
        if count > 1:
            raise StartupError(f"experts: {expert} is given {count} times; name each id once")
        if not 0 <= expert < package.manifest.expert_count:
            raise StartupError(f"experts: there is no expert {expert}; ids go from 0 to {_last(package)}")
    return tuple(sorted(experts))


def _last(package: Package) -> int:
    return package.manifest.expert_count - 1


def wanted_dtype(package: Package, dtype: str) -> torch.dtype:
    """The dtype to compute in. Raises StartupError for an unknown name."""
    if dtype == AUTO_DTYPE:
        return package.manifest.torch_dtype
    if dtype not in DTYPES:
        raise StartupError(f"dtype: got {dtype!r}, want {AUTO_DTYPE} or one of {', '.join(DTYPES)}")
    return DTYPES[dtype]
