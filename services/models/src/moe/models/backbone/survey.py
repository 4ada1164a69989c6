"""Finds out, by one trial token, what each layer caches and which tokens it may look at.

The library decides both deep inside each family: masks are built from the configuration by rules of the family's own
(some pass a window to attention and never apply it, others apply one they don't pass). So the trial asks the
library for its mask function and compares it with the kinds that packed attention knows; anything else is refused.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from moe.models.backbone.geometry import AttentionLayer, Geometry, RecurrentLayer, Visibility
from moe.models.backbone.recurrent import find_recurrent
from moe.models.seams.errors import UnsupportedBackboneError
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

SURVEY_ATTENTION = "moe_survey"
"""Name under which the library finds the trial's attention and mask functions."""

KNOWN_ARGUMENTS = frozenset(
    {"dropout", "scaling", "sliding_window", "s_aux", "is_causal", "position_ids", "use_cache", "output_router_logits"}
)
"""Arguments of attention that packed attention honours or may ignore; others with a value are refused."""

MaskFunction = Callable[[int, int, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class MaskRule:
    """What the library hands to attention as its mask during the trial: the rule instead of a tensor."""

    function: MaskFunction
    local_size: int | None


@dataclass
class Survey:
    """What the trial saw. Stands in for the model's cache, too."""

    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    rules: dict[int, MaskRule] = field(default_factory=dict)
    query_heads: dict[int, int] = field(default_factory=dict)
    convolutions: dict[int, Tensor] = field(default_factory=dict)
    kernels: dict[int, int] = field(default_factory=dict)
    states: dict[int, Tensor] = field(default_factory=dict)

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, kwargs: dict[str, Any], **__: object
    ) -> tuple[Tensor, Tensor]:
        """The attention modules store their keys and values [1, heads, 1, size]."""
        self.keys[layer_idx], self.values[layer_idx] = keys, values
        kwargs["survey"] = self
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Nothing is cached."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """The trial starts at position 0."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Length of the keys and position of the first."""
        return query_length, 0

    def is_recording_past(self, *_: object) -> bool:
        """No intermediate states are kept."""
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """There is none yet."""

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """There is none yet."""

    def update_conv_state(
        self, inputs: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_: object
    ) -> Tensor:
        """A linear-attention module stores its convolution's inputs [1, channels, 1]."""
        self.convolutions[layer_idx] = inputs
        self.kernels[layer_idx] = conv_kernel_size or 0
        return inputs

    def update_recurrent_state(self, states: Tensor, layer_idx: int, state_idx: int = 0, **_: object) -> Tensor:
        """A linear-attention module stores its state [1, heads, key size, value size]."""
        self.states[layer_idx] = states
        return states


def _survey_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    survey: Survey | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    layer = int(module.layer_idx)
    strange = sorted(name for name, given in kwargs.items() if given is not None and name not in KNOWN_ARGUMENTS)
    if strange or kwargs.get("is_causal") is False or survey is None:
        reason = f"arguments {', '.join(strange)}" if strange else "attention that isn't causal or keeps no cache"
        raise UnsupportedBackboneError(f"layer {layer}: {type(module).__name__} asks for {reason}")
    if not isinstance(attention_mask, MaskRule):
        raise UnsupportedBackboneError(f"layer {layer}: {type(module).__name__} masks by a rule that can't be read")
    survey.rules[layer], survey.query_heads[layer] = attention_mask, query.shape[1]
    return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1]), None


def _survey_mask(*_: object, mask_function: MaskFunction, local_size: int | None = None, **__: object) -> MaskRule:
    return MaskRule(mask_function, local_size)


AttentionInterface.register(SURVEY_ATTENTION, _survey_attention)
AttentionMaskInterface.register(SURVEY_ATTENTION, _survey_mask)


def survey_layers(model: Any, layers: int, max_context: int) -> Geometry:
    """Runs the trial token; the model's experts must be connected to something that answers.

    Raises UnsupportedBackboneError when a layer can't be served.
    """
    model.set_attn_implementation(SURVEY_ATTENTION)
    seen = Survey()
    token = torch.zeros(1, 1, dtype=torch.int64)
    try:
        with torch.inference_mode():
            model(input_ids=token, position_ids=token, cache=seen, use_cache=False, logits_to_keep=1)
    except UnsupportedBackboneError:
        raise
    except Exception as error:
        raise UnsupportedBackboneError(f"a trial token failed: {type(error).__name__}: {error}") from error
    geometry = Geometry(_attention(model, seen, max_context), _recurrent(model, seen))
    without = sorted(set(range(layers)) - set(geometry.attention) - set(geometry.recurrent))
    if without:
        raise UnsupportedBackboneError(f"layers {without} have neither attention nor linear attention that is known")
    return geometry


def find_latent(model: nn.Module) -> dict[int, Any]:
    """Modules of multi-head latent attention by layer."""
    modules: Iterable[Any] = model.modules()
    return {int(module.layer_idx): module for module in modules if hasattr(module, "expand_kv")}


def _attention(model: nn.Module, seen: Survey, max_context: int) -> dict[int, AttentionLayer]:
    latent = find_latent(model)
    visible: dict[tuple[int, int | None], Visibility] = {}
    found = {}
    for layer, rule in seen.rules.items():
        key = (id(rule.function), rule.local_size)
        if key not in visible:
            visible[key] = read_rule(rule, max_context, layer)
        heads, key_size = seen.keys[layer].shape[1], seen.keys[layer].shape[3]
        value_size = seen.values[layer].shape[3]
        if layer in latent:
            # The module stores (latent, rotary); the cache joins them and mixes latents.
            key_size, value_size = key_size + value_size, key_size
        dtype = seen.keys[layer].dtype
        groups = seen.query_heads[layer] // heads
        found[layer] = AttentionLayer(heads, key_size, value_size, dtype, visible[key], layer in latent, groups)
    return found


def _recurrent(model: nn.Module, seen: Survey) -> dict[int, RecurrentLayer]:
    known = find_recurrent(model)
    found = {}
    for layer, state in seen.states.items():
        if layer not in known:
            kind = _class_with_index(model, layer)
            raise UnsupportedBackboneError(f"layer {layer}: {kind} keeps a recurrent state of a kind that isn't known")
        convolution = seen.convolutions[layer]
        shape = (convolution.shape[1], seen.kernels[layer])
        found[layer] = RecurrentLayer(shape, convolution.dtype, tuple(state.shape[1:]), state.dtype)
    return found


def _class_with_index(model: nn.Module, layer: int) -> str:
    modules: Iterable[Any] = model.modules()
    return next((type(one).__name__ for one in modules if getattr(one, "layer_idx", None) == layer), "a module")


def read_rule(rule: MaskRule, max_context: int, layer: int) -> Visibility:
    """The kind of visibility whose first and last keys equal the rule's at telling positions.

    Raises UnsupportedBackboneError when none does.
    """
    size = rule.local_size or 1
    marks = {0, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1, 3 * size, max_context - 1}
    positions = sorted(mark for mark in marks if mark < max_context)
    kinds = [Visibility()]
    if rule.local_size is not None:
        kinds += [Visibility("window", size), Visibility("chunk", size)]
    for kind in kinds:
        if all(_agrees(rule.function, kind, position, max_context) for position in positions):
            return kind
    raise UnsupportedBackboneError(f"layer {layer}: attention is masked by a rule that isn't known (size {size})")


def _agrees(function: MaskFunction, kind: Visibility, position: int, max_context: int) -> bool:
    keys = torch.arange(min(position + 2, max_context))
    visible = function(0, 0, torch.tensor(position), keys)
    wanted = (keys >= kind.first(position)) & (keys <= position)
    return bool(torch.equal(visible.expand_as(keys).bool(), wanted))
