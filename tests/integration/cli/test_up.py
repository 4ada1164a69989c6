"""`moe up` with the real parts on a tiny random Mixtral: what comes up, what comes back, what is left at the end."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest
from support.families import write_package
from support.moe_up import MOE, PATIENCE_S, MoeUp, environment, moe

GENERATE = ("generate", "--tokens", "1 2 3 4 5", "--max-tokens", "8", "--temperature", "0", "--ignore-eos", "--json")
GREEDY = (*GENERATE, "--timeout", "60")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return write_package("mixtral", tmp_path_factory.mktemp("packages") / "tiny")


@pytest.fixture(scope="module")
def runtime():
    folder = Path(tempfile.mkdtemp(prefix="moe-", dir="/tmp"))  # short enough for a unix socket
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def start(runtime, package):
    """Starts `moe up` of the tiny package; ends it after the test."""
    started = []

    def start(*argv, what=package):
        started.append(MoeUp(runtime, str(what), *argv))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture(scope="module")
def shared(runtime, package):
    """One deployment for the tests that leave it as it is."""
    up = MoeUp(runtime, str(package), "--name", "shared").up()
    yield up
    up.close()


def tokens(runtime, *argv):
    lines = [json.loads(line) for line in moe(runtime, *GREEDY, *argv).stdout.splitlines()]
    return [token["id"] for line in lines if "tokens" in line for token in line["tokens"]]


def test_it_answers(runtime, shared):
    assert len(tokens(runtime, "--name", "shared")) == 8


def test_the_answer_says_which_experts_worked(runtime, shared):
    final = json.loads(moe(runtime, *GREEDY, "--name", "shared").stdout.splitlines()[-1])["final"]
    assert sum(each["share"] for each in final["experts"]) == pytest.approx(1.0)


def test_status_shows_every_process_ready(runtime, shared):
    (deployment,) = json.loads(moe(runtime, "status", "--json", "--name", "shared").stdout)
    states = {process["name"]: process["state"] for process in deployment["processes"]}
    assert set(states.values()) == {"ready"}


def test_status_knows_the_memory_of_every_process(runtime, shared):
    (deployment,) = json.loads(moe(runtime, "status", "--json", "--name", "shared").stdout)
    assert all(process["resident_bytes"] > 1e6 for process in deployment["processes"])


def test_status_in_a_pipe_is_plain_text(runtime, shared):
    assert "\x1b" not in moe(runtime, "status").stdout


def test_every_expert_is_a_process_of_its_own_below_the_fork_server(shared):
    parents = {psutil.Process(pid).ppid() for pid in {shared.pid("tiny-000-0"), shared.pid("router-0")}}
    assert len(parents) == 1


def test_sockets_are_in_a_folder_that_only_their_owner_can_enter(runtime, shared):
    assert (runtime / "moe" / "shared").stat().st_mode & 0o777 == 0o700


def test_a_second_one_of_the_name_is_refused_by_name(runtime, shared, package):
    err = moe(runtime, "up", str(package), "--name", "shared", code=1).stderr
    assert err.startswith(f"error: shared is up already (pid {shared.process.pid}, router at unix:")


def test_a_killed_expert_is_started_again_and_answers_the_same(runtime, shared):
    before = tokens(runtime, "--name", "shared")
    shared.kill("tiny-001-0")
    assert tokens(runtime, "--name", "shared") == before


@pytest.mark.parametrize("name", ["agg-0", "router-0"])
def test_a_killed_aggregator_or_router_is_started_again_and_answers_the_same(runtime, shared, name):
    before = tokens(runtime, "--name", "shared")
    shared.kill(name)
    assert tokens(runtime, "--name", "shared") == before


@pytest.fixture(scope="module")
def interrupted(runtime, package):
    """A deployment that was ended by Ctrl-C, with the processes that it had."""
    up = MoeUp(runtime, str(package), "--name", "interrupted").up()
    family = up.family()
    code = up.interrupt()
    yield code, family, up.all_events()
    up.close()


def test_ctrl_c_exits_with_130(interrupted):
    assert interrupted[0] == 130


def test_ctrl_c_leaves_no_process(interrupted):
    assert [process for process in interrupted[1] if process.is_running()] == []


def test_ctrl_c_leaves_no_socket_and_no_folder(runtime, interrupted):
    assert list((runtime / "moe").glob("interrupted*")) == []


def test_ctrl_c_drains_the_router_before_the_rest(interrupted):
    stopped = [event["process"] for event in interrupted[2] if event["event"] == "stopped"]
    assert stopped[0] == "router-0"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_while_it_starts_ends_everything_too(runtime, start, number, code):
    up = start("--name", "early")
    up.until("starting", "router-0")
    os.kill(up.process.pid, number)
    assert (up.wait(), list((runtime / "moe").glob("early*"))) == (code, [])


def test_it_ends_when_nobody_reads_its_events_any_more(runtime, package):
    reader = "read line; exit"  # one event, then gone
    command = f"{' '.join(MOE)} up {package} --name unread --json | sh -c '{reader}'"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=environment(runtime), timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, list((runtime / "moe").glob("unread*"))) == (1, [])


@pytest.fixture(scope="module")
def killed(runtime, package):
    """The processes of a deployment whose supervisor was killed."""
    up = MoeUp(runtime, str(package), "--name", "killed").up()
    family = up.family()
    up.process.kill()
    up.close()
    return family


def test_when_it_is_killed_no_process_is_left(killed):
    assert psutil.wait_procs(killed, timeout=30)[1] == []


def test_after_it_was_killed_it_comes_up_again(runtime, killed, start):
    start("--name", "killed").up()
    assert len(tokens(runtime, "--name", "killed")) == 8


@pytest.mark.parametrize(
    "argv",
    [
        ("--aggregator", "embedded"),
        ("--aggregator", "sidecar", "--groups", "2"),
        ("--tcp", "--replicas-for", "tiny-000=2"),
        ("--deterministic", "--experts-per-group", "3"),
    ],
)
def test_every_layout_gives_the_same_tokens(runtime, shared, start, argv):
    start("--name", "other", *argv).up()
    assert tokens(runtime, "--name", "other") == tokens(runtime, "--name", "shared")


def test_a_damaged_package_is_refused_with_its_file_and_exit_code_2(start, package, tmp_path):
    damaged = shutil.copytree(package, tmp_path / "damaged")
    expert = damaged / "experts" / "expert-00001.safetensors"
    content = bytearray(expert.read_bytes())
    content[-1] ^= 1
    expert.write_bytes(content)
    up = start(what=damaged)
    assert (up.wait(), str(expert) in up.stderr()) == (2, True)
