import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from benchmarks.checkpoints import Size, ensure_checkpoint
from benchmarks.end_to_end.answers import NEW, Place, Reference, agreement, read_reference, write_reference
from benchmarks.end_to_end.peers.gguf_checkpoint import neighbours

TINY = Size("T", hidden=128, layers=4, experts=3, topk=2, ffn=64, vocabulary=256)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_checkpoint(TINY, tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    write_reference(checkpoint, checkpoint / "answers.json")
    return read_reference(checkpoint / "answers.json")


def answers(folder: Path, reference: Reference) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    made = []
    for prompt in reference.prompts:
        ids = list(prompt)
        for _ in range(NEW):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        made.append(ids[len(prompt) :])
    return made


def changed(folder: Path, target: Path, name: str, rows: slice | None = None) -> Path:
    """A copy whose tensors of that name in every layer are reordered, as by a wrong conversion."""
    shutil.copytree(folder, target)
    for file in target.glob("*.safetensors"):
        tensors = load_file(file)
        for key in [key for key in tensors if name in key]:
            weight = tensors[key]
            turned = weight.flip(0) if rows is None else neighbours(weight, len(weight) // 64)
            tensors[key] = turned.contiguous()
        save_file(tensors, file, metadata={"format": "pt"})
    return target


def test_the_model_itself_agrees_in_bfloat16(checkpoint: Path, reference: Reference) -> None:
    found = agreement(reference, answers(checkpoint, reference))
    assert found.wrong == ""
    assert found.compared > len(reference.prompts)


@pytest.mark.parametrize(("name", "rows"), [("q_proj", slice(None)), ("gate.weight", None), ("v_proj", None)])
def test_a_conversion_that_reorders_rows_is_found(
    checkpoint: Path, reference: Reference, tmp_path: Path, name: str, rows: slice | None
) -> None:
    broken = changed(checkpoint, tmp_path / "broken", name, rows)
    assert agreement(reference, answers(broken, reference)).wrong


PLACES = (Place(7, {7: 0.0, 8: 0.2}), Place(9, {9: 0.0}))
REFERENCE = Reference(((1, 2),) * 4, (PLACES,) * 4)


def test_a_token_as_likely_as_the_best_ends_the_comparison() -> None:
    found = agreement(REFERENCE, [[8, 4], [7, 9], [7, 9], [7, 9]])
    assert (found.compared, found.same, found.far, found.wrong) == (7, 6, 0, "")


def test_two_answers_may_leave_as_gates_swap_experts_and_three_may_not() -> None:
    assert agreement(REFERENCE, [[7, 4], [7, 4], [7, 9], [7, 9]]).wrong == ""
    found = agreement(REFERENCE, [[7, 4], [7, 4], [7, 4], [7, 9]])
    assert found.wrong.startswith("3 of 8 answers leave the reference by more than rounding; token 2 after 2 ids is 4")


def test_an_answer_that_always_takes_the_second_best_is_not_the_models() -> None:
    found = agreement(REFERENCE, [[8, 9], [8, 9], [8, 9], [7, 9]])
    assert found.wrong == "only 2 of 5 tokens are the reference's, want 60%"


def test_the_file_holds_the_reference(tmp_path: Path, reference: Reference, checkpoint: Path) -> None:
    fields = json.loads((checkpoint / "answers.json").read_bytes())
    assert [len(prompt) for prompt in fields["prompts"]] == [3, 5, 8, 13, 21, 34, 55, 89]
    assert all(place.near[place.best] == 0.0 for places in reference.answers for place in places)
