"""Asks the cluster's DNS server one question, as a pod would."""

import secrets
import socket
import struct

_TYPE_A = 1
_CLASS_INTERNET = 1
_RECURSION_DESIRED = 0x0100


def answers(server: str, name: str, patience_s: float = 0.5) -> bool:
    """Whether the server at that address knows an IPv4 address of the name. Only inside the namespace."""
    question_id = secrets.randbits(16)
    labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
    question = struct.pack(">6H", question_id, _RECURSION_DESIRED, 1, 0, 0, 0)
    question += labels + b"\0" + struct.pack(">2H", _TYPE_A, _CLASS_INTERNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(patience_s)
        try:
            asking.sendto(question, (server, 53))
            answer = asking.recv(512)
        except OSError:
            return False
    got_id, flags, _, found = struct.unpack(">4H", answer[:8])
    return bool(got_id == question_id and not flags & 0xF and found)
