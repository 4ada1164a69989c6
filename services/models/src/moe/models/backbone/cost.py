"""What deterministic mode costs: the same steps with and without fixed shapes, timed on the model that is served."""

import time
from collections.abc import Mapping
from statistics import median

import torch
from moe.models.backbone.model import TransformersBackbone
from moe.models.contract import PackedBatch, Segment
from torch import Tensor

ROWS = (1, 64)
"""One row is a decode step of one request, 64 a chunk of a prompt."""

_ROUNDS = 5


def deterministic_cost(backbone: TransformersBackbone) -> Mapping[int, float]:
    """Rows of a step -> how many times as long it takes in deterministic mode, the experts left out.

    Median of 5 rounds, each with and without. A layer with linear attention goes token by token in both, so for such
    families the true figure for 64 rows is higher. The cache is reallocated: call it before `allocate`.
    """
    rows = tuple(min(count, backbone.info.max_context) for count in ROWS)
    backbone.allocate(1, max(rows))
    return {count: _ratio(backbone, count) for count in rows}


def _ratio(backbone: TransformersBackbone, rows: int) -> float:
    ratios = []
    for _ in range(_ROUNDS):
        fixed = _time(backbone, rows)
        with backbone.without_fixed_shapes():
            ratios.append(fixed / _time(backbone, rows))
    return median(ratios[1:])


def _time(backbone: TransformersBackbone, rows: int) -> float:
    """Seconds of a step that begins a sequence."""
    batch = PackedBatch([Segment(0, 0, rows)], torch.zeros(rows, dtype=torch.int64), torch.tensor([rows - 1]))
    begin = time.perf_counter()
    backbone.step(batch, _no_experts)
    taken = time.perf_counter() - begin
    backbone.release(0)
    return taken


def _no_experts(layer: int, hidden: Tensor, index: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
    del layer, index, weights, rows
    return torch.zeros_like(hidden)
