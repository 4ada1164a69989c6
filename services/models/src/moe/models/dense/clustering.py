"""Groups an FFN's neurons into experts: those that act together go together, every expert of the same size.

The most active neurons go to the shared expert; the rest are clustered by co-activation with a balanced k-means (the
idea of MoEfication, Zhang et al. 2022, with activations instead of weights, and of LLaMA-MoE, Zhu et al. 2024, with
a shared expert). Pure and deterministic: random choices come from a generator with a fixed seed.
"""

import torch
from moe.models.dense.layout import SHARED
from torch import Tensor
from torch.nn import functional as F

SIGNATURE = 128  # numbers in a neuron's co-activation signature; a random projection keeps distances
ITERATIONS = 12


def label_neurons(contributions: Tensor, *, experts: int, shared_neurons: int) -> Tensor:
    """Labels [neurons] uint8 from contributions [tokens, neurons], the size of what each neuron adds for each token."""
    power = contributions.pow(2).mean(0)
    order = power.argsort(descending=True, stable=True)
    routed = order[shared_neurons:].sort().values
    labels = torch.full((contributions.shape[1],), SHARED, dtype=torch.uint8)
    labels[routed] = balanced_kmeans(signatures(contributions)[routed], experts).to(torch.uint8)
    return labels


def signatures(contributions: Tensor) -> Tensor:
    """[neurons, SIGNATURE], unit length: near for neurons whose contributions rise and fall on the same tokens."""
    tokens = contributions.shape[0]
    generator = torch.Generator().manual_seed(0)
    projection = torch.randn(tokens, SIGNATURE, generator=generator) / tokens**0.5
    scaled = contributions / (contributions.pow(2).mean(0).sqrt() + 1e-9)
    return F.normalize((scaled - scaled.mean(0)).T @ projection, dim=1)


def balanced_kmeans(points: Tensor, clusters: int) -> Tensor:
    """Labels int64 [points]; every cluster gets points / clusters members, which must be whole."""
    centres = spread_centres(points, clusters)
    best, best_cost = torch.empty(0), float("inf")
    for _ in range(ITERATIONS):
        distances = torch.cdist(points, centres).pow(2)
        labels = assign_balanced(distances)
        cost = float(distances.gather(1, labels[:, None]).sum())
        if cost >= best_cost - 1e-6:
            break
        best, best_cost = labels, cost
        centres = torch.stack([points[labels == cluster].mean(0) for cluster in range(clusters)])
    return best


def spread_centres(points: Tensor, clusters: int) -> Tensor:
    """First centres, far from each other (k-means++, Arthur and Vassilvitskii 2007)."""
    generator = torch.Generator().manual_seed(0)
    centres = points[torch.randint(len(points), (1,), generator=generator)]
    while len(centres) < clusters:
        nearest = torch.cdist(points, centres).min(1).values.pow(2) + 1e-12
        centres = torch.cat([centres, points[torch.multinomial(nearest, 1, generator=generator)]])
    return centres


def assign_balanced(distances: Tensor) -> Tensor:
    """Labels [points] from distances [points, clusters]: who would lose most by the second choice chooses first.

    Whenever a cluster fills up, the choices of those left are worked out again.
    """
    points, clusters = distances.shape
    room = points // clusters
    labels = torch.full((points,), -1)
    left, open_distances = [room] * clusters, distances.clone()
    while (waiting := (labels < 0).nonzero()[:, 0]).numel():
        nearest, choices = open_distances[waiting].topk(min(2, clusters), largest=False, dim=1)
        regret = (nearest[:, -1] - nearest[:, 0]).nan_to_num(posinf=0.0)  # infinite when a single cluster is open
        for place in regret.argsort(descending=True, stable=True).tolist():
            chosen = int(choices[place, 0])
            labels[waiting[place]] = chosen
            left[chosen] -= 1
            if left[chosen] == 0:
                open_distances[:, chosen] = float("inf")
                break
    return labels
