"""Sampling values of a package's generation config."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from moe.models.errors import PackageError
from moe.models.generation_defaults import FILE_NAME, generation_defaults


def defaults(path: Path, content: object) -> dict[str, float]:
    (path / FILE_NAME).write_text(content if isinstance(content, str) else json.dumps(content))
    return dict(generation_defaults(SimpleNamespace(backbone_dir=path)))


def test_a_model_that_samples_states_its_values(tmp_path: Path) -> None:
    stated = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "eos_token_id": 2}
    assert defaults(tmp_path, stated) == {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.0}


def test_sampling_without_a_temperature_means_one(tmp_path: Path) -> None:
    assert defaults(tmp_path, {"do_sample": True})["temperature"] == 1.0


def test_without_do_sample_the_model_is_greedy(tmp_path: Path) -> None:
    assert defaults(tmp_path, {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1}) == {
        "repetition_penalty": 1.1
    }


def test_no_file_states_nothing(tmp_path: Path) -> None:
    assert generation_defaults(SimpleNamespace(backbone_dir=tmp_path)) == {}


@pytest.mark.parametrize("content", ["{", "[]", '{"repetition_penalty": "high"}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(PackageError, match=FILE_NAME):
        defaults(tmp_path, content)
