"""An engine's turn, driven through its pipe: engines here answer at once, from a table or wrongly."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.end_to_end.__main__ import Turns, _in_turns
from benchmarks.end_to_end.answers import LENGTHS, NEW, Place, Reference
from benchmarks.end_to_end.engines import Engine, Model
from benchmarks.end_to_end.plan import Effort, remaining

ENGINE = """
import json, sys
from benchmarks.end_to_end.protocol import run_engine

def start(words, talk):
    known = {tuple(prompt): answer for prompt, answer in json.loads(words[0])}
    talk.ready(version="1")
    while (came := talk.take(wait=True)) is not None:
        for request in came:
            ids = known.get(tuple(request.prompt), [9] * request.new)
            for token in ids[: request.new]:
                talk.tokens(request.id, [token])

run_engine(start)
"""
PROMPTS = tuple((number + 1,) * length for number, length in enumerate(LENGTHS))
ANSWER = list(range(20, 20 + NEW))


@pytest.fixture
def model() -> Model:
    places = tuple(Place(token, {token: 0.0}) for token in ANSWER)
    return Model(
        "S", {"bf16": Path("package")}, Path("checkpoint"), {}, 100, Reference(PROMPTS, (places,) * len(PROMPTS))
    )


def engine(name: str, answer: list[int]) -> Engine:
    known = json.dumps([(prompt, answer) for prompt in PROMPTS])
    return Engine(name, (sys.executable, "-c", ENGINE, known))


def test_an_engine_with_the_models_answers_is_measured(model: Model) -> None:
    turns = Turns(model, [engine("right", ANSWER)])
    effort = Effort(singles=1, requests=3)
    (result,) = _in_turns(turns, 1, effort, remaining([("S", "right")], effort))
    assert result.absent == ""
    assert result.facts == {"version": "1", "answers": "64 of 64"}
    figures = {
        "memory_gbps",
        "w1_tokens_s",
        "w2_first_ms",
        "w2_per_token_ms",
        "w3_capacity_s",
        "w3_50_per_token_p50_ms",
    }
    assert figures | {"memory_gbps"} < result.rounds.keys()


def test_an_engine_that_computes_another_model_is_absent_and_not_asked_again(model: Model) -> None:
    turns = Turns(model, [engine("wrong", [*ANSWER[:2], *[7] * (NEW - 2)])])
    effort = Effort(("W1",))
    (result,) = _in_turns(turns, 2, effort, remaining([("S", "wrong")] * 2, effort))
    assert result.rounds == {}
    assert "wrong: its answers are not those of S: 8 of 8 answers leave the reference" in result.absent


def test_an_engine_that_dies_before_it_is_asked_is_absent(model: Model) -> None:
    script = ENGINE.replace(
        '    talk.ready(version="1")\n', '    talk.ready(version="1")\n    raise SystemExit("no memory")\n'
    )
    turns = Turns(model, [Engine("dead", (sys.executable, "-c", script, "[]"))])
    turns.take(turns.engines[0], Effort(), seed=0)
    assert turns.results["dead"].absent == "dead: ended with 1: no memory"


def test_an_engine_that_dies_says_its_last_words(model: Model) -> None:
    script = "import sys; print('no AVX-512', file=sys.stderr); sys.exit(4)"
    turns = Turns(model, [Engine("dead", (sys.executable, "-c", script))])
    turns.take(turns.engines[0], Effort(), seed=0)
    assert turns.results["dead"].absent == "dead: ended with 4: no AVX-512"
