"""What a checkpoint's tensors are in transformers' eyes: which fused expert parameter each belongs to, or the backbone.

It goes through the library's own conversion mapping, so that any naming that the library can load can be split; names
on disk are never parsed here. The functions used are internals of transformers 5.24 (core_model_loading.py,
conversion_mapping.py); tests/unit/models/test_families.py pins what is needed of them.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from moe.models.convert.memory import release_freed
from moe.models.convert.source import Checkpoint
from moe.models.errors import CheckpointError, UnsupportedModelError
from moe.models.manifest import DTYPES, MAX_EXPERTS, MAX_LAYERS
from moe.models.safetensors_stream import DTYPES as FORMAT_DTYPES
from moe.models.seams.experts_discovery import ExpertsModule, experts_per_token, find_experts
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

_CONFIG_COUNTS = ("num_hidden_layers", "num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class Source:
    """The checkpoint's tensors that make one parameter.

    XX
    """

    target: str
    converter: WeightConverter | None
    keys: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Blueprint:
    """How a checkpoint becomes a package.

    config: the whole configuration; text: its part for the language model; model: the model without any memory behind
    its parameters; dtype: of the package; topk: experts per token; experts: by layer; expert_sources: (layer, fused
    parameter's name) -> its source; backbone: names in the checkpoint, in order.
    """

    config: transformers.PreTrainedConfig
    text: transformers.PreTrainedConfig
    model: transformers.PreTrainedModel
    dtype: torch.dtype
    topk: int
    experts: dict[int, ExpertsModule]
    expert_sources: dict[tuple[int, str], Source]
    backbone: tuple[str, ...]

    def fused(self, checkpoint: Checkpoint, layer: int, parameter: str) -> Tensor:
        """Reads and joins one fused parameter [experts, ...], in the package's dtype.

        Raises CheckpointError when tensors are missing or don't fit.
        """
        source = self.expert_sources[layer, parameter]
        release_freed()
        tensor = _join(source, checkpoint, self)
        want = getattr(self.experts[layer].module, parameter).shape
        if tensor.shape != want:
            raise CheckpointError(
                f"parameter {source.target!r}: the checkpoint's {len(source.keys)} tensors make {list(tensor.shape)}; "
                f"the configuration asks for {list(want)}"
            )
        return tensor.to(self.dtype)


def draw_blueprint(checkpoint: Checkpoint) -> Blueprint:
    """Reads a checkpoint's configuration and names, and assigns every tensor.

    Raises UnsupportedModelError for models that can't be served, CheckpointError for missing or unknown tensors.
    """
    config = _load_config(checkpoint)
    declared = config.dtype or config.get_text_config().dtype  # building the model may fill it in
    model = _model_without_memory(config)
    experts = find_experts(model)
    if not experts:
        raise UnsupportedModelError(
            f"{checkpoint.directory} holds a dense model ({config.model_type}): it has no routed experts to split off; "
            "convert it with --upcycle or --split"
        )
    sources = _assign(model, checkpoint)
    expert_sources = _expert_sources(experts, sources)
    return Blueprint(
        config=config,
        text=model.config.get_text_config(),
        model=model,
        dtype=_dtype(declared, checkpoint, expert_sources),
        topk=experts_per_token(model, experts, model.config.get_text_config()),
        experts=experts,
        expert_sources=expert_sources,
        backbone=_backbone(model, experts, sources, checkpoint),
    )


def _load_config(checkpoint: Checkpoint) -> transformers.PreTrainedConfig:
    model_type = checkpoint.config.get("model_type")
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"{checkpoint.directory / 'config.json'}: model_type {str(model_type)[:80]!r} is not known to transformers "
            f"{transformers.__version__}; code that comes with a checkpoint is never run"
        )
    _check_counts(checkpoint)
    try:
        return transformers.AutoConfig.from_pretrained(
            checkpoint.directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        # The library validates with whatever its configuration classes raise; nothing here is a fault of ours.
        raise CheckpointError(f"{checkpoint.directory / 'config.json'}: {error}") from error


def _check_counts(checkpoint: Checkpoint) -> None:
    """Keeps absurd configurations from building modules for hours."""
    text = checkpoint.config.get("text_config")
    for where in (checkpoint.config, text if isinstance(text, dict) else {}):
        for name in _CONFIG_COUNTS:
            bound = MAX_LAYERS if name == "num_hidden_layers" else MAX_EXPERTS
            value = where.get(name)
            if value is not None and (type(value) is not int or not 0 <= value <= bound):
                raise CheckpointError(
                    f"{checkpoint.directory / 'config.json'}: {name} must be a whole number up to {bound}, "
                    f"is {str(value)[:40]}"
                )


def _model_without_memory(config: transformers.PreTrainedConfig) -> transformers.PreTrainedModel:
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModelError(
            f"model type {config.model_type!r} has no class for generating text alone in transformers "
            f"{transformers.__version__}, so it can't be served"
        )
    try:
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:
        # Which error a bad configuration ends in is up to each family's classes.
        raise UnsupportedModelError(f"no {config.model_type} model can be built of config.json: {error}") from error


def _assign(model: transformers.PreTrainedModel, checkpoint: Checkpoint) -> dict[str, Source]:
    """Target parameter -> its source, as transformers' convert_and_load_state_dict_in_model pairs them."""
    transforms = get_model_conversion_mapping(model)
    renamings = [item for item in transforms if isinstance(item, WeightRenaming)]
    converters = [item for item in transforms if isinstance(item, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    targets = model.state_dict()
    found: dict[str, tuple[WeightConverter | None, list[tuple[str, str]]]] = {}
    unexpected = []
    for name in sorted(checkpoint.tensors, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, targets)
        if target not in targets and name in targets:
            target, pattern = rename_source_key(name, [], [], model.base_model_prefix, targets)
        if target not in targets:
            unexpected.append((name, target))
            continue
        converter = None if pattern is None else by_pattern[pattern]
        found.setdefault(target, (converter, []))[1].append((name, pattern or name))
    _refuse_unexpected(model, unexpected)
    return {target: Source(target, converter, tuple(keys)) for target, (converter, keys) in found.items()}


def _refuse_unexpected(model: transformers.PreTrainedModel, names: list[tuple[str, str]]) -> None:
    patterns = [*(model._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq", r"(^|\.)position_ids$"]
    ignored = re.compile("|".join(f"({pattern})" for pattern in patterns))
    for name, target in names:
        if ignored.search(target) is None and ignored.search(name) is None:
            raise CheckpointError(
                f"tensor {name!r} has no place in a {model.config.model_type} model of this configuration"
            )


def _expert_sources(
    experts: Mapping[int, ExpertsModule], sources: Mapping[str, Source]
) -> dict[tuple[int, str], Source]:
    found = {}
    for layer, item in experts.items():
        for parameter, _ in item.module.named_parameters():
            target = f"{item.name}.{parameter}"
            if target not in sources:
                raise CheckpointError(f"the checkpoint has no tensors for parameter {target!r}")
            found[layer, parameter] = sources[target]
    return found


def _backbone(
    model: transformers.PreTrainedModel,
    experts: Mapping[int, ExpertsModule],
    sources: Mapping[str, Source],
    checkpoint: Checkpoint,
) -> tuple[str, ...]:
    """Names of the backbone's tensors. Raises CheckpointError for parameters that no tensor makes."""
    prefixes = tuple(f"{item.name}." for item in experts.values())
    optional = set(model.all_tied_weights_keys)
    patterns = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_missing or ()]
    made = {made for source in sources.values() for made in _targets(source)}
    for target, empty in model.state_dict().items():
        if target in sources:
            _check_shape(sources[target], empty, checkpoint)
        elif target not in made and target not in optional and not any(item.search(target) for item in patterns):
            raise CheckpointError(f"the checkpoint has no tensor for {target!r}")
    kept = [name for target, source in sources.items() if not target.startswith(prefixes) for name, _ in source.keys]
    return tuple(sorted(kept, key=dot_natural_key))


def _targets(source: Source) -> list[str]:
    """All parameters that a source makes: a converter may make several, of which `target` is the first."""
    if source.converter is None:
        return [source.target]
    first, *others = source.converter.target_patterns
    return [source.target, *(source.target.replace(first, other) for other in others)]


def _check_shape(source: Source, empty: Tensor, checkpoint: Checkpoint) -> None:
    if source.converter is not None:
        return
    name, _ = source.keys[0]
    if len(source.keys) > 1:
        raise CheckpointError(f"tensors {name!r} and {source.keys[1][0]!r} both claim to be {source.target!r}")
    shape = checkpoint.tensors[name].entry.spec.shape
    if shape != tuple(empty.shape):
        raise CheckpointError(f"tensor {name!r} is {list(shape)}; the configuration asks for {list(empty.shape)}")


def _dtype(
    declared: torch.dtype | None, checkpoint: Checkpoint, sources: Mapping[tuple[int, str], Source]
) -> torch.dtype:
    """What transformers would load the model in: the configuration's dtype, else that of the experts' tensors."""
    names = [name for source in sources.values() for name, _ in source.keys]
    stored = {FORMAT_DTYPES[checkpoint.tensors[name].entry.spec.dtype]: name for name in names}
    for dtype, name in stored.items():
        if dtype not in DTYPES.values():
            raise UnsupportedModelError(
                f"tensor {name!r} is stored as {dtype}; experts can be {', '.join(DTYPES)} only"
            )
    chosen = next(iter(stored)) if declared is None else declared
    if chosen not in DTYPES.values():
        raise UnsupportedModelError(f"config.json asks for dtype {chosen}; it can be {', '.join(DTYPES)} only")
    return chosen


def _join(source: Source, checkpoint: Checkpoint, blueprint: Blueprint) -> Tensor:
    if source.converter is None:
        return checkpoint.read(source.keys[0][0])
    converter = copy.deepcopy(source.converter)
    for name, pattern in source.keys:
        # A callable is read when its turn comes, so that no tensor is in memory twice for longer than it must.
        converter.add_tensor(source.target, name, pattern, lambda name=name: checkpoint.read(name))
    try:
        made: dict[str, Any] = converter.convert(source.target, model=blueprint.model, config=blueprint.model.config)
        value = made[source.target]
    except (KeyError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"the tensors of parameter {source.target!r} can't be joined: {error}") from error
    joined: Tensor = value[0] if isinstance(value, list) else value
    return joined
