"""A serving loop that hangs is told from one that waits and from one that computes, and health says so."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from moe.runtime.progress import COMPUTING_S, LONGEST_TURNS, Progress
from moe.runtime.server import STARTED
from support.running_service import NOT_SERVING, SERVING, Running

HANG_S = 60.0


class Loop:
    """A loop in a thread of its own: each turn does what it is given, at least a wait for more."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._work: list[Callable[[], None]] = []
        self._over = threading.Event()
        self.turns = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def give(self, work: Callable[[], None]) -> None:
        self._work.append(work)

    def turn(self) -> None:
        """Returns once the loop has come round twice more."""
        wanted = self.turns + 2
        while self.turns < wanted:
            threading.Event().wait(0.001)

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        self._progress.begin()
        while not self._over.wait(0.001):
            if self._work:
                self._work.pop()()
            self.turns += 1
            self._progress.beat()
        self._progress.end()


class Times:
    """A clock that a test moves, beside the real processor time of threads."""

    now = 0.0

    def clock(self) -> float:
        return self.now


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
def progress(times: Times) -> Progress:
    return Progress(HANG_S, clock=times.clock)


@pytest.fixture
def loop(progress: Progress) -> Iterator[Loop]:
    running = Loop(progress)
    running.turn()
    yield running
    running.end()


def entered(loop: Loop, work: Callable[[], None]) -> None:
    """Gives the loop work, and returns once it is at it."""
    at_it = threading.Event()

    def both() -> None:
        at_it.set()
        work()

    loop.give(both)
    assert at_it.wait(30)


def test_a_loop_that_waits_for_work_is_not_stuck_however_long(progress: Progress, times: Times, loop: Loop) -> None:
    for _ in range(3):
        assert progress.stuck() == ""
        times.now += 10 * HANG_S
        loop.turn()


def test_a_loop_that_hangs_is_stuck_after_its_time_and_says_where(progress: Progress, times: Times, loop: Loop) -> None:
    release = threading.Event()
    entered(loop, release.wait)
    progress.stuck()
    times.now += HANG_S - 1
    before = progress.stuck()
    times.now += 1
    after, where = progress.stuck(), progress.where()
    release.set()
    loop.turn()

    assert before == ""
    assert "has not come round for 60 s" in after
    assert "self._work.pop()()" in where
    assert progress.stuck() == ""


def test_a_long_computation_is_no_hang_until_no_turn_could_take_so_long(
    progress: Progress, times: Times, loop: Loop
) -> None:
    over, used = threading.Event(), threading.Event()

    def compute() -> None:
        began = time.thread_time()
        while not over.is_set():
            if time.thread_time() - began > 2 * COMPUTING_S:
                used.set()

    entered(loop, compute)
    progress.stuck()
    assert used.wait(120)
    times.now += (LONGEST_TURNS - 1) * HANG_S
    computing = progress.stuck()
    times.now += HANG_S
    caught = progress.stuck()
    over.set()

    assert computing == ""
    assert caught != ""


def test_what_has_not_begun_or_has_ended_is_not_watched(times: Times) -> None:
    progress = Progress(HANG_S, clock=times.clock)
    progress.stuck()
    times.now += 2 * HANG_S
    assert progress.stuck() == ""
    running = Loop(progress)
    running.turn()
    progress.stuck()
    running.end()
    times.now += 2 * HANG_S
    assert progress.stuck() == ""


async def test_a_hung_thread_turns_health_and_liveness_and_its_return_turns_them_back(
    tmp_path, caplog: pytest.LogCaptureFixture
) -> None:
    progress, release = Progress(1.0), threading.Event()
    loop = Loop(progress)
    async with Running(tmp_path, progress=progress) as running:
        await running.until(SERVING, STARTED)
        await asyncio.to_thread(entered, loop, release.wait)
        await running.until(NOT_SERVING, STARTED)
        await running.until(NOT_SERVING)
        release.set()
        await running.until(SERVING, STARTED)
        await running.until(SERVING)
    loop.end()
    assert "hangs: the serving loop has not come round" in caplog.text
    assert "self._work.pop()()" in caplog.text
