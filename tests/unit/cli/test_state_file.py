import dataclasses
import os
import subprocess
import sys

import pytest
from moe.cli.supervise import state_file
from moe.cli.supervise.state_file import DeploymentRecord, ProcessRecord

RECORD = DeploymentRecord(
    name="demo",
    model="demo",
    package="/m/demo",
    pid=os.getpid(),
    pid_started=state_file.own_start(),
    address="unix:/r/router.sock",
    up=True,
    processes=(ProcessRecord("demo-000-0", "expert", "ready", 41, 2, "unix:/r/e.sock", "demo-000", (0,)),),
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "demo").mkdir()
    return tmp_path / "demo"


def test_what_was_written_is_read_back(folder):
    state_file.write(folder, RECORD)
    assert state_file.read(folder) == RECORD


def test_every_running_deployment_is_found(folder):
    state_file.write(folder, RECORD)
    assert state_file.running(folder.parent) == [RECORD]


def test_a_deployment_whose_supervisor_is_gone_is_not_believed(folder):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    state_file.write(folder, dataclasses.replace(RECORD, pid=gone.pid))
    assert state_file.read(folder) is None


def test_a_pid_that_another_process_got_since_is_not_believed(folder):
    state_file.write(folder, dataclasses.replace(RECORD, pid=os.getppid(), pid_started=1.0))
    assert state_file.read(folder) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"name": "demo"}', "null", '{"processes": [1]}'])
def test_a_broken_file_is_no_deployment(folder, text):
    (folder / state_file.FILE_NAME).write_text(text)
    assert state_file.read(folder) is None
