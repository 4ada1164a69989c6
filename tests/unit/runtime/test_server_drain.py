"""A server from serving to ended: signals, calls in flight, and what is cut off."""

import asyncio
import os
import signal
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2
from moe.api.control.v1 import control_pb2
from moe.runtime.errors import StartupError
from support.echo_service import NAME, message
from support.running_service import NOT_SERVING, SERVING, Running


async def test_a_drain_call_returns_at_once_and_the_process_ends(tmp_path):
    async with Running(tmp_path) as running:
        await running.control.Drain(control_pb2.DrainRequest(), wait_for_ready=True)
        assert await running.exit_code() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_a_signal_drains_and_decides_the_exit_code(tmp_path, number, code):
    async with Running(tmp_path) as running:
        await running.until(SERVING)
        os.kill(os.getpid(), number)
        assert await running.exit_code() == code


async def test_a_call_in_flight_is_answered_before_the_process_ends(tmp_path):
    async with Running(tmp_path) as running:
        await running.until(SERVING)
        call = running.client.waiting(message(b"in flight"))
        await running.echo.held.wait()
        running.lifecycle.drain()
        await running.until(NOT_SERVING)
        running.echo.hold.set()
        assert await call == message(b"in flight")
        assert await running.exit_code() == 0


async def test_a_new_call_while_draining_is_unavailable_and_names_the_process(tmp_path):
    async with Running(tmp_path) as running:
        await running.until(SERVING)
        call = running.client.waiting(message())
        await running.echo.held.wait()
        running.lifecycle.drain()
        await running.until(NOT_SERVING)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.client.unary(message())
        running.echo.hold.set()
        await call
    assert (caught.value.code(), "echo-0 is draining" in caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, True)


async def test_stats_still_answer_while_draining(tmp_path):
    async with Running(tmp_path) as running:
        await running.until(SERVING)
        call = running.client.waiting(message())
        await running.echo.held.wait()
        running.lifecycle.drain()
        await running.until(NOT_SERVING)
        assert (await running.control.Stats(control_pb2.StatsRequest())).name == "echo-0"
        running.echo.hold.set()
        await call


async def test_on_drain_ends_streams_that_never_end_by_themselves(tmp_path):
    calls = []

    async def hang_up():
        for call in calls:
            await call.done_writing()

    async with Running(tmp_path, on_drain=hang_up) as running:
        await running.until(SERVING)
        call = running.client.talking()
        await call.write(message())
        await call.read()
        calls.append(call)
        began = time.monotonic()
        running.lifecycle.drain()
        code = await running.exit_code()
        assert (code, running.echo.ended.is_set(), await call.code()) == (0, True, grpc.StatusCode.OK)
        assert time.monotonic() - began < 15


async def test_what_does_not_finish_in_time_is_cut_off_and_logged(tmp_path, caplog):
    async with Running(tmp_path, drain_timeout_s=0.2) as running:
        await running.until(SERVING)
        call = running.client.talking()
        await call.write(message())
        await call.read()
        running.lifecycle.drain()
        code = await running.exit_code()
        assert (code, await call.code()) == (0, grpc.StatusCode.UNAVAILABLE)
        assert running.echo.ended.is_set()
    assert f"cuts off /{NAME}/Talking" in caplog.text


async def test_a_drain_hook_that_hangs_is_cut_off(tmp_path, caplog):
    async with Running(tmp_path, drain_timeout_s=0.2, on_drain=asyncio.Event().wait) as running:
        await running.until(SERVING)
        running.lifecycle.drain()
        assert await running.exit_code() == 0
    assert "on_drain did not finish in time" in caplog.text


async def test_a_drain_hook_that_fails_is_logged_and_the_drain_goes_on(tmp_path, caplog):
    async def fail():
        raise ZeroDivisionError

    async with Running(tmp_path, on_drain=fail) as running:
        await running.until(SERVING)
        running.lifecycle.drain()
        assert await running.exit_code() == 0
    assert "on_drain failed" in caplog.text


async def test_a_second_signal_cuts_the_waiting_short(tmp_path, caplog):
    async with Running(tmp_path, drain_timeout_s=3600.0) as running:
        await running.until(SERVING)
        call = running.client.waiting(message())
        await running.echo.held.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await running.until(NOT_SERVING)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running.exit_code() == 0
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_health_watch_sees_the_drain_and_does_not_hold_it_up(tmp_path, monkeypatch):
    monkeypatch.setattr("moe.runtime.server._LAST_WRITES_S", 3600.0)
    async with Running(tmp_path) as running:
        await running.until(SERVING)
        watch = running.health.Watch(health_pb2.HealthCheckRequest())
        first = (await watch.read()).status
        running.lifecycle.drain()
        second = (await watch.read()).status
        await running.exit_code()
        assert (first, second) == (SERVING, NOT_SERVING)


async def test_the_last_hook_runs_however_the_process_ends(tmp_path, caplog):
    ended = []

    async def note():
        ended.append(True)

    async def refuse():
        raise StartupError("no")

    async with Running(tmp_path, startup=refuse, on_stop=note) as running:
        with pytest.raises(StartupError):
            await running.exit_code()
    assert ended == [True]
