"""Names that Kubernetes takes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moe.operator.planner import UnfitModel, deployment_name

NAMES = {
    "demo": "demo",
    "Mixtral 8x7B": "mixtral-8x7b",
    "org/Model_v0.1": "org-model-v0-1",
    "--x--": "x",
    "7b": "m-7b",
    "Żółw 2": "w-2",
}


@pytest.mark.parametrize(("model", "name"), NAMES.items())
def test_a_models_name_becomes_a_label(model, name):
    assert deployment_name(model) == name


@pytest.mark.parametrize("model", ["", "---", "模型"])
def test_a_name_without_a_letter_or_digit_is_refused(model):
    with pytest.raises(UnfitModel, match=re.escape(repr(model))):
        deployment_name(model)


def test_a_name_of_40_characters_stays():
    assert deployment_name("a" * 40) == "a" * 40


def test_long_names_that_begin_alike_stay_apart():
    assert deployment_name("a" * 60 + "b") != deployment_name("a" * 60 + "c")


@given(st.text(max_size=100))
def test_every_name_is_a_dns_label_of_at_most_40_characters(model):
    try:
        name = deployment_name(model)
    except UnfitModel:
        return
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name)
