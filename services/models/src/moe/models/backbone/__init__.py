"""The backbone: a model without its routed experts, stepping over packed tokens of many sequences."""

from moe.models.backbone.cost import deterministic_cost
from moe.models.backbone.model import TransformersBackbone, load_backbone
from moe.models.seams.errors import BackboneError, BackboneWeightsError, StepError, UnsupportedBackboneError

__all__ = [
    "BackboneError",
    "BackboneWeightsError",
    "StepError",
    "TransformersBackbone",
    "UnsupportedBackboneError",
    "deterministic_cost",
    "load_backbone",
]
