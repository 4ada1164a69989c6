"""Every family's packed steps against the library's own model: ragged batches, chunked prefill, reused slots."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from moe.models.backbone import TransformersBackbone, load_backbone
from support.families import FAMILIES, family_config, load_reference, write_checkpoint
from support.local_experts import LocalExperts
from support.packed_loop import Sequenced, generate, random_prompts

TOLERANCE = 1e-4
"""Largest difference of float32 logits (of magnitude 5): two orders of addition over three layers."""

RECURRENCE_TOLERANCE = 2e-4
"""The same for Qwen3.5, whose reference runs linear attention in chunks where we step by step: two formulas, whose
decays multiply up over the text (measured 8.7e-5 on AVX-512, 1.45e-4 on AVX2)."""

RECURRENT = {"qwen3_5_moe_text"}
PROMPT_LENGTHS = (1, 7, 20, 48)
SLOTS = 6

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral with a sliding window": ("mixtral", {"sliding_window": 8}),
    "qwen2_moe with one windowed layer": (
        "qwen2_moe",
        {
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "use_sliding_window": True,
            "sliding_window": 8,
        },
    ),
    "phimoe with a window it doesn't pass to attention": ("phimoe", {"sliding_window": 8}),
    "olmoe with a window it doesn't apply": ("olmoe", {"sliding_window": 8}),
    "deepseek_v3 without compressed queries": ("deepseek_v3", {"q_lora_rank": None}),
    "deepseek_v3 with plain rotary halves": ("deepseek_v3", {"rope_interleave": False}),
    "granitemoe with its multipliers": (
        "granitemoe",
        {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 3.0, "attention_multiplier": 0.1},
    ),
    "llama4_text with a layer without positions": (
        "llama4_text",
        {
            "no_rope_layers": [1, 0, 1],
            "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
            "floor_scale": 8,
        },
    ),
    "llama4_text with two experts per token": ("llama4_text", {"num_experts_per_tok": 2}),
    "llama4_text with a dense layer": ("llama4_text", {"moe_layers": [1]}),
}


@dataclass(frozen=True)
class Loaded:
    """A reference model and the backbone of the same checkpoint, with a cache."""

    reference: Any
    backbone: TransformersBackbone
    experts: LocalExperts
    incremental: bool


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    @cache
    def load(name: str) -> Loaded:
        family, changes = VARIANTS.get(name, (name, {}))
        directory: Path = tmp_path_factory.mktemp("checkpoint")
        write_checkpoint(family, directory, config=family_config(family, **changes))
        reference = load_reference(directory)
        backbone = load_backbone(directory)
        backbone.allocate(SLOTS, 128)
        return Loaded(reference, backbone, LocalExperts(reference), family in RECURRENT)

    return load


def reference_logits(model: Loaded, sequence: Sequenced) -> torch.Tensor:
    """The library's logits for each generated token.

    Linear attention is compared with the library's own token-by-token decoding: its chunked and its recurrent form
    differ from each other by more than the tolerance.
    """
    with torch.inference_mode():
        tokens = torch.tensor([sequence.tokens[:-1]])
        if not model.incremental:
            logits: torch.Tensor = model.reference(tokens).logits[0, sequence.prompt - 1 :]
            return logits
        step = model.reference(tokens[:, : sequence.prompt], use_cache=True)
        rows = [step.logits[0, -1]]
        for token in tokens[0, sequence.prompt :]:
            step = model.reference(token.view(1, 1), cache=step.cache, use_cache=True)
            rows.append(step.logits[0, -1])
        return torch.stack(rows)


def largest_difference(model: Loaded, sequences: list[Sequenced]) -> float:
    differences = [(reference_logits(model, one) - torch.stack(one.logits)).abs().max() for one in sequences]
    return float(torch.stack(differences).max())


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_64_greedy_tokens_and_their_logits_equal_the_library_s(loaded: Callable[[str], Loaded], name: str) -> None:
    model = loaded(name)

    sequences = generate(model.backbone, model.experts, random_prompts(PROMPT_LENGTHS), 64)

    # The reference sees our tokens; where it would have chosen each of them, its own text is the same by induction.
    wanted = [reference_logits(model, one) for one in sequences]
    largest = max(
        float((ours - torch.stack(one.logits)).abs().max()) for ours, one in zip(wanted, sequences, strict=True)
    )
    assert [logits.argmax(-1).tolist() for logits in wanted] == [one.generated for one in sequences]
    assert largest <= (RECURRENCE_TOLERANCE if name in RECURRENT else TOLERANCE)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_used_slot_gives_the_next_sequence_the_logits_of_a_fresh_one(
    loaded: Callable[[str], Loaded], name: str
) -> None:
    model = loaded(name)
    generate(model.backbone, model.experts, random_prompts((40, 40, 40, 40, 40, 40), seed=1), 2)

    # Slots in another order than rows, and not all next to each other.
    sequences = generate(model.backbone, model.experts, random_prompts((9, 30, 2), seed=2), 4, slots=(5, 0, 2))

    assert largest_difference(model, sequences) <= TOLERANCE


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("chunk", [1, 64])
def test_the_size_of_prefill_chunks_changes_nothing(loaded: Callable[[str], Loaded], name: str, chunk: int) -> None:
    model = loaded(name)

    sequences = generate(model.backbone, model.experts, random_prompts((33, 5)), 3, chunk=chunk)

    assert largest_difference(model, sequences) <= TOLERANCE


@pytest.mark.parametrize("name", [*FAMILIES, "llama4_text with two experts per token"])
def test_each_row_sent_to_experts_names_its_row_in_the_batch(loaded: Callable[[str], Loaded], name: str) -> None:
    model = loaded(name)
    model.experts.calls.clear()

    generate(model.backbone, model.experts, random_prompts((5, 3)), 1)

    k = model.backbone.info.topk if name.startswith("llama4") else 1
    wanted = torch.arange(8).repeat_interleave(k).tolist()
    assert [rows.tolist() for _, rows, _ in model.experts.calls] == [wanted] * len(model.backbone.info.moe_layers)


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_are_asked_once_each_and_in_order(loaded: Callable[[str], Loaded], name: str) -> None:
    model = loaded(name)
    model.experts.calls.clear()

    generate(model.backbone, model.experts, random_prompts((5, 1)), 1)

    assert [layer for layer, _, _ in model.experts.calls] == sorted(model.backbone.info.moe_layers)
