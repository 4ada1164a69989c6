"""The supervisor with a real fork server and real processes; only the parts are stand-ins (support/fake_part.py)."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest
from moe.cli.supervise import state_file
from moe.cli.supervise.deployment import Deployment
from moe.cli.supervise.lifecycle import Rules, State
from moe.cli.supervise.spec import ProcessSpec, Role
from moe.cli.supervise.supervisor import Supervisor

TESTS = Path(__file__).parents[2]
MODULE = "support.fake_part"
ROLES = {"router": Role.ROUTER, "agg": Role.AGGREGATOR}


def spec(folder, name, *flags):
    endpoint = f"unix:{folder}/{name}.sock"
    argv = ("--name", name, "--listen", endpoint, "--trace", f"{folder}/trace", *flags)
    if name in ROLES:
        return ProcessSpec(name, ROLES[name], MODULE, argv, endpoint)
    return ProcessSpec(name, Role.EXPERT, MODULE, argv, endpoint, group=f"group-{name}", experts=(0,))


def deployment(folder, *specs, modules=(MODULE,), ready_timeout_s=60.0, **rules):
    return Deployment(
        name="demo",
        model="demo",
        package="/none",
        address=specs[-1].endpoint,
        specs=specs,
        modules=modules,
        environ={**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
        rules=Rules(**{"restart_delay": lambda failures: 0.05, "drain_timeout_s": 10.0, **rules}),
        ready_timeout_s=ready_timeout_s,
        folder=folder,
        logs=folder,
        directory=folder / "directory.json",
    )


class Running:
    """A supervisor that runs beside the test."""

    def __init__(self, what):
        self.notices = []
        self.deaf = None
        self.supervisor = Supervisor(what, self.notify)
        self.task = asyncio.create_task(self.supervisor.run())

    def notify(self, notice):
        if self.deaf is not None:
            raise self.deaf
        self.notices.append(notice)

    def pid(self, name):
        return self.supervisor.fleet.processes[name].pid

    def state(self, name):
        return self.supervisor.fleet.processes[name].state

    def events(self, name=""):
        return [notice.event for notice in self.notices if notice.process == name]

    async def until(self, condition, timeout_s=60.0):
        async with asyncio.timeout(timeout_s):
            while not condition():
                if self.task.done():
                    raise AssertionError(f"ended with {self.task.result()}")
                await asyncio.sleep(0.02)

    async def up(self):
        await self.until(lambda: "up" in self.events())
        return self

    async def end(self):
        self.supervisor.stop()
        return await asyncio.wait_for(self.task, 60)


@pytest.fixture
def folder():
    short = Path(f"/tmp/moe-test-{os.getpid()}-{time.monotonic_ns() % 1_000_000}")
    short.mkdir(mode=0o700)
    yield short
    for path in short.iterdir():
        path.unlink()
    short.rmdir()


@contextlib.asynccontextmanager
async def running(what):
    run = Running(what)
    try:
        yield run
    finally:
        if not run.task.done():
            run.supervisor.stop()
            run.supervisor.stop()
            await asyncio.wait_for(run.task, 60)


async def test_it_is_up_when_every_process_answers_its_health_check(folder):
    async with running(deployment(folder, spec(folder, "e0"), spec(folder, "router"))) as run:
        await run.up()
        assert {run.state("e0"), run.state("router")} == {State.READY}


async def test_outputs_go_to_one_log_each(folder):
    async with running(deployment(folder, spec(folder, "e0"), spec(folder, "router"))) as run:
        await run.up()
        assert (folder / "e0.log").read_text() == "part e0 speaks\n"


async def test_the_directory_says_who_is_ready(folder):
    async with running(deployment(folder, spec(folder, "e0"), spec(folder, "router"))) as run:
        await run.up()
        (replica,) = json.loads((folder / "directory.json").read_text())["experts"]
        assert (replica["name"], replica["endpoint"], replica["ready"]) == ("e0", f"unix:{folder}/e0.sock", True)


async def test_the_state_file_says_what_runs(folder):
    async with running(deployment(folder, spec(folder, "e0"), spec(folder, "router"))) as run:
        await run.up()
        record = state_file.read(folder)
        assert [(process.name, process.pid) for process in record.processes] == [
            ("e0", run.pid("e0")),
            ("router", run.pid("router")),
        ]


async def test_a_killed_process_is_started_again(folder):
    async with running(deployment(folder, spec(folder, "e0"), spec(folder, "router"))) as run:
        first = (await run.up()).pid("e0")
        os.kill(first, signal.SIGKILL)
        await run.until(lambda: run.events("e0").count("ready") == 2)
        assert run.pid("e0") not in (first, None)


async def test_the_directory_takes_a_killed_expert_out_before_it_is_back(folder):
    what = deployment(folder, spec(folder, "e0"), spec(folder, "router"), restart_delay=lambda failures: 3600.0)
    async with running(what) as run:
        await run.up()
        os.kill(run.pid("e0"), signal.SIGKILL)
        await run.until(lambda: not json.loads((folder / "directory.json").read_text())["experts"][0]["ready"])
        assert run.state("e0") is State.WAITING


async def test_a_crash_loop_ends_the_start_with_the_last_lines_of_its_log(folder):
    (folder / "trouble").touch()
    crashing = spec(folder, "e0", "--exit-while", f"{folder}/trouble")
    async with running(deployment(folder, crashing, spec(folder, "router"))) as run:
        failure = await asyncio.wait_for(run.task, 60)
        assert (failure.reason, failure.log[-1]) == (
            "e0 ended 5 times before it was ready (exit code 1)",
            "the file is still there",
        )


async def test_a_process_recovers_when_what_made_it_crash_is_gone(folder):
    trouble = folder / "trouble"
    trouble.touch()
    crashing = spec(folder, "e0", "--exit-while", str(trouble))
    async with running(deployment(folder, crashing, spec(folder, "router"))) as run:
        await run.until(lambda: "waiting" in run.events("e0"))
        trouble.unlink()
        await run.up()
        assert run.state("e0") is State.READY


async def test_a_bad_configuration_ends_the_start_at_once(folder):
    async with running(deployment(folder, spec(folder, "e0", "--exit", "2"), spec(folder, "router"))) as run:
        failure = await asyncio.wait_for(run.task, 60)
        assert (failure.bad_configuration, run.events("e0").count("starting")) == (True, 1)


async def test_a_process_that_never_gets_ready_is_named(folder):
    what = deployment(folder, spec(folder, "e0", "--deaf"), spec(folder, "router"), ready_timeout_s=3)
    async with running(what) as run:
        assert (await asyncio.wait_for(run.task, 60)).reason == "not ready within 3 s: e0"


async def test_a_module_that_can_not_be_imported_is_named(folder):
    what = deployment(folder, spec(folder, "router"), modules=("support.absent",))
    async with running(what) as run:
        failure = await asyncio.wait_for(run.task, 60)
        assert "importing support.absent failed: ModuleNotFoundError" in failure.reason


async def test_the_router_ends_before_the_rest(folder):
    async with running(deployment(folder, *(spec(folder, name) for name in ("e0", "agg", "router")))) as run:
        await run.up()
        await run.end()
        ends = [line for line in (folder / "trace").read_text().splitlines() if line.startswith("term")]
        assert ends[0] == "term router"


async def test_nothing_runs_and_no_socket_is_left_at_the_end(folder):
    async with running(deployment(folder, spec(folder, "e0"), spec(folder, "router"))) as run:
        pids = [(await run.up()).pid(name) for name in ("e0", "router")]
        await run.end()
        assert ([psutil.pid_exists(pid) for pid in pids], list(folder.glob("*.sock"))) == ([False, False], [])


async def test_a_process_that_does_not_drain_is_killed(folder):
    what = deployment(folder, spec(folder, "e0", "--stubborn"), spec(folder, "router"), drain_timeout_s=0.5)
    async with running(what) as run:
        pid = (await run.up()).pid("e0")
        await run.end()
        assert not psutil.pid_exists(pid)


async def test_a_second_stop_does_not_wait_for_the_first(folder):
    what = deployment(folder, spec(folder, "e0"), spec(folder, "router", "--stubborn"), drain_timeout_s=3600.0)
    async with running(what) as run:
        await run.up()
        run.supervisor.stop()
        run.supervisor.stop()
        assert await asyncio.wait_for(run.task, 60) is None


async def test_stop_works_when_nothing_can_be_said(folder):
    async with running(deployment(folder, spec(folder, "e0"), spec(folder, "router"))) as run:
        (await run.up()).deaf = BrokenPipeError()
        assert await run.end() is None


async def test_it_drains_when_nobody_hears_it_any_more(folder):
    async with running(deployment(folder, spec(folder, "e0"), spec(folder, "router"))) as run:
        pid = (await run.up()).pid("e0")
        run.deaf = BrokenPipeError()
        os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(run.task, 60)
        assert run.supervisor.unheard


async def test_a_full_disk_behind_its_output_ends_nothing(folder):
    async with running(deployment(folder, spec(folder, "e0"), spec(folder, "router"))) as run:
        pid = (await run.up()).pid("e0")
        run.deaf = OSError(28, "No space left on device")
        os.kill(pid, signal.SIGKILL)
        await run.until(lambda: run.pid("e0") not in (pid, None) and run.state("e0") is State.READY)
        assert not run.supervisor.fleet.stopping


async def test_stop_before_anything_was_forked_ends_it(folder):
    async with running(deployment(folder, spec(folder, "e0"), spec(folder, "router"))) as run:
        await run.until(lambda: "starting" in run.events("e0"))
        await run.end()
        assert {run.state("e0"), run.state("router")} == {State.STOPPED}


async def test_everything_comes_back_when_the_fork_server_is_killed(folder):
    async with running(deployment(folder, spec(folder, "e0"), spec(folder, "router"))) as run:
        parent = psutil.Process((await run.up()).pid("e0")).ppid()
        os.kill(parent, signal.SIGKILL)
        await run.until(lambda: run.events("e0").count("ready") == run.events("router").count("ready") == 2)
        assert psutil.Process(run.pid("e0")).ppid() not in (parent, 1)


async def test_a_process_that_hangs_is_killed_and_started_again(folder):
    what = deployment(folder, spec(folder, "e0"), spec(folder, "router"), hang_timeout_s=0.5)
    async with running(what) as run:
        pid = (await run.up()).pid("e0")
        os.kill(pid, signal.SIGSTOP)
        await run.until(lambda: run.events("e0").count("ready") == 2)
        assert run.pid("e0") != pid


async def test_no_process_outlives_a_supervisor_that_is_killed(folder):
    program = (
        "import asyncio, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from unit.cli.test_supervisor import deployment, spec, Supervisor\n"
        "folder = Path(sys.argv[1])\n"
        "what = deployment(folder, spec(folder, 'e0', '--stubborn'), spec(folder, 'router', '--stubborn'))\n"
        "async def main(): await Supervisor(what, lambda notice: print(notice.event, flush=True)).run()\n"
        "asyncio.run(main())\n"
    )
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(folder), str(TESTS), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        while (await supervisor.stdout.readline()).strip() != b"up":
            continue
    family = psutil.Process(supervisor.pid).children(recursive=True)
    supervisor.kill()
    await supervisor.wait()
    gone, alive = await asyncio.to_thread(psutil.wait_procs, family, 30)
    assert (len(gone), alive) == (3, [])


def test_the_fixture_s_folder_leaves_room_for_socket_names(folder):
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(f"{folder}/router.sock")
