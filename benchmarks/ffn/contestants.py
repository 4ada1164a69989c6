"""What is measured in this process: our back ends, and torch's and transformers' over the same weights."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from moe.kernels.ffn import ExpertWeights, FfnSpec
from moe.kernels.group_ffn import W8A8, PackedGroup, QuantisedExpert
from moe.kernels.group_ffn.weights import Expert
from moe.kernels.linear import PackedLinear, onednn_backend
from moe.kernels.permute import group_slots
from moe.kernels.quantised import quantise
from torch import Tensor
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from benchmarks.ffn.shapes import Routing, Shape, weights
from benchmarks.ffn.timing import Run

Layer = Callable[[Tensor], Tensor]
SPEC = FfnSpec("silu", gated=True, bias=False)


@dataclass(frozen=True)
class Contestant:
    """make: from all experts' up [experts, 2 * inner, hidden] and down [experts, hidden, inner], bfloat16.
    inputs_per_scale: inputs of a channel that share a scale and an offset, four bytes each; None: there are none."""

    bytes_per_weight: int
    make: Callable[[Tensor, Tensor], Run]
    inputs_per_scale: int | None = None

    def expert_bytes(self, shape: Shape) -> int:
        """What is read of an expert that a token goes to: its weights and their scales."""
        weights = shape.expert_weights * self.bytes_per_weight
        if self.inputs_per_scale is None:
            return weights
        up, down = (-(-inputs // self.inputs_per_scale) for inputs in (shape.hidden, shape.inner))
        return weights + 8 * (2 * shape.inner * up + shape.hidden * down)


def build(shape: Shape, names: Sequence[str]) -> dict[str, Run]:
    """The contestants of this process, over the same random weights."""
    up, down = weights(shape)
    return {name: CONTESTANTS[name].make(up, down) for name in names}


def _group(experts: dict[int, Expert], backend: str) -> Run:
    group = PackedGroup(experts, SPEC, backend=backend)

    def run(routing: Routing) -> Tensor:
        rows, chosen, shares = routing
        slot_rows = torch.arange(len(rows), dtype=torch.int32).repeat_interleave(chosen.shape[1])
        return group(rows, slot_rows, chosen.flatten(), shares.flatten(), torch.bfloat16)

    return run


def _plain(backend: str) -> Callable[[Tensor, Tensor], Run]:
    def make(up: Tensor, down: Tensor) -> Run:
        return _group({expert: ExpertWeights(up[expert], down[expert]) for expert in range(len(up))}, backend)

    return make


def _int8(backend: str, group_size: int | None = None) -> Callable[[Tensor, Tensor], Run]:
    def make(up: Tensor, down: Tensor) -> Run:
        pairs = [tuple(quantise(matrix[expert], group_size) for matrix in (up, down)) for expert in range(len(up))]
        return _group({e: QuantisedExpert(*pair, torch.bfloat16) for e, pair in enumerate(pairs)}, backend)

    return make


def _grouped_mm(up: Tensor, down: Tensor) -> Run:
    config = MixtralConfig(hidden_size=down.shape[1], intermediate_size=down.shape[2], num_local_experts=len(up))
    with torch.device("meta"):
        module = MixtralExperts(config)
    module.gate_up_proj, module.down_proj = (torch.nn.Parameter(each, requires_grad=False) for each in (up, down))
    module.config._experts_implementation = "grouped_mm"
    return torch.inference_mode()(lambda routing: module(*routing))


def _onednn(up: Tensor, down: Tensor) -> Run:
    """Prepacked, an expert after the other; in float32 where oneDNN has no bfloat16."""
    dtype = torch.float32 if onednn_backend.unsupported(torch.bfloat16) else torch.bfloat16
    layers = [[PackedLinear(each.to(dtype), backend="onednn") for each in pair] for pair in zip(up, down, strict=True)]
    return _one_by_one(layers, dtype)


def _fbgemm(up: Tensor, down: Tensor) -> Run:
    """torch's dynamic int8 (fbgemm): weights in bytes per channel, rows rounded per call; an expert after the other."""
    torch.backends.quantized.engine = "fbgemm"
    return _one_by_one([[_dynamic(each) for each in pair] for pair in zip(up, down, strict=True)], torch.float32)


def _dynamic(weight: Tensor) -> Layer:
    wide = weight.float()
    scales, zeros = wide.abs().amax(dim=1) / 127, torch.zeros(len(wide), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and still what a peer would use
        packed = torch.ops.quantized.linear_prepack(
            torch.quantize_per_channel(wide, scales, zeros, 0, torch.qint8), None
        )
    return lambda rows: torch.ops.quantized.linear_dynamic(rows, packed)


def _one_by_one(layers: Sequence[Sequence[Layer]], dtype: torch.dtype) -> Run:
    """layers: of each expert up and down, on rows of `dtype`."""

    def run(routing: Routing) -> Tensor:
        rows, chosen, shares = routing
        total = torch.zeros(rows.shape, dtype=torch.float32)
        for expert, places in group_slots(chosen.flatten()):
            index = places // chosen.shape[1]
            gate, linear = layers[expert][0](rows[index].to(dtype)).chunk(2, dim=-1)
            out = layers[expert][1](F.silu(gate) * linear) * shares.flatten()[places, None]
            total.index_add_(0, index, out.float())
        return total.bfloat16()

    return torch.inference_mode()(run)


_ONEDNN = "onednn fp32 packed" if onednn_backend.unsupported(torch.bfloat16) else "onednn bf16 packed"
_WHOLE_CHANNEL = 1 << 30
CONTESTANTS: dict[str, Contestant] = {
    "native bf16": Contestant(2, _plain("native")),
    "native int8": Contestant(1, _int8("native"), _WHOLE_CHANNEL),
    "native int8, groups of 64": Contestant(1, _int8("native", 64), 64),
    "native w8a8": Contestant(1, _int8(W8A8), _WHOLE_CHANNEL),
    "torch F.linear bf16": Contestant(2, _plain("torch")),
    "transformers grouped_mm": Contestant(2, _grouped_mm),
    _ONEDNN: Contestant(4 if "fp32" in _ONEDNN else 2, _onednn),
    "fbgemm dynamic int8": Contestant(1, _fbgemm),
}
