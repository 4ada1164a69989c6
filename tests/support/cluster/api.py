"""Just enough of a client for the cluster's own programs: JSON over TLS with a certificate."""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

Document = dict[str, Any]
"""An object of the API as it comes: JSON that the API server checked."""


class RefusedError(Exception):
    """The API server answered with an error. status: HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:300]}")
        self.status = status


class Api:
    """Requests as one identity of the folder of keys."""

    def __init__(self, host: str, port: int, pki: Path, identity: str, timeout_s: float = 5) -> None:
        self._address = (host, port)
        self._timeout_s = timeout_s
        self._trusted = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._trusted.load_cert_chain(pki / f"{identity}.crt", pki / f"{identity}.key")

    def get(self, path: str) -> Document:
        """Raises RefusedError, OSError."""
        return json.loads(self.request("GET", path))  # type: ignore[no-any-return]

    def request(self, method: str, path: str, body: Document | None = None) -> str:
        """What the server answered. Raises RefusedError, OSError."""
        host, port = self._address
        connection = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._trusted)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read().decode()
        except http.client.HTTPException as error:
            raise OSError(f"{host}:{port}: {error!r}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise RefusedError(answer.status, said)
        return said
