"""Bad input at every port: a clear status that names field and limit; other requests go on."""

import contextlib
import json
import math
import random
import socket
import threading

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moe.api.control.v1 import control_pb2, control_pb2_grpc
from moe.api.inference.v1 import inference_pb2 as pb
from support.moe_up import moe
from support.streams import Clients, request


@pytest.fixture(scope="module")
def served(bring_up, demo):
    """The demo model, every process on a TCP port."""
    return bring_up(demo, "--groups", "2", "--tcp")


@pytest.fixture(scope="module")
def clients(served):
    return served[1]


def text(content, **fields):
    return pb.GenerateRequest(prompt=pb.Prompt(text=content), max_tokens=4, **fields)


def sampled(**fields):
    return text("Hello", sampling=pb.Sampling(**fields))


BAD = {
    "no prompt": (pb.GenerateRequest(), "INVALID_ARGUMENT", "prompt"),
    "empty text": (text(""), "INVALID_ARGUMENT", "prompt"),
    "no tokens": (pb.GenerateRequest(prompt=pb.Prompt(tokens=pb.TokenIds())), "INVALID_ARGUMENT", "prompt"),
    "no messages": (pb.GenerateRequest(prompt=pb.Prompt(chat=pb.Chat())), "INVALID_ARGUMENT", "prompt"),
    "a token beyond the vocabulary": (request([10**6]), "INVALID_ARGUMENT", "1000000"),
    "a long text": (text("x" * (2 * 1024 * 1024)), "INVALID_ARGUMENT", "1048576"),
    "10 MB": (text("x" * 10_000_000), "INVALID_ARGUMENT", "1048576"),
    "a prompt beyond the context": (request([5] * 9000), "INVALID_ARGUMENT", "4096"),
    "NaN temperature": (sampled(temperature=math.nan), "INVALID_ARGUMENT", "temperature"),
    "negative temperature": (sampled(temperature=-1), "INVALID_ARGUMENT", "temperature"),
    "infinite temperature": (sampled(temperature=math.inf), "INVALID_ARGUMENT", "temperature"),
    "top_p of 0": (sampled(top_p=0), "INVALID_ARGUMENT", "top_p"),
    "top_p of 2": (sampled(top_p=2), "INVALID_ARGUMENT", "top_p"),
    "min_p of -1": (sampled(min_p=-1), "INVALID_ARGUMENT", "min_p"),
    "repetition_penalty of 0": (sampled(repetition_penalty=0), "INVALID_ARGUMENT", "repetition_penalty"),
    "NaN presence_penalty": (sampled(presence_penalty=math.nan), "INVALID_ARGUMENT", "presence_penalty"),
    "21 logprobs": (text("Hello", logprobs=21), "INVALID_ARGUMENT", "logprobs"),
    "17 stop texts": (text("Hello", stop=["a"] * 17), "INVALID_ARGUMENT", "stop"),
    "an empty stop text": (text("Hello", stop=[""]), "INVALID_ARGUMENT", "stop"),
    "an unknown model": (text("Hello", model="gpt-5"), "NOT_FOUND", "gpt-5"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_refused_with_a_status_that_names_what_is_wrong(clients, case):
    bad, code, named = BAD[case]
    error = clients.ask(bad).error
    assert (error.code().name, named in error.details()) == (code, True), error.details()


def test_a_bad_request_leaves_the_others_as_they_are(clients):
    good = request([504, 260, 1000], 12)
    alone = clients.ask(good).tokens
    answers = clients.ask_all([good, *(bad for bad, _, _ in BAD.values())])
    assert answers[0].tokens == alone


def test_invalid_utf8_is_refused_and_the_next_request_works(clients):
    call = clients.channel.unary_stream("/moe.inference.v1.InferenceService/Generate")
    broken = b"\x12\x03\x0a\x01\xff"  # prompt { text: "\xff" }
    with pytest.raises(grpc.RpcError) as caught:
        list(call(broken, timeout=60))
    assert (caught.value.code().name, clients.ask(request([5], 2)).error) == ("INVALID_ARGUMENT", None)


def test_random_bytes_at_every_port_leave_every_process_alive(served, runtime):
    up, clients = served
    noise = random.Random(7)
    before = len(up.events)
    for endpoint in endpoints(runtime, up):
        host, port = endpoint.rsplit(":", 1)
        for size in (1, 24, 1000, 100_000):
            with socket.create_connection((host, int(port)), timeout=10) as peer, contextlib.suppress(OSError):
                peer.sendall(noise.randbytes(size))
    answer = clients.ask(request([5], 2))
    assert (answer.error, up.process.poll(), endpoints(runtime, up) and up.events[before:]) == (None, None, [])


def endpoints(runtime, up):
    """Of every process; each of them must be ready."""
    (deployment,) = json.loads(moe(runtime, "status", "--json", "--name", up.events[-1]["name"]).stdout)
    assert {process["state"] for process in deployment["processes"]} == {"ready"}
    return [process["endpoint"] for process in deployment["processes"]]


def test_a_client_that_never_reads_does_not_hold_up_the_others(clients):
    idle = Clients(clients.target)
    stalled = [idle.stub.Generate(request([5 + i], 2000)) for i in range(3)]
    answer = clients.ask(request([504, 260], 8))
    for call in stalled:
        call.cancel()
    idle.close()
    assert (answer.error, len(answer.tokens)) == (None, 8)


def test_a_disconnected_client_frees_its_slot(clients):
    calls = [clients.stub.Generate(request([5 + i], 3000)) for i in range(4)]
    for call in calls:
        next(call)
        call.cancel()
    assert wait_until(lambda: running(clients) == 0)


def running(clients):
    stats = control_pb2_grpc.ControlServiceStub(clients.channel).Stats(control_pb2.StatsRequest(), timeout=30)
    return stats.router.running + stats.router.waiting


def wait_until(condition, patience_s=60.0):
    over = threading.Event()
    timer = threading.Timer(patience_s, over.set)
    timer.start()
    try:
        while not over.is_set():
            if condition():
                return True
        return False
    finally:
        timer.cancel()


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.text(max_size=8),
        "max_tokens": st.integers(0, 2**32 - 1),
        "stop": st.lists(st.text(max_size=300), max_size=20),
        "stop_token_ids": st.lists(st.integers(0, 2**32 - 1), max_size=70),
        "logprobs": st.integers(0, 2**32 - 1),
        "prompt": st.one_of(
            st.builds(lambda t: pb.Prompt(text=t), st.text(max_size=50)),
            st.builds(
                lambda ids: pb.Prompt(tokens=pb.TokenIds(ids=ids)), st.lists(st.integers(0, 2**32 - 1), max_size=20)
            ),
            st.builds(
                lambda r, c: pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage(role=r, content=c)])),
                st.text(max_size=9),
                st.text(max_size=50),
            ),
        ),
        "sampling": st.builds(
            pb.Sampling,
            temperature=st.floats(width=32),
            top_p=st.floats(width=32),
            top_k=st.integers(0, 2**32 - 1),
            min_p=st.floats(width=32),
            repetition_penalty=st.floats(width=32),
            seed=st.integers(0, 2**64 - 1),
        ),
    },
)
EXPECTED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "CANCELLED"}


def code_of_first_answer(call):
    """OK, or the name of the status it was refused with."""
    try:
        next(call)
    except StopIteration:
        return "OK"
    except grpc.RpcError as error:
        return error.code().name
    finally:
        call.cancel()
    return "OK"


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(FIELDS)
def test_random_requests_are_answered_or_refused_never_an_internal_error(clients, fields):
    assert code_of_first_answer(clients.stub.Generate(pb.GenerateRequest(**fields), timeout=60)) in EXPECTED


METHODS = ("Generate", "Score", "Tokenize", "GetModel")


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(METHODS), st.binary(max_size=200))
def test_random_bytes_as_messages_are_answered_or_refused_never_an_internal_error(clients, method, message):
    call = clients.channel.unary_stream(f"/moe.inference.v1.InferenceService/{method}")
    assert code_of_first_answer(call(message, timeout=60)) in EXPECTED
