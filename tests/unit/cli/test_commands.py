"""The client commands against a real gRPC server that answers as it is told (support/fake_inference.py)."""

import io
import json
import math
import sys

import grpc
import pytest
from moe.api.inference.v1 import inference_pb2 as pb
from moe.cli.main import main
from support.fake_inference import FakeInference, serving


class Pipe(io.TextIOWrapper):
    def __init__(self, data):
        super().__init__(io.BytesIO(data), encoding="utf-8")


@pytest.fixture
def router(monkeypatch):
    servicer = FakeInference()
    with serving(servicer) as address:
        monkeypatch.setenv("MOE_ADDRESS", address)
        yield servicer


def printed(capsys, *argv, code=0):
    assert main(argv) == code
    return capsys.readouterr()


def test_generate_streams_the_text_and_nothing_else(router, capsys):
    assert printed(capsys, "generate", "--prompt", "x").out == "Paris.\n"


def test_generate_sends_prompt_and_sampling(router, capsys):
    printed(capsys, "generate", "--prompt", "x", "--temperature", "0.5", "--top-k", "3", "--max-tokens", "9")
    (request,) = router.requests
    assert (request.prompt.text, request.sampling.temperature, request.sampling.top_k, request.max_tokens) == (
        "x",
        0.5,
        3,
        9,
    )


def test_generate_takes_its_prompt_from_a_pipe(router, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Pipe(b"piped"))
    printed(capsys, "generate")
    assert router.requests[0].prompt.text == "piped"


def test_generate_adds_no_second_newline(router, capsys):
    router.pieces = ("a\n",)
    assert printed(capsys, "generate", "--prompt", "x").out == "a\n"


def test_generate_shows_which_experts_answered(router, capsys):
    lines = printed(capsys, "generate", "--prompt", "x", "--experts").out.splitlines()
    assert [line.split()[:4] for line in lines[2:]] == [["0", "30", "75.0", "%"], ["1", "10", "25.0", "%"]]


def test_there_are_no_colours_in_a_pipe(router, capsys):
    assert "\x1b" not in printed(capsys, "generate", "--prompt", "x", "--experts", "--logprobs", "1").out


def test_generate_as_json_is_an_object_per_line(router, capsys):
    lines = [json.loads(line) for line in printed(capsys, "generate", "--prompt", "x", "--json").out.splitlines()]
    assert [line.get("text") for line in lines] == ["Par", "is.", None]


def test_the_last_json_line_has_usage_experts_and_seed(router, capsys):
    final = json.loads(printed(capsys, "generate", "--prompt", "x", "--json").out.splitlines()[-1])["final"]
    assert (
        final["finish_reason"],
        final["usage"]["generated_tokens"],
        final["experts"][0]["slots"],
        final["seed"],
    ) == (
        "stop",
        2,
        30,
        7,
    )


def test_token_ids_stand_in_for_text_where_there_is_none(router, capsys):
    router.pieces = ("", "")
    assert printed(capsys, "generate", "--tokens", "1 2").out == "100 101\n"


def test_a_degradation_is_told_on_standard_error(router, capsys):
    router.final.degradations.append(pb.Degradation(kind="renormalised", layer_calls=3, reason="demo-001 is gone"))
    assert printed(capsys, "generate", "--prompt", "x").err == (
        "note: renormalised in 3 layer calls: demo-001 is gone\n"
    )


def test_a_request_that_is_to_blame_exits_with_2_and_the_router_s_words(router, capsys):
    router.refuse = (grpc.StatusCode.INVALID_ARGUMENT, "sampling.temperature: got 101, at most 100")
    err = printed(capsys, "generate", "--prompt", "x", code=2).err
    assert err == "error: sampling.temperature: got 101, at most 100\n"


def test_a_failure_of_the_router_exits_with_1_and_its_status(router, capsys):
    router.refuse = (grpc.StatusCode.DEADLINE_EXCEEDED, "layer 3: demo-001 did not answer")
    err = printed(capsys, "generate", "--prompt", "x", code=1).err
    assert err == "error: layer 3: demo-001 did not answer (DEADLINE_EXCEEDED)\n"


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_stream_without_an_end_is_a_failure(router, capsys, form):
    router.final = None
    assert "without a final message" in printed(capsys, "generate", "--prompt", "x", *form, code=1).err


def test_an_address_where_nobody_answers_is_named(capsys):
    err = printed(capsys, "generate", "--prompt", "x", "--address", "unix:/tmp/absent.sock", code=1).err
    assert err == "error: nobody answers at unix:/tmp/absent.sock; see what is up with `moe status`\n"


def test_score_shows_the_sum_and_the_perplexity_of_the_scored_tokens(router, capsys):
    facts = json.loads(printed(capsys, "score", "--prompt", "x", "--json").out)
    assert (facts["total_logprob"], facts["perplexity"], facts["scored_tokens"]) == (-4.0, math.exp(2.0), 2)


def test_tokenize_prints_ids(router, capsys):
    assert printed(capsys, "tokenize", "--prompt", "x").out == "1 2 3\n"


def test_tokenize_turns_ids_back_into_text(router, capsys):
    assert printed(capsys, "tokenize", "--tokens", "1,2,3").out == "abc\n"


def test_chat_from_a_pipe_takes_each_line_as_a_turn(router, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Pipe(b"one\ntwo\n"))
    printed(capsys, "chat", "--system", "Be brief")
    turns = [(message.role, message.content) for message in router.requests[1].prompt.chat.messages]
    assert turns == [("system", "Be brief"), ("user", "one"), ("assistant", "Paris."), ("user", "two")]


def test_chat_forgets_at_reset(router, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Pipe(b"one\n/reset\ntwo\n"))
    printed(capsys, "chat")
    assert [message.content for message in router.requests[1].prompt.chat.messages] == ["two"]


def test_chat_ends_at_quit(router, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Pipe(b"/quit\none\n"))
    printed(capsys, "chat")
    assert router.requests == []


def test_version_names_the_libraries_it_stands_on(capsys):
    assert {"moe", "python", "torch", "grpcio"} <= json.loads(printed(capsys, "version", "--json").out).keys()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["bogus"], "No such command"),
        (["generate", "--top-k", "x"], "not a valid integer"),
        (["up"], "Missing argument"),
        (["up", "demo", "--replicas-for", "x"], "is not GROUP=N"),
        (["up", "demo", "--name", "Äh"], "lower-case letters"),
        (["convert", "/absent"], "is no folder"),
        (
            ["convert", "demo", "--split", "--shared-neurons", "1", "--calibration", "f"],
            "is a Mixture of Experts already",
        ),
        (["convert", ".", "--experts", "4"], "--experts goes with --upcycle or --split"),
        (["convert", ".", "--upcycle", "--split"], "exclude each other"),
        (["convert", ".", "--split"], "needs --shared-neurons"),
        (["models", "show", "absent"], "there is no package 'absent'"),
        (["up", "absent"], "there is no package 'absent'"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_why(argv, words, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MOE_HOME", str(tmp_path))
    err = printed(capsys, *argv, code=2).err
    assert err.startswith("error: ")
    assert words in err


@pytest.mark.parametrize(
    "argv", [[], ["up"], ["generate"], ["chat"], ["status"], ["models"], ["models", "verify"], ["convert"], ["demo"]]
)
def test_every_command_explains_itself(argv, capsys):
    assert "Usage: moe" in printed(capsys, *argv, "--help").out


def test_a_demo_that_was_not_made_yet_says_how_to_make_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MOE_HOME", str(tmp_path))
    assert "moe convert demo" in printed(capsys, "up", "demo", code=2).err


def test_a_prompt_without_its_option_is_told_which_options_there_are(capsys):
    err = printed(capsys, "generate", "hi", "there", code=2).err
    assert "'hi there' belongs to no option; --prompt 'TEXT'" in err
    assert "--chat 'TEXT'" in err


def test_the_bare_command_prints_its_help_and_no_error(capsys):
    err = printed(capsys, code=2).err
    assert err.startswith("Usage: moe ")
    assert "error:" not in err
