"""Fits a linear router to what the experts would contribute: ridge regression, in closed form.

A softmax router only needs to rank the experts; the regression's target is each expert's share of the layer's output,
measured by norm, so that the largest contributors are kept. A small multiple of the identity keeps the solution tame.
"""

import torch
from moe.models.dense.layout import FeedForward, owned_by
from torch import Tensor
from torch.nn import functional as F

RIDGE = 1e-2  # of the mean of the Gram matrix's diagonal


def expert_norms(activations: Tensor, ffn: FeedForward, labels: Tensor, experts: int) -> Tensor:
    """[tokens, experts]: norm of each expert's output, from activations [tokens, neurons]."""
    norms = []
    for expert in range(experts):
        owned = owned_by(ffn, labels, expert)
        norms.append(F.linear(activations[:, labels == expert], owned.down).norm(dim=1))
    return torch.stack(norms, 1)


def fit_router(inputs: Tensor, norms: Tensor) -> Tensor:
    """Router [experts, hidden] fp32 from inputs [tokens, hidden] and the experts' norms [tokens, experts]."""
    wide, experts = inputs.double(), norms.shape[1]
    targets = norms.double() / norms.double().sum(1, keepdim=True).clamp_min(1e-12) * experts
    gram = wide.T @ wide
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    solution: Tensor = torch.linalg.solve(gram, wide.T @ targets)
    return solution.T.float().contiguous()
