"""Requests: what passes comes out as it was meant, what does not is refused by field, value and bound."""

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from moe.api.inference.v1 import inference_pb2 as pb
from moe.router.domain import SamplingParameters, Scoring
from moe.router.requests import RequestLimits, RequestReader, sampling_defaults
from moe.runtime.errors import InvalidRequest, MoeError, NotFound
from support.letters import Letters

LIMITS = RequestLimits(
    model="tiny",
    vocabulary=32,
    max_context=20,
    max_prompt_bytes=100,
    default_max_tokens=8,
    end_ids=frozenset({1}),
    defaults=SamplingParameters(),
)
NAN, INFINITY = float("nan"), float("inf")


def reader(*, text: bool = True, **changes: object) -> RequestReader:
    return RequestReader(replace(LIMITS, **changes), Letters() if text else None)


def ids(*tokens: int) -> pb.Prompt:
    return pb.Prompt(tokens=pb.TokenIds(ids=tokens))


def chat(*messages: tuple[str, str]) -> pb.Prompt:
    return pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage(role=r, content=c) for r, c in messages]))


def test_a_request_with_everything_set_comes_out_as_it_was_meant() -> None:
    sampling = pb.Sampling(temperature=0.5, top_p=0.25, top_k=7, min_p=0.125, seed=2**64 - 1, presence_penalty=-2)
    request = pb.GenerateRequest(
        model="tiny",
        prompt=ids(3, 4),
        sampling=sampling,
        max_tokens=5,
        stop=["b", "cd"],
        stop_token_ids=[9],
        logprobs=2,
    )
    found = reader().generation(request)
    assert found.sampling == SamplingParameters(0.5, 0.25, 7, 0.125, presence_penalty=-2.0, seed=2**64 - 1)
    assert (found.prompt, found.max_tokens, found.stop, found.stop_ids, found.logprobs) == (
        (3, 4),
        5,
        ("b", "cd"),
        frozenset({1, 9}),
        2,
    )


def test_unset_fields_take_the_models_defaults_and_a_seed_of_their_own() -> None:
    defaults = SamplingParameters(temperature=0.7, top_k=20)
    first, second = (reader(defaults=defaults).generation(pb.GenerateRequest(prompt=ids(3))) for _ in range(2))
    assert replace(first.sampling, seed=0) == defaults
    assert (first.max_tokens, first.logprobs, first.sampling.seed != second.sampling.seed) == (8, None, True)


def test_a_zero_that_is_set_overrides_the_models_default() -> None:
    request = pb.GenerateRequest(prompt=ids(3), sampling=pb.Sampling(temperature=0.0, top_k=0))
    found = reader(defaults=SamplingParameters(temperature=0.7, top_k=20)).generation(request).sampling
    assert (found.temperature, found.top_k) == (0.0, 0)


def test_end_tokens_are_ignored_on_wish() -> None:
    assert reader().generation(pb.GenerateRequest(prompt=ids(3), ignore_eos=True)).stop_ids == frozenset()


def test_an_open_length_is_what_the_context_leaves() -> None:
    assert reader().generation(pb.GenerateRequest(prompt=ids(*[3] * 17))).max_tokens == 3


@pytest.mark.parametrize("prompt", [pb.Prompt(text="dad"), chat(("user", "dad"))])
def test_text_and_chat_are_tokenised(prompt: pb.Prompt) -> None:
    assert reader().scoring(pb.ScoreRequest(prompt=prompt, top=1)) == Scoring((3, 0, 3), 1)


Change = Callable[[pb.GenerateRequest], None]


def set_to(**fields: object) -> Change:
    return lambda request: request.MergeFrom(pb.GenerateRequest(**fields))


def sampled(**fields: float) -> Change:
    return set_to(sampling=pb.Sampling(**fields))


def prompted(prompt: pb.Prompt) -> Change:
    return lambda request: request.prompt.CopyFrom(prompt)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (prompted(pb.Prompt()), "prompt: is missing"),
        (prompted(pb.Prompt(text="")), "prompt.text: is empty"),
        (prompted(pb.Prompt(text="x" * 101)), "prompt.text: got 101 bytes; at most 100 bytes are accepted"),
        (prompted(pb.Prompt(text="é" * 51)), "prompt.text: got 102 bytes; at most 100"),
        (prompted(pb.Prompt(text="x" * 20)), "prompt: got 21 tokens; the context holds 20"),
        (prompted(pb.Prompt(text="Z")), "prompt.text: holds token 993, outside the model's 32"),
        (prompted(ids()), "prompt.tokens.ids: is empty"),
        (prompted(ids(3, 32)), "prompt.tokens.ids: got 32 at place 1; the vocabulary has 32"),
        (prompted(ids(*[3] * 26)), "prompt.tokens.ids: got 104 bytes; at most 100"),
        (prompted(chat()), "prompt.chat.messages: is empty"),
        (prompted(chat(("user", "a"), ("", "b"))), r"prompt.chat.messages\[1\].role: is empty"),
        (prompted(chat(("robot", "a"))), "prompt.chat: .*unknown role robot"),
        (prompted(chat(("user", ""))), "prompt.chat: has no tokens"),
        (prompted(chat(("user", "x" * 97))), "prompt.chat: got 101 bytes; at most 100"),
        (sampled(temperature=NAN), "sampling.temperature: got nan; want 0 to 100"),
        (sampled(temperature=INFINITY), "sampling.temperature: got inf; want 0 to 100"),
        (sampled(temperature=-0.5), "sampling.temperature: got -0.5; want 0 to 100"),
        (sampled(top_p=0.0), "sampling.top_p: got 0; want more than 0 and at most 1"),
        (sampled(top_p=1.5), "sampling.top_p: got 1.5; want more than 0 and at most 1"),
        (sampled(top_k=2**32 - 1), "sampling.top_k: got 4.29497e.09; want 0 to 2.14748e"),
        (sampled(min_p=NAN), "sampling.min_p: got nan; want 0 to 1"),
        (sampled(repetition_penalty=0.0), "sampling.repetition_penalty: got 0; want more than 0"),
        (sampled(presence_penalty=101.0), "sampling.presence_penalty: got 101; want -100 to 100"),
        (sampled(frequency_penalty=-INFINITY), "sampling.frequency_penalty: got -inf; want -100 to 100"),
        (set_to(max_tokens=0), "max_tokens: got 0; want 1 to 18, as the prompt has 2 tokens of the 20"),
        (set_to(max_tokens=19), "max_tokens: got 19; want 1 to 18"),
        (set_to(stop=["a"] * 17), "stop: got 17 texts; at most 16"),
        (set_to(stop=["a", ""]), r"stop\[1\]: got 0 bytes; want 1 to 256"),
        (set_to(stop=["é" * 129]), r"stop\[0\]: got 258 bytes; want 1 to 256"),
        (set_to(stop_token_ids=[3] * 65), "stop_token_ids: got 65 ids; at most 64"),
        (set_to(stop_token_ids=[3, 99]), "stop_token_ids: got 99 at place 1"),
        (set_to(logprobs=21), "logprobs: got 21; want 0 to 20"),
    ],
)
def test_what_can_not_be_is_refused_by_field_value_and_bound(change: Change, message: str) -> None:
    request = pb.GenerateRequest(prompt=ids(3, 4))
    change(request)
    with pytest.raises(InvalidRequest, match=f"^{message}"):
        reader().generation(request)


def test_another_model_is_not_found() -> None:
    with pytest.raises(NotFound, match="got 'gpt'; this router serves 'tiny'"):
        reader().generation(pb.GenerateRequest(model="gpt", prompt=ids(3)))


def test_a_long_model_name_is_not_repeated_in_full() -> None:
    with pytest.raises(NotFound) as caught:
        reader().check_model("x" * 10_000)
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (prompted(pb.Prompt(text="a")), "prompt.text: this model package has no tokenizer"),
        (prompted(chat(("user", "a"))), "prompt.chat: this model package has no tokenizer"),
        (set_to(stop=["a"]), "stop: this model package has no tokenizer; use stop_token_ids"),
    ],
)
def test_without_a_tokenizer_only_ids_are_served(change: Change, message: str) -> None:
    request = pb.GenerateRequest(prompt=ids(3, 4))
    change(request)
    with pytest.raises(InvalidRequest, match=message):
        reader(text=False).generation(request)


@given(data=st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_messages_are_served_or_refused_and_nothing_else(data: bytes) -> None:
    try:
        request = pb.GenerateRequest.FromString(data)
    except DecodeError:
        return
    with contextlib.suppress(MoeError):
        found = reader().generation(request)
        assert len(found.prompt) + found.max_tokens <= LIMITS.max_context


@given(
    request=st.builds(
        pb.GenerateRequest,
        prompt=st.one_of(
            st.builds(pb.Prompt, text=st.text(max_size=30)),
            st.builds(pb.Prompt, tokens=st.builds(pb.TokenIds, ids=st.lists(st.integers(0, 2**32 - 1), max_size=30))),
        ),
        sampling=st.builds(
            pb.Sampling,
            temperature=st.floats(width=32),
            top_p=st.floats(width=32),
            top_k=st.integers(0, 2**32 - 1),
            min_p=st.floats(width=32),
            repetition_penalty=st.floats(width=32),
            seed=st.integers(0, 2**64 - 1),
        ),
        max_tokens=st.integers(0, 2**32 - 1),
        stop=st.lists(st.text(max_size=5), max_size=3),
        logprobs=st.integers(0, 30),
    )
)
@settings(max_examples=300, deadline=None)
def test_random_values_are_served_or_refused_and_nothing_else(request: pb.GenerateRequest) -> None:
    with contextlib.suppress(MoeError):
        found = reader().generation(request)
        assert 0 <= found.sampling.temperature <= 100


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (pb.ScoreRequest(prompt=ids(3)), "prompt: got 1 token; a score needs at least 2"),
        (pb.ScoreRequest(prompt=ids(*[3] * 21)), "prompt: got 21 tokens; the context holds 20"),
        (pb.ScoreRequest(prompt=ids(3, 4), top=21), "top: got 21; want 0 to 20"),
    ],
)
def test_a_score_is_checked_as_well(request_: pb.ScoreRequest, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        reader().scoring(request_)


def test_defaults_of_a_model_are_checked() -> None:
    with pytest.raises(InvalidRequest, match="top_p: got 3"):
        sampling_defaults({"temperature": 1.0, "top_p": 3})


def test_defaults_of_a_model_are_taken() -> None:
    assert sampling_defaults({"temperature": 0.5, "top_k": 20.0}) == SamplingParameters(temperature=0.5, top_k=20)


def test_a_chat_of_more_messages_than_the_context_has_tokens_is_refused_before_it_is_rendered() -> None:
    prompt = chat(*[("u", "")] * (LIMITS.max_context + 1))
    with pytest.raises(InvalidRequest, match="got 21 messages; the context holds 20 tokens"):
        reader().generation(pb.GenerateRequest(prompt=prompt))
