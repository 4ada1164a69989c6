"""Loads a backbone: a model of the library's, built without its experts' parameters, so that they are never read.

The class is the library's own with one change: its constructor removes the experts. Everything after it (renaming,
sharding, tied weights, dtypes) is the library's loading as it is.
"""

import logging
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from moe.models.errors import UnsupportedModelError
from moe.models.package import Package
from moe.models.seams.errors import BackboneWeightsError, UnsupportedBackboneError
from moe.models.seams.experts import strip_experts
from moe.models.seams.experts_discovery import find_experts
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

logger = logging.getLogger(__name__)

OTHER_MODALITIES = r"(^|\.)(vision\w*|visual|audio\w*|multi_modal_projector)\."
"""Tensors of a multimodal checkpoint that its text part does without."""

LISTED_NAMES = 5
"""How many tensor names an error lists."""


def load_without_experts(directory: Path, dtype: torch.dtype | None) -> Any:
    """The model in a Hugging Face directory, in evaluation mode and without experts.

    dtype None is the checkpoint's own. Raises UnsupportedBackboneError, BackboneWeightsError.
    """
    config = read_config(directory)
    kind = causal_class(config)
    text_only = kind.config_class is not type(config)
    if text_only:
        logger.info("serving the text part of %s only", type(config).__name__)
        config = config.get_text_config()
    transformers.utils.logging.disable_progress_bar()
    try:
        model, report = without_experts(kind, text_only=text_only).from_pretrained(
            directory,
            config=config,
            dtype=dtype or "auto",
            attn_implementation="eager",
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # refused below, by name
            output_loading_info=True,
        )
    except UnsupportedModelError as error:
        raise UnsupportedBackboneError(f"{directory}: {error}") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise BackboneWeightsError(f"{directory}: {error}") from error
    refuse_wrong_weights(directory, report)
    return model


def read_config(directory: Path) -> Any:
    """The directory's configuration. Raises UnsupportedBackboneError with the reason when it can't be served."""
    if not (directory / "config.json").is_file():
        raise BackboneWeightsError(f"{directory}: config.json is missing; give a model package or its backbone")
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedBackboneError(f"{directory / 'config.json'}: {error}") from error
    quantised = getattr(config, "quantization_config", None)
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else type(quantised).__name__
        raise UnsupportedBackboneError(f"{directory}: quantised checkpoints ({method}) can't be served; dequantise it")
    if config.is_encoder_decoder:
        raise UnsupportedBackboneError(
            f"{directory}: {config.model_type} is an encoder-decoder; only decoders are served"
        )
    return config


def causal_class(config: Any) -> Any:
    """The library's text-generation class for a configuration."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedBackboneError(
            f"{config.model_type} has no text-generation class in transformers {transformers.__version__}"
        )
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def without_experts(kind: Any, *, text_only: bool) -> Any:
    """A subclass whose instances have no expert parameters; it keeps the class's name, by which the library maps.

    text_only: the checkpoint holds other modalities beside the text part, whose tensors are not read.
    """

    def construct(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, config, *args, **kwargs)
        experts = find_experts(self)
        if not experts:
            raise UnsupportedBackboneError(
                f"{config.model_type} has no routed experts; make some with `moe convert --upcycle` or `--split`"
            )
        self._keys_to_ignore_on_load_unexpected |= {rf"(^|\.){re.escape(item.name)}\." for item in experts.values()}
        if text_only:
            self._keys_to_ignore_on_load_unexpected.add(OTHER_MODALITIES)
        strip_experts(self)

    names = {"__init__": construct, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), names)


def refuse_wrong_weights(directory: Path, report: dict[str, Any]) -> None:
    """Raises BackboneWeightsError, by name, when tensors are missing, unknown or of a wrong shape."""
    unknown = sorted(report["unexpected_keys"])
    missing = sorted(report["missing_keys"])
    shapes = sorted(str(entry[0]) for entry in report["mismatched_keys"])
    for what, names in (
        ("are missing", missing),
        ("have no place in the model", unknown),
        ("have a wrong shape", shapes),
    ):
        if names:
            listed = ", ".join(names[:LISTED_NAMES]) + (
                f" and {len(names) - LISTED_NAMES} more" if names[LISTED_NAMES:] else ""
            )
            raise BackboneWeightsError(f"{directory}: tensors {what}: {listed}; convert the checkpoint again")


def backbone_directory(package: Path | Package) -> Path:
    """Where the backbone lies: in an opened package, in a package's directory, or the directory itself."""
    if isinstance(package, Package):
        return package.backbone_dir
    if (package / "manifest.json").is_file():
        return Package.open(package).backbone_dir
    return package
