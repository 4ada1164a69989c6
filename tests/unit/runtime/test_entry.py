"""How a program ends, run as a program."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from moe.runtime.entry import run_main
from moe.runtime.errors import StartupError
from support.ports import unix_address

PROGRAM = """
import sys
from dataclasses import dataclass
from moe.runtime.program import run_program
from moe.runtime.server import ServerSettings
from moe.runtime.settings import setting
from moe.runtime.telemetry import TelemetrySettings
from support.echo_service import Echo

@dataclass(frozen=True)
class Settings:
    server: ServerSettings
    telemetry: TelemetrySettings
    name: str = setting("echo-0", help="Of the process.")
    threads: int = setting(1, help="To compute with.")

sys.exit(run_program(Settings, lambda settings: Echo().service(), None, prog="moe.echo", description="Echoes."))
"""


def program(*argv):
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, *argv],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **paths},
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_program_serves_until_a_signal_and_leaves_no_socket(tmp_path, number, code):
    with program("--listen", unix_address(tmp_path)) as process:
        first = process.stderr.readline()
        process.send_signal(number)
        rest = process.communicate(timeout=60)[1]
    assert f"echo-0 listens on {unix_address(tmp_path)}" in first
    assert (process.returncode, list(tmp_path.iterdir())) == (code, [])
    assert "Traceback" not in rest


MISCONFIGURED = {
    "nothing given": ([], "error: missing --listen"),
    "a bad address": (["--listen", "nowhere"], "error: cannot listen on 'nowhere'"),
    "a port out of reach": (
        ["--listen", "192.0.2.1:50051"],
        "error: cannot listen on 192.0.2.1:50051: Cannot assign requested address",
    ),
    "a host without an address": (["--listen", "no.invalid:1"], "error: cannot listen on no.invalid:1: "),
    "an unknown flag": (["--listen", "unix:/x", "--drain-timeout", "3"], "error: unknown argument --drain-timeout"),
}


@pytest.mark.parametrize(("argv", "text"), MISCONFIGURED.values(), ids=MISCONFIGURED)
def test_a_bad_configuration_is_one_line_on_stderr_and_exit_code_2(argv, text):
    with program(*argv) as process:
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert errors.splitlines()[-1].startswith(text)
    assert "Traceback" not in errors


def test_a_port_in_use_is_named_with_the_reason():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with program("--listen", address) as process:
            errors = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert errors.splitlines()[-1].startswith(f"error: cannot listen on {address}: Address already in use")


def failing(error):
    def body():
        raise error

    return body


ENDS = [(StartupError("no"), 2), (KeyboardInterrupt(), 130), (ZeroDivisionError(), 1)]


@pytest.mark.parametrize(("error", "code"), ENDS, ids=lambda value: type(value).__name__)
def test_each_end_has_its_exit_code(error, code, caplog, capsys):
    assert run_main(failing(error)) == code


def test_asking_for_help_is_no_error():
    with pytest.raises(SystemExit):
        run_main(failing(SystemExit(0)))
