"""A real router over real experts: exact, whole under kills, drained on SIGTERM, bad packages refused."""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import torch
from moe.api.inference.v1 import inference_pb2 as pb
from support.router_run import PATIENCE_S, SERVING, Deployment
from transformers import PreTrainedModel

PROMPTS = ([5, 17, 99, 3, 42, 11, 250], [7], [8, 9], list(range(40, 77)))
LENGTH = 24
LONG = 300  # tokens of an answer that a fault falls into: a step takes a few milliseconds


def request_of(prompt: Sequence[int], length: int = LENGTH, **settings: object) -> pb.GenerateRequest:
    tokens = pb.Prompt(tokens=pb.TokenIds(ids=prompt))
    return pb.GenerateRequest(prompt=tokens, max_tokens=length, ignore_eos=True, **settings)


def tokens_of(responses: Sequence[pb.GenerateResponse]) -> list[int]:
    return [token.id for response in responses if response.HasField("chunk") for token in response.chunk.tokens]


def ask(deployment: Deployment, prompt: Sequence[int], length: int = LENGTH, router: str = "router-0") -> list[int]:
    return tokens_of(list(deployment.stub(router).Generate(request_of(prompt, length))))


def generated(deployment: Deployment, router: str = "router-0") -> int:
    return deployment.stats(router).generated_tokens


@torch.inference_mode()
def greedy(reference: PreTrainedModel, prompt: Sequence[int], length: int = LENGTH) -> list[int]:
    """Transformers' own greedy continuation, past end tokens."""
    tokens = torch.tensor([list(prompt)])
    for _ in range(length):
        tokens = torch.cat([tokens, reference(tokens).logits[:, -1:].argmax(-1)], dim=1)
    return tokens[0, len(prompt) :].tolist()


@pytest.mark.parametrize("router", ["router-0", "router-1"], ids=["embedded", "aggregator"])
def test_a_crowd_of_ragged_prompts_gets_the_tokens_of_transformers(
    deployment: Deployment, reference: PreTrainedModel, router: str
) -> None:
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        found = list(threads.map(lambda prompt: ask(deployment, prompt, router=router), PROMPTS))
    assert found == [greedy(reference, prompt) for prompt in PROMPTS]


def test_a_score_is_that_of_transformers_and_a_chat_streams_whole_characters(
    deployment: Deployment, reference: PreTrainedModel
) -> None:
    stub = deployment.stub()
    text = list(range(30, 60))
    scored = stub.Score(pb.ScoreRequest(prompt=pb.Prompt(tokens=pb.TokenIds(ids=text))))
    with torch.inference_mode():
        expected = reference(torch.tensor([text])).logits[0].log_softmax(-1)
    found = [token.logprob for token in scored.tokens]
    assert found == pytest.approx([float(expected[i, token]) for i, token in enumerate(text[1:])], abs=1e-4)

    chat = pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="Grüße 🦊")]))
    tokenized = stub.Tokenize(pb.TokenizeRequest(prompt=chat))
    assert tokenized.text == "<|user|>Grüße 🦊<|end|><|assistant|>"
    responses = list(stub.Generate(pb.GenerateRequest(prompt=chat, max_tokens=60, ignore_eos=True)))
    bytes_ = [token for token in tokens_of(responses) if token < 256]
    answer = "".join(response.chunk.text for response in responses)
    whole = stub.Tokenize(pb.TokenizeRequest(prompt=pb.Prompt(tokens=pb.TokenIds(ids=bytes_)))).text
    assert answer.replace("\ufffd", "") == whole.replace("\ufffd", "")


def test_a_killed_replica_costs_no_request_and_no_token(deployment: Deployment, reference: PreTrainedModel) -> None:
    prompts, before = PROMPTS[:3], generated(deployment)
    with ThreadPoolExecutor(len(prompts)) as threads:
        running = [threads.submit(ask, deployment, prompt, LONG) for prompt in prompts]
        _until(lambda: generated(deployment) > before + 30)
        deployment.kill("g0-0")
        found = [answer.result(PATIENCE_S) for answer in running]
    assert found == [greedy(reference, prompt, LONG) for prompt in prompts]
    assert deployment.stats().retried_parts > 0


def test_waiting_for_the_only_replica_keeps_the_tokens(deployment: Deployment, reference: PreTrainedModel) -> None:
    before = generated(deployment)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(ask, deployment, PROMPTS[0], LONG)
        _until(lambda: generated(deployment) > before + 30)
        deployment.kill("g1-0")
        deployment.list_ready(("g0-0", "g0-1"))
        deployment.wait_without("g1", "router-0")
        health = deployment.health(deployment.address("router-0"))
        deployment.restore()
        found = running.result(PATIENCE_S)
    assert health == SERVING
    assert found == greedy(reference, PROMPTS[0], LONG)


def test_a_killed_aggregator_costs_no_token(deployment: Deployment, reference: PreTrainedModel) -> None:
    before = generated(deployment, "router-1")
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(ask, deployment, PROMPTS[0], LONG, "router-1")
        _until(lambda: generated(deployment, "router-1") > before + 30)
        deployment.kill("agg-0")
        deployment.restore()
        found = running.result(PATIENCE_S)
    assert (found, deployment.stats("router-1").redone_calls > 0) == (greedy(reference, PROMPTS[0], LONG), True)


def test_failing_at_once_names_layer_and_group(deployment: Deployment) -> None:
    deployment.kill("g1-0")
    deployment.list_ready(("g0-0", "g0-1"))
    deployment.wait_without("g1", "router-1")
    with pytest.raises(grpc.RpcError) as caught:
        ask(deployment, PROMPTS[0], router="router-1")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "layer 0: group g1: no replica is ready" in caught.value.details()


def test_sigterm_lets_answers_finish_and_ends_with_zero(deployment: Deployment) -> None:
    started = threading.Event()

    def generate() -> list[pb.GenerateResponse]:
        responses = []
        for response in deployment.stub("router-1").Generate(request_of(PROMPTS[0], 100)):
            responses.append(response)
            started.set()
        return responses

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(generate)
        started.wait(PATIENCE_S)
        code = deployment.kill("router-1", signal.SIGTERM)
        responses = running.result(PATIENCE_S)
    socket = deployment.folder / "router-1.sock"
    assert (code, len(tokens_of(responses)), socket.exists()) == (0, 100, False)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
