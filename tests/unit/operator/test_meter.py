"""An expert's busy time is read off its real metrics page; a page that can't be one is refused in bounded time."""

import asyncio
import re
from contextlib import asynccontextmanager

import pytest
from moe.api.control.v1 import control_pb2
from moe.operator.meter import MeterError, page_meter
from moe.operator.naming import EXPERT_BUSY_METRIC
from moe.runtime.metrics import EXPERT_BUSY, FromStats, new_registry, serve_page
from moe.runtime.stats_metrics import reader
from support.ports import free_port

HOST = "127.0.0.1"


@asynccontextmanager
async def answering(raw, *, host=HOST):
    """A server that answers every request with those bytes, or never for None; its port."""
    over = asyncio.Event()

    async def serve(source, sink):
        await source.readuntil(b"\r\n\r\n")
        if raw is None:
            await over.wait()
        else:
            sink.write(raw)
            await sink.drain()
        sink.close()

    server = await asyncio.start_server(serve, host, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        over.set()


def page(body, status="200 OK", more=""):
    return f"HTTP/1.0 {status}\r\nContent-Type: text/plain\r\n{more}\r\n{body}".encode()


async def failure(raw, **more):
    async with answering(raw) as port, page_meter(port, **more) as meter:
        with pytest.raises(MeterError) as caught:
            await meter.busy_s(HOST)
    assert f"http://{HOST}:{port}/metrics: " in str(caught.value)
    return str(caught.value)


async def test_the_page_that_an_expert_serves_has_it():
    stats = control_pb2.StatsResponse(expert=control_pb2.ExpertStats(busy_s=12.75, rows=3))
    registry, port = new_registry(), free_port()
    registry.register(FromStats(reader(lambda: stats)))
    close = serve_page(registry, HOST, port)
    try:
        async with page_meter(port) as meter:
            assert await meter.busy_s(HOST) == 12.75
    finally:
        await asyncio.to_thread(close)


def test_the_metric_is_called_as_experts_call_it():
    assert EXPERT_BUSY_METRIC == EXPERT_BUSY


async def test_a_pod_may_have_an_address_of_either_family():
    async with answering(page(f"{EXPERT_BUSY_METRIC} 1.5\n"), host="::1") as port, page_meter(port) as meter:
        assert await meter.busy_s("::1") == 1.5


async def test_a_pod_that_takes_connections_and_never_answers_is_given_up():
    assert "TimeoutError" in await failure(None, answer_s=0.05)


async def test_a_port_that_nobody_has_is_said():
    async with page_meter(free_port()) as meter:
        with pytest.raises(MeterError, match=re.escape(HOST)):
            await meter.busy_s(HOST)


async def test_a_page_without_the_metric_is_no_experts():
    assert f"no {EXPERT_BUSY_METRIC}" in await failure(page("moe_router_steps_total 3.0\n"))


@pytest.mark.parametrize("number", ["NaN", "-1.0", "+Inf", "soon"])
async def test_what_is_no_time_is_refused(number):
    assert f"{number!r}; want seconds" in await failure(page(f"{EXPERT_BUSY_METRIC} {number}\n"))


@pytest.mark.parametrize("unit", ["x 1.0\n", "x"])
async def test_a_page_without_end_is_not_read_to_it(unit):
    assert "more than 262144 bytes" in await failure(page(unit * 1_000_000))


async def test_a_page_leads_nowhere_else():
    answered = page("", "302 Found", "Location: http://127.0.0.1:1/metrics\r\n")
    assert "HTTP 302" in await failure(answered)
