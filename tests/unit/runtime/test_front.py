"""The public address where something stands in front of the gRPC server."""

import socket
from pathlib import Path

import pytest
from moe.runtime import addresses
from moe.runtime.errors import StartupError
from moe.runtime.front import PrivateSocket, listen


def test_a_free_port_is_told_with_its_number() -> None:
    address, listener = listen(addresses.parse("127.0.0.1:0"))
    with listener:
        assert address.target == f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_port_in_use_is_named_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        target = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartupError, match=f"cannot listen on {target}: .*in use"):
            listen(addresses.parse(target))


def test_a_unix_socket_accepts_and_is_removed_again(tmp_path: Path) -> None:
    address, listener = listen(addresses.parse(f"unix:{tmp_path}/a.sock"))
    with listener, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(f"{tmp_path}/a.sock")
    addresses.remove(address)
    assert list(tmp_path.iterdir()) == []


def test_a_socket_file_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        _, listener = listen(addresses.parse(f"unix:{tmp_path}/a.sock"))
        listener.close()


def test_a_unix_socket_that_another_process_serves_is_left_alone(tmp_path: Path) -> None:
    _, listener = listen(addresses.parse(f"unix:{tmp_path}/a.sock"))
    with listener, pytest.raises(StartupError, match="another process serves there"):
        listen(addresses.parse(f"unix:{tmp_path}/a.sock"))


def test_nobody_else_may_reach_the_server_behind() -> None:
    behind = PrivateSocket()
    folder = Path(behind.target.removeprefix("unix:")).parent
    assert folder.stat().st_mode & 0o077 == 0
    behind.remove()
    assert not folder.exists()
