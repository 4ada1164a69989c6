"""What a caller gets when a handler raises, whatever the kind of call."""

import asyncio
import contextlib
import logging

import grpc
import pytest
from moe.runtime import errors
from moe.runtime.interception import printable, pump
from moe.runtime.server import Server, ServerSettings
from moe.runtime.server_settings import client_options
from support.echo_service import NAME, Echo, EchoClient, message
from support.ports import unix_address

KINDS = ["unary", "streaming", "writing", "gathering", "talking"]


@pytest.fixture
async def echo(tmp_path):
    """The service behind a real server, and a client of it."""
    service = Echo()
    server = Server(service.service(), ServerSettings(listen=unix_address(tmp_path), max_message_bytes=4096))
    await server.start()
    async with grpc.aio.insecure_channel(server.target, options=client_options()) as channel:
        yield service, EchoClient(channel), channel
    await server.stop()


async def answers(client, kind, *requests):
    """All answers of a call of that kind; raises AioRpcError when it does not end well."""
    method = getattr(client, kind)
    if kind == "unary":
        return [await method(requests[0])]
    if kind == "gathering":
        return [await method(iter(requests))]
    call = method(iter(requests)) if kind == "talking" else method(requests[0])
    return [answer async for answer in call]


async def failure(client, kind, *requests):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers(client, kind, *requests)
    return caught.value


def raising(error):
    def before_answer(_):
        raise error

    return before_answer


@pytest.mark.parametrize(
    ("kind", "count"), [("unary", 1), ("streaming", 3), ("writing", 1), ("gathering", 1), ("talking", 2)]
)
async def test_a_handler_that_does_not_raise_is_left_alone(echo, kind, count):
    _, client, _ = echo
    assert len(await answers(client, kind, message(b"a"), message(b"b"))) == count


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_of_the_tree_becomes_its_status(echo, kind):
    service, client, _ = echo
    service.before_answer = raising(errors.NotFound("no model x; there is demo"))
    error = await failure(client, kind, message())
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no model x; there is demo")


@pytest.mark.parametrize("kind", KINDS)
async def test_an_overload_carries_its_retry_hint(echo, kind):
    service, client, _ = echo
    service.before_answer = raising(errors.Overloaded("queue is full", retry_after_s=0.25))
    error = await failure(client, kind, message())
    assert dict(error.trailing_metadata()) == {"retry-after-ms": "250"}


@pytest.mark.parametrize("kind", KINDS)
async def test_anything_unexpected_is_internal_with_a_logged_trace(echo, kind, caplog):
    service, client, _ = echo
    service.before_answer = raising(ZeroDivisionError("secret"))
    error = await failure(client, kind, message())
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "ZeroDivisionError" in error.details()
    assert "secret" not in error.details()
    assert any(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records)


async def test_a_startup_error_inside_a_call_is_internal(echo, caplog):
    service, client, _ = echo
    service.before_answer = raising(errors.StartupError("no package"))
    assert (await failure(client, "unary", message())).code() is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("kind", KINDS)
async def test_bytes_that_are_no_message_are_an_invalid_argument(echo, kind, caplog):
    _, client, channel = echo
    name = {"unary": "unary_unary", "gathering": "stream_unary", "talking": "stream_stream"}.get(kind, "unary_stream")
    setattr(client, kind, getattr(channel, name)(f"/{NAME}/{kind.capitalize()}"))
    error = await failure(client, kind, b"\xff\xff\xff")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "malformed message" in error.details()
    assert "moe.tensor.v1.Tensor" in error.details()
    assert not caplog.records


@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_over_the_limit_is_refused_with_both_sizes(echo, kind):
    _, client, _ = echo
    error = await failure(client, kind, message(bytes(5000)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "(5003 vs. 4096)" in error.details()


async def test_the_server_goes_on_after_every_kind_of_failure(echo, caplog):
    service, client, _ = echo
    for error in (ValueError("x"), errors.Unavailable("y"), AssertionError()):
        service.before_answer = raising(error)
        await failure(client, "talking", message())
    service.before_answer = lambda _: None
    assert await answers(client, "unary", message(b"still")) == [message(b"still")]


async def test_an_unknown_method_is_unimplemented(echo):
    _, client, channel = echo
    client.unary = channel.unary_unary(f"/{NAME}/Nothing")
    assert (await failure(client, "unary", b"")).code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_that_the_client_cancels_runs_its_finally_at_once(echo):
    service, client, _ = echo
    call = client.talking()
    await call.write(message())
    await call.read()
    call.cancel()
    async with asyncio.timeout(10):
        await service.ended.wait()


async def test_a_cancelled_call_is_no_error_in_the_log(echo, caplog):
    service, client, _ = echo
    caplog.set_level(logging.WARNING)
    call = client.waiting(message())
    await service.held.wait()
    call.cancel()
    async with asyncio.timeout(10):
        await service.ended.wait()
    assert not caplog.records


async def test_a_stream_whose_answer_cannot_be_written_runs_its_finally_before_the_call_is_over():
    ended = []

    async def answer():
        try:
            yield message()
        finally:
            ended.append(True)

    class Gone:
        """The context of a client that is gone."""

        async def write(self, _):
            raise ConnectionError

    answering = answer()
    with pytest.raises(ConnectionError):
        await pump(answering, Gone())
    assert ended == [True]


async def test_random_bytes_at_the_port_do_not_disturb_others(echo, tmp_path):
    _, client, _ = echo
    reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/s.sock")
    writer.write(bytes(range(256)) * 64)
    await writer.drain()
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionResetError):
            await reader.read(-1)
    writer.close()
    assert await answers(client, "unary", message(b"fine")) == [message(b"fine")]


@pytest.mark.parametrize("text", ["half a character \udc80", "\ud800", "line\nbreak", "\x00", "ünïcödé"])
async def test_any_text_can_be_a_status_message(echo, text):
    service, client, _ = echo
    service.before_answer = raising(errors.InvalidRequest(text, field="prompt"))
    error = await failure(client, "unary", message())
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, printable(f"prompt: {text}"))


@pytest.mark.parametrize("character", ["a", "%", "ä", "字", "\ud800"])
async def test_a_long_message_is_cut_so_that_it_fits_a_header(echo, character):
    service, client, _ = echo
    service.before_answer = raising(errors.InvalidRequest(character * 100_000))
    error = await failure(client, "unary", message())
    assert (error.code(), error.details()[-1]) == (grpc.StatusCode.INVALID_ARGUMENT, "…")


def test_a_message_is_cut_at_4096_bytes_as_they_travel():
    assert printable("a" * 4096) == "a" * 4096
    assert printable("a" * 4097) == "a" * 4087 + "…"
    assert printable("ä" * 1000) == "ä" * 681 + "…"
