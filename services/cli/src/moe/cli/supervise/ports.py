"""Free TCP ports of the loopback interface, from below those that the kernel hands to outgoing connections.

An ephemeral port (from 32768 on, by default) could be taken by any client while a crashed process is down, and its
restart would find it used.
"""

import random
import socket

LOWEST = 20000
HIGHEST = 32000


class FreePorts:
    """Gives a port at each call that nobody listens on and that it has not given before."""

    def __init__(self) -> None:
        self._candidates = list(range(LOWEST, HIGHEST))
        random.SystemRandom().shuffle(self._candidates)

    def __call__(self) -> int:
        """Raises OSError when there is none left."""
        while self._candidates:
            port = self._candidates.pop()
            if _is_free(port):
                return port
        raise OSError(f"no free port from {LOWEST} to {HIGHEST} on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
