"""Packs a backbone's linear layers: their products run in moe.kernels.linear, their own weights are given up.

Layers of the class nn.Linear get a packed forward. A gate, whose class multiplies by its weight in a forward of its
own, gets a weight that computes the product packed when it is handed to F.linear. A weight that is read elsewhere too
(a tied embedding looks its rows up) stays resident beside its packed copy; the report says how much that is.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from moe.kernels.linear import AUTO, PackedLinear, backends
from moe.kernels.registry import UnavailableBackendError
from moe.models.backbone.joined import JoinedLinear, joined_weights, siblings
from moe.models.seams.errors import UnsupportedBackboneError
from torch import Tensor, nn

logger = logging.getLogger(__name__)

LinearKernel = Literal["auto", "torch", "native"]
"""auto: measured at load, but torch for float32, whose products it computes at memory speed and with the library's
own bits; in deterministic mode the one that is batch-invariant, where it can run."""

NATIVE = "native"
TORCH = "torch"


@dataclass
class LinearReport:
    """What the layers run. layers: kernel -> how many. packed_bytes: resident in packed form; of them twice_bytes are
    of weights that stay in their own form, too. invariant: whether every product's row depends on the row alone. why:
    a word on the choice where there is one. packed: layer (of siblings the first) -> its product."""

    layers: Counter[str] = field(default_factory=Counter)
    packed_bytes: int = 0
    twice_bytes: int = 0
    why: str = ""
    packed: dict[nn.Module, PackedLinear] = field(default_factory=dict)

    @property
    def invariant(self) -> bool:
        """Whether no layer is left to a kernel that looks at the number of rows."""
        return bool(self.layers) and set(self.layers) <= backends.batch_invariant

    def words(self) -> str:
        """For people: `native (211 layers, 257.1 MiB packed)`."""
        kinds = ", ".join(f"{kernel} ({count} layers)" for kernel, count in self.layers.most_common())
        packed = f", {self.packed_bytes / 2**20:.1f} MiB packed" if self.packed_bytes else ""
        twice = f", {self.twice_bytes / 2**20:.1f} MiB of them beside a tied table" if self.twice_bytes else ""
        return kinds + packed + twice + (f"; {self.why}" if self.why else "")


class PackedWeight(Tensor):
    """A weight whose product is packed: F.linear by it runs `layer`, everything else sees the plain tensor."""

    layer: PackedLinear

    @staticmethod
    def of(weight: Tensor, layer: PackedLinear) -> "PackedWeight":
        """The weight [out, in] with its packed layer."""
        made = weight.detach().as_subclass(PackedWeight)
        made.layer = layer
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Called by torch for every function that gets such a weight."""
        if func is F.linear and not kwargs and isinstance(args[1], cls) and not isinstance(args[0], cls):
            product = args[1].layer(args[0])
            return product if len(args) < 3 or args[2] is None else product + args[2]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def pack_linears(
    model: nn.Module,
    gates: Collection[nn.Module],
    spared: Collection[nn.Module],
    *,
    kernel: LinearKernel,
    deterministic: bool,
) -> LinearReport:
    """Packs every linear layer and gate of a model that a packing kernel is taken for.

    gates: modules that multiply by their `weight`. spared: layers whose weight is used otherwise. deterministic: only
    batch-invariant kernels are taken. Raises UnsupportedBackboneError when the named kernel can't run here.
    """
    report = LinearReport()
    packer = _Packer(model, _wanted(kernel, deterministic, report), report)
    plain = [each for each in model.modules() if isinstance(each, nn.Linear) and each not in spared]
    plain = [each for each in plain if type(each).forward is nn.Linear.forward]
    for layers in siblings(model, set(plain)):
        packer.join(layers)
    for layer in plain:
        packer.pack(layer)
    for gate in gates:
        packer.pack_gate(gate)
    logger.info("linear layers: %s", report.words())
    return report


class _Packer:
    """Packs the layers of one model, each once, into what the report counts."""

    def __init__(self, model: nn.Module, wanted: str, report: LinearReport) -> None:
        self._wanted, self._report = wanted, report
        self._tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        self._done: set[nn.Module] = set()

    def join(self, layers: list[nn.Linear]) -> None:
        """Packs siblings as one, unless they are better left to torch."""
        if any(self._left(each.weight) or id(each.weight) in self._tables for each in layers):
            return
        packed = _packed(*joined_weights(layers), self._wanted)
        if packed.backend == TORCH:
            return
        self._count(packed, len(layers))
        self._report.packed[layers[0]] = packed
        joined = JoinedLinear(packed, [each.weight.shape[0] for each in layers])
        for place, each in enumerate(layers):
            self._replace(each, joined.forward_of(place))

    def pack(self, module: Any) -> None:
        """Packs one layer, if it has not been."""
        if module in self._done:
            return
        packed = None if self._left(module.weight) else _packed(module.weight.detach(), module.bias, self._wanted)
        self._count(packed)
        if packed is not None and packed.backend != TORCH:
            self._report.packed[module] = packed
            tied = id(module.weight) in self._tables
            self._report.twice_bytes += packed.bytes if tied else 0
            self._replace(module, packed.__call__)

    def pack_gate(self, module: Any) -> None:
        """Packs a gate, which keeps its small weight for whatever else it does with it."""
        if module in self._done:
            return
        packed = None if self._left(module.weight) else _packed(module.weight.detach(), None, self._wanted)
        self._count(packed)
        if packed is not None and packed.backend != TORCH:
            weight = module._parameters.pop("weight")
            module.weight = PackedWeight.of(weight, packed)

    def _left(self, weight: Tensor) -> bool:
        """Whether a weight is left to torch without measuring."""
        return self._wanted == TORCH or (self._wanted == AUTO and weight.dtype == torch.float32)

    def _count(self, packed: PackedLinear | None, layers: int = 1) -> None:
        kernel = TORCH if packed is None else packed.backend
        self._report.layers[kernel] += layers
        if packed is not None and kernel != TORCH:
            self._report.packed_bytes += packed.bytes

    def _replace(self, module: Any, forward: Callable[[Tensor], Tensor]) -> None:
        """Gives a layer its packed forward, and its own weight up unless a table needs it."""
        self._done.add(module)
        if id(module.weight) not in self._tables:
            module.weight = nn.Parameter(module.weight.new_empty(0), requires_grad=False)
        module.bias = None
        module.forward = forward


def _wanted(kernel: LinearKernel, deterministic: bool, report: LinearReport) -> str:
    if kernel != AUTO:
        return kernel
    if not deterministic:
        return AUTO
    why = backends.why_not(NATIVE)
    report.why = "deterministic" if why is None else f"deterministic, in tiles, as {NATIVE} can't run here: {why}"
    return NATIVE if why is None else TORCH


def _packed(weight: Tensor, bias: Tensor | None, backend: str) -> PackedLinear:
    try:
        return PackedLinear(weight, None if bias is None else bias.detach(), backend=backend)
    except UnavailableBackendError as error:
        raise UnsupportedBackboneError(f"linear kernel {backend} (--linear-kernel): {error}") from error
