"""A server from nothing to serving: readiness, what every server answers, and its address."""

import asyncio

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from moe.api.control.v1 import control_pb2
from moe.runtime.errors import StartupError
from moe.runtime.server import STARTED
from support.echo_service import NAME, message
from support.ports import free_address, unix_address
from support.running_service import NOT_SERVING, SERVING, Running


@pytest.mark.parametrize("name", ["", NAME])
async def test_a_service_is_serving_once_its_start_up_is_done(tmp_path, name):
    done = asyncio.Event()
    async with Running(tmp_path, startup=done.wait) as running:
        before = await running.status(name)
        done.set()
        await running.until(SERVING, name)
        assert before == NOT_SERVING


async def test_a_service_that_speaks_for_itself_is_ready_when_it_says_so_and_may_take_it_back(tmp_path):
    async with Running(tmp_path, ready_after_startup=False) as running:
        assert await running.status() == NOT_SERVING
        await asyncio.to_thread(running.lifecycle.set_ready, True)
        await running.until(SERVING)
        await asyncio.to_thread(running.lifecycle.set_ready, False)
        await running.until(NOT_SERVING)


async def test_a_service_that_waits_for_others_says_that_it_has_started(tmp_path):
    done = asyncio.Event()
    async with Running(tmp_path, startup=done.wait, ready_after_startup=False) as running:
        before = await running.status(STARTED)
        done.set()
        await running.until(SERVING, STARTED)
        assert (before, await running.status()) == (NOT_SERVING, NOT_SERVING)


async def test_health_of_an_unknown_service_is_not_found(tmp_path):
    async with Running(tmp_path) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.status("moe.nothing.v1.Nothing")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_start_up_that_is_refused_ends_the_process_with_its_error(tmp_path):
    async def refuse():
        raise StartupError("file experts/expert-00003.safetensors: sha256 differs")

    async with Running(tmp_path, startup=refuse) as running:
        with pytest.raises(StartupError, match="expert-00003"):
            await running.exit_code()


async def test_a_start_up_that_breaks_ends_the_process_with_exit_code_1(tmp_path, caplog):
    async def break_down():
        raise ZeroDivisionError

    async with Running(tmp_path, startup=break_down) as running:
        assert await running.exit_code() == 1


async def test_a_drain_during_a_long_start_up_ends_it(tmp_path):
    never = asyncio.Event()
    async with Running(tmp_path, startup=never.wait) as running:
        await running.status()
        running.lifecycle.drain()
        assert await running.exit_code() == 0


async def test_a_failure_of_a_part_ends_the_process_with_exit_code_1(tmp_path, caplog):
    async with Running(tmp_path) as running:
        await running.until(SERVING)
        await asyncio.to_thread(running.lifecycle.fail, RuntimeError("engine thread died"))
        assert await running.exit_code() == 1
    assert "engine thread died" in caplog.text


async def test_reflection_lists_the_service_and_the_standard_ones(tmp_path):
    async with Running(tmp_path) as running:
        await running.status()
        stub = reflection_pb2_grpc.ServerReflectionStub(running.channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = {service.name for answer in [await call.read()] for service in answer.list_services_response.service}
        call.cancel()
    assert names == {
        NAME,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "moe.control.v1.ControlService",
    }


async def test_reflection_describes_the_control_service(tmp_path):
    async with Running(tmp_path) as running:
        await running.status()
        stub = reflection_pb2_grpc.ServerReflectionStub(running.channel)
        symbol = "moe.control.v1.ControlService"
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)]))
        answer = await call.read()
        call.cancel()
    assert answer.file_descriptor_response.file_descriptor_proto


async def test_describe_adds_version_and_instance_to_what_the_service_says(tmp_path):
    async with Running(tmp_path, instance="0123") as running:
        answer = await running.control.Describe(control_pb2.DescribeRequest(), wait_for_ready=True)
    assert (answer.name, answer.role, answer.instance) == ("echo-0", control_pb2.ROLE_EXPERT, "0123")
    assert answer.version


async def test_stats_add_uptime_and_memory(tmp_path):
    async with Running(tmp_path) as running:
        answer = await running.control.Stats(control_pb2.StatsRequest(), wait_for_ready=True)
    assert 0 < answer.uptime_s < 60
    assert 1e6 < answer.resident_bytes < 1e11


async def test_the_socket_file_is_there_while_serving_and_gone_afterwards(tmp_path):
    path = tmp_path / "s.sock"
    async with Running(tmp_path) as running:
        await running.status()
        there = path.exists()
        running.lifecycle.drain()
        await running.exit_code()
    assert (there, path.exists()) == (True, False)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_a_second_server_on_the_same_address_is_refused_and_the_first_goes_on(tmp_path, kind):
    listen = unix_address(tmp_path) if kind == "unix" else free_address()
    async with Running(tmp_path, listen=listen) as first:
        await first.until(SERVING)
        async with Running(tmp_path, listen=listen) as second:
            with pytest.raises(StartupError) as caught:
                await second.exit_code()
        assert listen in caught.value.message
        assert await first.client.unary(message(b"mine")) == message(b"mine")
