"""Where a server may listen, and whose socket it may take."""

import contextlib
import os
import socket
import threading

import pytest
from moe.runtime import addresses
from moe.runtime.addresses import Address
from moe.runtime.errors import StartupError

TAKEN = ["127.0.0.1:0", "localhost:65535", "[::1]:50051", "unix:/run/moe/x.sock"]

REFUSED = {
    "": "want unix:/absolute/path or host:port",
    "localhost": "want unix:/absolute/path or host:port",
    ":50051": "want unix:/absolute/path or host:port",
    "localhost:": "want unix:/absolute/path or host:port",
    "localhost:http": "want unix:/absolute/path or host:port",
    "localhost:65536": "want unix:/absolute/path or host:port",
    "localhost:-1": "want unix:/absolute/path or host:port",
    "localhost:٣": "want unix:/absolute/path or host:port",
    "http://localhost:80": "want unix:/absolute/path or host:port",
    "::1:50051": r"an IPv6 host stands in brackets, \[::1\]:50051",
    "unix:relative.sock": "has to be absolute",
    "unix:///run/x.sock": "has to be absolute",
    "unix:": "has to be absolute",
    "unix:/" + "x" * 107: "the path has 108 bytes, 107 is the most",
}


@pytest.mark.parametrize("text", TAKEN)
def test_an_address_is_taken_as_it_is(text):
    assert addresses.parse(text).target == text


@pytest.mark.parametrize(("text", "reason"), REFUSED.items(), ids=REFUSED)
def test_anything_else_is_refused_by_name(text, reason):
    with pytest.raises(StartupError, match=reason) as caught:
        addresses.parse(text)
    assert repr(text) in caught.value.message


def test_a_path_of_107_bytes_is_taken():
    assert addresses.parse("unix:/" + "x" * 106).path is not None


def listen(target):
    """Stands for a gRPC server's add_insecure_port on a unix target."""
    path = target.removeprefix("unix:")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    LISTENERS.append(listener)
    return 1


LISTENERS: list[socket.socket] = []


@pytest.fixture
def address(tmp_path):
    yield Address(f"unix:{tmp_path}/s", tmp_path / "s")
    while LISTENERS:
        LISTENERS.pop().close()


def test_a_socket_that_nobody_listens_on_is_replaced(address):
    listen(address.target)
    LISTENERS.pop().close()
    assert addresses.bind(address, listen).target == address.target


def test_a_live_socket_is_refused_and_left_alone(address):
    listen(address.target)
    before = address.path.stat().st_ino
    with pytest.raises(StartupError, match="another process serves there"):
        addresses.bind(address, listen)
    assert address.path.stat().st_ino == before


def test_another_kind_of_file_is_refused_and_left_alone(address):
    address.path.write_text("precious")
    with pytest.raises(StartupError, match="exists and is not a socket"):
        addresses.bind(address, listen)
    assert address.path.read_text() == "precious"


def test_a_link_to_a_file_is_refused_and_left_alone(address, tmp_path):
    (tmp_path / "precious").write_text("precious")
    address.path.symlink_to(tmp_path / "precious")
    with pytest.raises(StartupError, match="exists and is not a socket"):
        addresses.bind(address, listen)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(StartupError, match=f"{tmp_path}/no: No such file or directory"):
        addresses.bind(Address(f"unix:{tmp_path}/no/s", tmp_path / "no" / "s"), listen)


def test_two_servers_started_at_once_bind_one_after_the_other(address):
    both_inside = threading.Barrier(2)
    met = []

    def slow_listen(target):
        try:
            both_inside.wait(timeout=0.2)
            met.append(True)
        except threading.BrokenBarrierError:
            pass
        return listen(target)

    def start():
        with contextlib.suppress(StartupError, OSError):
            addresses.bind(address, slow_listen)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == []


def test_binding_leaves_no_other_file_behind(address, tmp_path):
    addresses.bind(address, listen)
    assert os.listdir(tmp_path) == ["s"]  # noqa: PTH208 - names are what counts


def test_removing_a_socket_twice_is_no_harm(address):
    bound = addresses.bind(address, listen)
    addresses.remove(bound)
    addresses.remove(bound)
    assert not address.path.exists()


def test_a_socket_that_another_server_made_since_is_not_removed(address):
    bound = addresses.bind(address, listen)
    address.path.unlink()
    listen(address.target)
    addresses.remove(bound)
    assert address.path.exists()


def test_the_port_that_the_system_chose_is_part_of_the_address():
    assert addresses.bind(addresses.parse("127.0.0.1:0"), lambda _: 4711).target == "127.0.0.1:4711"
