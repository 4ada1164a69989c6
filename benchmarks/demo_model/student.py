"""The student of the distillation: the dense model with split FFNs and low-rank corrections, as one trainable module.

Computing every neuron and scaling it by its expert's routing weight equals the Qwen2-MoE that the adapter makes, and
keeps the matrix products large. Trainable: the router, the shared expert's gate, the two norms' weights of every
layer, and factors A [out, rank] and B [rank, in] for each FFN matrix, W = W_dense + A B. Attention, embeddings and
head stay frozen.
"""

from collections.abc import Iterator
from typing import Any

import torch
from moe.models.dense.layout import SHARED
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

FFN_PARTS = ("gate", "up", "down")
RANK = 32  # of each FFN matrix's correction: 12 MB of bf16 factors for 30 layers of 576 x 1536
TOPK = 4  # routed experts a token: what is trained is what is served


class LowRankLinear(nn.Module):
    """y = x (W + A B)^T with W frozen; A starts at zero, so that the start equals the dense layer."""

    weight: Tensor

    def __init__(self, weight: Tensor, rank: int = RANK) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.register_buffer("weight", weight.detach(), persistent=False)
        self.A = nn.Parameter(torch.zeros(rows, rank))
        self.B = nn.Parameter(torch.randn(rank, columns) / columns**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        rows = x.reshape(-1, x.shape[-1])
        inner = F.linear(rows, self.B.to(x.dtype))
        product = torch.addmm(F.linear(rows, self.weight), inner, self.A.to(x.dtype).T)
        return product.view(*x.shape[:-1], -1)


class TunedNorm(nn.Module):
    """RMS norm whose weight is the dense one times (1 + tuning)."""

    weight: Tensor

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().float(), persistent=False)
        self.tuning = nn.Parameter(torch.zeros_like(self.weight))
        self.epsilon = epsilon

    def tuned_weight(self) -> Tensor:
        """[hidden], fp32."""
        return self.weight * (1 + self.tuning)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return (wide * scale).to(x.dtype) * self.tuned_weight().to(x.dtype)


class RoutedFeedForward(nn.Module):
    """Split FFN with all neurons computed: those of a chosen expert e weigh experts x softmax(router x)[e]."""

    owners: Tensor  # [experts + 1, neurons]: one where the expert, or last the shared one, owns the neuron

    def __init__(self, mlp: Any, labels: Tensor, router: Tensor) -> None:
        super().__init__()
        self.labels = labels
        self.experts = router.shape[0]
        self.gate, self.up, self.down = (LowRankLinear(getattr(mlp, f"{part}_proj").weight) for part in FFN_PARTS)
        self.router = nn.Parameter(router.float().clone())
        self.shared_gate = nn.Parameter(torch.zeros(router.shape[1]))
        owner = torch.where(labels == SHARED, self.experts, labels.long())
        self.register_buffer(
            "owners", F.one_hot(owner, self.experts + 1).T.to(self.gate.weight.dtype), persistent=False
        )

    def neuron_weights(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., neurons]: the weight of each neuron's owner, zero outside the top-k."""
        probabilities = self.experts * F.softmax(F.linear(x, self.router.to(x.dtype)).float(), -1)
        chosen = probabilities.topk(TOPK, -1).indices
        routed = torch.zeros_like(probabilities).scatter(-1, chosen, probabilities.gather(-1, chosen))
        shared = 2 * torch.sigmoid(F.linear(x, self.shared_gate.to(x.dtype)[None]).float())
        return torch.cat([routed, shared], -1).to(x.dtype) @ self.owners

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        product: Tensor = self.down(F.silu(self.gate(x)) * self.up(x) * self.neuron_weights(x))
        return product


def build_student(dense: PreTrainedModel, start: dict[str, Tensor]) -> None:
    """Turn a dense Llama into the student, in place, split as the labels and routers of a split or an adapter say."""
    dense.requires_grad_(False)
    for index, layer in enumerate(dense.model.layers):
        layer.mlp = RoutedFeedForward(layer.mlp, start[f"l{index}.labels"], start[f"l{index}.router"])
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm = getattr(layer, name)
            setattr(layer, name, TunedNorm(norm.weight, norm.variance_epsilon))


def low_rank_parts(layer: Any) -> Iterator[tuple[str, LowRankLinear]]:
    """The layer's factored matrices under their names in the adapter."""
    yield from ((part, getattr(layer.mlp, part)) for part in FFN_PARTS)


@torch.no_grad()
def adapter_tensors(student: PreTrainedModel) -> dict[str, Tensor]:
    """The adapter: labels as uint8, everything else rounded to bf16 (see moe.models.demo.adapter for the format)."""
    tensors: dict[str, Tensor] = {}
    for index, layer in enumerate(student.model.layers):
        tensors[f"l{index}.labels"] = layer.mlp.labels.to(torch.uint8)
        tensors[f"l{index}.router"] = layer.mlp.router
        tensors[f"l{index}.shared_gate"] = layer.mlp.shared_gate
        tensors[f"l{index}.input_norm"] = layer.input_layernorm.tuned_weight()
        tensors[f"l{index}.post_norm"] = layer.post_attention_layernorm.tuned_weight()
        for part, matrix in low_rank_parts(layer):
            tensors[f"l{index}.{part}.A"], tensors[f"l{index}.{part}.B"] = matrix.A, matrix.B
    return {
        name: (value if value.dtype == torch.uint8 else value.detach().bfloat16()).contiguous()
        for name, value in tensors.items()
    }


@torch.no_grad()
def load_adapter(student: PreTrainedModel, tensors: dict[str, Tensor]) -> None:
    """Continue from an adapter of the same or a smaller rank: the further factors start with A = 0."""
    for index, layer in enumerate(student.model.layers):
        for part, matrix in low_rank_parts(layer):
            if f"l{index}.{part}.A" in tensors:
                rank = tensors[f"l{index}.{part}.A"].shape[1]
                matrix.A[:, :rank] = tensors[f"l{index}.{part}.A"].float()
                matrix.B[:rank] = tensors[f"l{index}.{part}.B"].float()
        if f"l{index}.shared_gate" in tensors:
            layer.mlp.shared_gate.copy_(tensors[f"l{index}.shared_gate"])
        for key, norm in (("input_norm", layer.input_layernorm), ("post_norm", layer.post_attention_layernorm)):
            if f"l{index}.{key}" in tensors:
                norm.tuning.copy_(tensors[f"l{index}.{key}"].float() / norm.weight - 1)
