"""What waits for a peer that reads slowly, or not at all."""

import asyncio

import pytest
from moe.wire.grpcio.outbox import Outbox


async def test_messages_are_written_in_order() -> None:
    outbox: Outbox[int] = Outbox(10_000)
    written: list[int] = []

    async def write(message: int) -> None:
        written.append(message)

    for number in range(5):
        outbox.put(number, 10)
    pump = asyncio.create_task(outbox.pump(write))
    await outbox.wait_below(0)
    pump.cancel()
    assert written == [0, 1, 2, 3, 4]


async def test_the_bound_turns_messages_away() -> None:
    outbox: Outbox[int] = Outbox(1000)
    assert [outbox.put(number, 400) for number in range(3)] == [True, False, False]


async def test_a_message_larger_than_the_bound_goes_when_nothing_waits() -> None:
    outbox: Outbox[int] = Outbox(1000)
    assert outbox.put(0, 5000)


async def test_empty_messages_are_not_free() -> None:
    outbox: Outbox[int] = Outbox(1000)
    assert sum(outbox.put(number, 0) for number in range(100)) < 10


async def test_done_is_told_when_a_message_was_written() -> None:
    outbox: Outbox[int] = Outbox(1000)
    done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    outbox.put(0, 1, done.set_result)
    pump = asyncio.create_task(outbox.pump(lambda message: asyncio.sleep(0)))
    assert await done
    pump.cancel()


async def test_done_is_told_when_a_message_will_never_be_written() -> None:
    outbox: Outbox[int] = Outbox(1000)
    told: list[bool] = []
    outbox.put(0, 1, told.append)
    outbox.clear()
    assert (told, outbox.nbytes) == ([False], 0)


async def test_a_failing_write_ends_the_pump() -> None:
    outbox: Outbox[int] = Outbox(1000)

    async def write(message: int) -> None:
        raise ConnectionError("the peer is gone")

    outbox.put(0, 1)
    with pytest.raises(ConnectionError):
        await outbox.pump(write)
