"""The front desk over a real gRPC server, a tiny model and an in-memory wire."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from moe.api.inference.v1 import inference_pb2 as pb
from moe.api.inference.v1 import inference_pb2_grpc
from moe.router.domain import SamplingParameters
from moe.router.engine import Engine, EngineSettings
from moe.router.fleet import FleetTracker
from moe.router.front_desk import DeskTools, FrontDesk
from moe.router.layer_call import CallSettings, LayerCaller
from moe.router.requests import RequestLimits, RequestReader
from moe.router.scheduler import ScheduleLimits
from moe.runtime.interception import Interceptor
from moe.runtime.lifecycle import InFlight, Lifecycle
from moe.runtime.server_settings import ServerSettings, server_options
from moe.wire.port import MissingPolicy
from support.fake_backbone import END, VOCABULARY, FakeBackbone, multiply, reference_greedy, reference_logits
from support.letters import Letters, letters
from support.ports import unix_address
from support.router_double import SILENT, ListedDirectory, RouterWireDouble, listing

CONTEXT = 5000
SCHEDULE = ScheduleLimits(slots=2, kv_tokens=2 * CONTEXT, max_waiting=1, prefill_tokens=8, score_tokens=8)
STALL_S = 0.3


class Office:
    """A served front desk and a client's stub."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wire = RouterWireDouble(multiply, time.monotonic, lambda s: time.sleep(min(s, 0.01)))
        self.executor = ThreadPoolExecutor(1)
        self.desk = FrontDesk("router-0", stall_s=STALL_S, executor=self.executor)

    async def __aenter__(self) -> "Office":
        backbone = FakeBackbone(CONTEXT)
        backbone.allocate(SCHEDULE.slots, CONTEXT)
        tracker = FleetTracker(ListedDirectory(listing([[0, 1], [2, 3]])), 4)
        caller = LayerCaller(self.wire, tracker, CallSettings(MissingPolicy.WAIT, 60.0))
        self.engine = Engine(backbone, caller, EngineSettings(SCHEDULE, STALL_S), Letters())
        self.engine.start()
        limits = RequestLimits("tiny", VOCABULARY, CONTEXT, 10_000, 8, frozenset({END}), SamplingParameters())
        model = pb.GetModelResponse(name="tiny", max_context=CONTEXT)
        self.tools = DeskTools(self.engine, RequestReader(limits, Letters()), Letters(), model)
        interceptor = Interceptor("router-0", Lifecycle(), InFlight())
        options = server_options(ServerSettings(listen=""))
        self.server = grpc.aio.server(interceptors=[interceptor], options=options)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self.desk, self.server)
        address = unix_address(self.folder)
        self.server.add_insecure_port(address)
        await self.server.start()
        options = [("grpc.default_authority", "localhost"), ("grpc.http2.lookahead_bytes", 65536)]
        self.channel = grpc.aio.insecure_channel(address, options=[*options, ("grpc.http2.bdp_probe", 0)])
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await asyncio.to_thread(self.engine.stop, "the test is over")
        await self.server.stop(1)
        self.executor.shutdown()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - the engine's figures have no event to wait for
                await asyncio.sleep(0.005)


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    async with Office(tmp_path) as made:
        made.desk.open(made.tools)
        yield made


def text_of(chunks: list[pb.GenerateResponse]) -> str:
    return "".join(response.chunk.text for response in chunks if response.HasField("chunk"))


async def test_an_answer_streams_as_text_and_ends_with_its_facts(office: Office) -> None:
    request = pb.GenerateRequest(prompt=pb.Prompt(text="cde"), max_tokens=6, ignore_eos=True)
    responses = [response async for response in office.stub.Generate(request)]
    final = responses[-1].final
    assert text_of(responses) == letters(reference_greedy([2, 3, 4], 6))
    assert (final.finish_reason, final.usage.prompt_tokens, final.usage.generated_tokens) == (
        pb.FINISH_REASON_LENGTH,
        3,
        6,
    )
    assert sum(expert.share for expert in final.experts) == pytest.approx(1.0)


async def test_a_stop_text_ends_the_answer_before_it(office: Office) -> None:
    whole = letters(reference_greedy([2, 3, 4], 6))
    request = pb.GenerateRequest(prompt=pb.Prompt(text="cde"), max_tokens=6, stop=[whole[2:4]])
    responses = [response async for response in office.stub.Generate(request)]
    final = responses[-1].final
    assert (text_of(responses), final.finish_reason, final.stop_match) == (
        whole[:2],
        pb.FINISH_REASON_STOP,
        whole[2:4],
    )


async def test_logprobs_come_with_their_tokens(office: Office) -> None:
    request = pb.GenerateRequest(prompt=pb.Prompt(text="cde"), max_tokens=1, logprobs=3, ignore_eos=True)
    responses = [response async for response in office.stub.Generate(request)]
    token = responses[0].chunk.tokens[0]
    expected = reference_logits([2, 3, 4])[-1].log_softmax(-1)
    assert (token.id, len(token.top)) == (int(expected.argmax()), 3)
    assert token.logprob == pytest.approx(float(expected.max()), abs=1e-5)


async def test_a_score_sums_up(office: Office) -> None:
    response = await office.stub.Score(pb.ScoreRequest(prompt=pb.Prompt(text="cdef"), top=1))
    expected = reference_logits([2, 3, 4, 5]).log_softmax(-1)
    total = sum(float(expected[i, token]) for i, token in enumerate([3, 4, 5]))
    assert (list(response.token_ids), response.total_logprob) == ([2, 3, 4, 5], pytest.approx(total, abs=1e-4))


async def test_text_goes_to_ids_and_back(office: Office) -> None:
    response = await office.stub.Tokenize(pb.TokenizeRequest(prompt=pb.Prompt(text="abc" * 1000)))
    assert (list(response.token_ids), response.text) == ([0, 1, 2] * 1000, "abc" * 1000)


async def test_the_model_is_described(office: Office) -> None:
    assert (await office.stub.GetModel(pb.GetModelRequest(model="tiny"))).max_context == CONTEXT


async def test_a_huge_prompt_is_refused_by_field_and_limit(office: Office) -> None:
    request = pb.GenerateRequest(prompt=pb.Prompt(text="a" * 10_000_000))
    with pytest.raises(grpc.aio.AioRpcError, match=r"prompt\.text: got 10000000 bytes; at most 10000") as caught:
        await office.stub.Generate(request).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_text_that_is_not_utf8_is_refused(office: Office) -> None:
    good = pb.GenerateRequest(prompt=pb.Prompt(text="abc")).SerializeToString()
    generate = office.channel.unary_stream("/moe.inference.v1.InferenceService/Generate", request_serializer=bytes)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(good.replace(b"abc", b"a\xff\xfe")).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_before_the_model_is_loaded_calls_are_told_to_wait(tmp_path: Path) -> None:
    async with Office(tmp_path) as closed:
        with pytest.raises(grpc.aio.AioRpcError, match="router-0 is loading its model") as caught:
            await closed.stub.GetModel(pb.GetModelRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_that_hangs_up_frees_its_slot(office: Office) -> None:
    call = office.stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(text="c"), max_tokens=4000, ignore_eos=True))
    await call.read()
    call.cancel()
    await office.until(lambda: office.engine.load()[0] == 0)
    assert office.engine.tally.finished["CANCELLED"] == 1


async def test_a_clients_deadline_frees_its_slot(office: Office) -> None:
    office.wire.faults["g0-0"] = [SILENT] * 10
    request = pb.GenerateRequest(prompt=pb.Prompt(text="e"), max_tokens=5)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in office.stub.Generate(request, timeout=0.2):
            pass
    await office.until(lambda: office.engine.load()[0] == 0)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_full_queue_says_when_to_try_again(office: Office) -> None:
    office.wire.faults["g0-0"] = [SILENT] * 10
    request = pb.GenerateRequest(prompt=pb.Prompt(text="e"), max_tokens=5)
    running = office.stub.Generate(request)
    await office.until(lambda: office.engine.load()[0] == 1)
    waiting = [office.stub.Generate(request) for _ in range(2)]  # one for the free slot, one for the queue
    await office.until(lambda: office.engine.load()[1] == 2)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await office.stub.Generate(request).read()
    for call in (running, *waiting):
        call.cancel()
    trailing = dict(caught.value.trailing_metadata())
    assert (caught.value.code(), int(trailing["retry-after-ms"]) > 0) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)


async def test_a_client_that_never_reads_is_ended_by_name_and_others_go_on(office: Office) -> None:
    greedy_reader = pb.GenerateRequest(prompt=pb.Prompt(text="c"), max_tokens=4900, ignore_eos=True, logprobs=20)
    stuck = office.stub.Generate(greedy_reader)
    await stuck.initial_metadata()
    await office.until(lambda: bool(office.engine.tally.finished))
    other = [r async for r in office.stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(text="cde"), max_tokens=2))]
    with pytest.raises(grpc.aio.AioRpcError, match="--stall-timeout-s") as caught:
        async for _ in stuck:
            pass
    assert (caught.value.code(), other[-1].HasField("final")) == (grpc.StatusCode.DEADLINE_EXCEEDED, True)
