"""Asks a cluster's API server, by the official client: inside a pod as its service account, elsewhere by a kubeconfig.

Only the plain requests of it are used. Its own Watch retries on its own terms, and who can't see a loss can't say so.
Importing it takes a second of processor time and 50 MiB, so it is imported when a cluster is really to be watched.
"""

import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from moe.discovery.cluster_watch import ApiError, Body, GoneError, Kind

if TYPE_CHECKING:
    import aiohttp
    from kubernetes.aio.client import ApiClient

WATCH_S = 60
"""The server ends a watch after so long and it is begun again at once; the longest that a silent break goes unseen."""

_GRACE_S = 5.0
_ANSWER_S = 10.0
_GONE = 410
_HINTS = {
    401: "the pod's service account token is not accepted",
    403: "the role of this pod's service account has to allow list and watch of it",
    404: "the definitions of moe's custom resources may be missing, or older than this router",
}


class ClusterClient:
    """Requests about one namespace. To be made and used on one event loop."""

    def __init__(self, api: "ApiClient", namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    @classmethod
    async def connect(cls, namespace: str) -> "ClusterClient":
        """Reads who we are; asks nothing yet. Raises ApiError."""
        from kubernetes.aio.client import ApiClient, Configuration
        from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

        configuration = Configuration()
        try:
            if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
                load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            else:
                named = os.environ.get("KUBECONFIG")  # the client itself looks only once, when it is imported
                await load_kube_config(named, client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError) as error:
            remedy = "run in a pod with a service account token, or set KUBECONFIG"
            raise ApiError(f"no way to a cluster's API server: {error}; {remedy}") from error
        return cls(ApiClient(configuration), namespace)

    async def close(self) -> None:
        """Closes the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def list(self, kind: Kind) -> Body:
        """The List object. Raises ApiError."""
        async with self._request(kind, {}, _ANSWER_S) as answer:
            return json.loads(await answer.text())  # type: ignore[no-any-return]

    async def watch(self, kind: Kind, version: str) -> AsyncIterator[Body]:
        """Events after that version until the server ends it. Raises ApiError, GoneError."""
        asked = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_S)}
        async with self._request(kind, {**asked, "allowWatchBookmarks": "true"}, WATCH_S + _GRACE_S) as answer:
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise _refusal(kind, int(status.get("code", 0)), str(status.get("message", "")))
                yield event

    @contextlib.asynccontextmanager
    async def _request(
        self, kind: Kind, asked: dict[str, str], silence_s: float
    ) -> AsyncIterator["aiohttp.ClientResponse"]:
        """The response, its body unread. silence_s: between two pieces of it."""
        import aiohttp

        path = f"/apis/{kind.group}/{kind.version}/namespaces/{self._namespace}/{kind.plural}"
        fields = {"fieldSelector": f"metadata.name={kind.name}"} if kind.name else {}
        labels = {"labelSelector": kind.selector} if kind.selector else {}
        query = list({**asked, **fields, **labels}.items())
        patience = aiohttp.ClientTimeout(total=None, sock_connect=_ANSWER_S, sock_read=silence_s)
        try:
            method, url, headers, _, _ = await self._api.param_serialize(
                "GET",
                path,
                query_params=query,
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
            send: Any = self._api.rest_client.request
            sent = await send(method, url, headers=headers, _request_timeout=patience)
            async with sent.response as answer:
                try:
                    if answer.status >= 300:
                        raise _refusal(kind, answer.status, _message(await answer.text()))
                    yield answer
                finally:
                    _hang_up(answer)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(f"{kind.plural}: {str(error) or type(error).__name__}") from error


def _hang_up(answer: "aiohttp.ClientResponse") -> None:
    """A watch is left in the middle: closing would wait for a TLS farewell, and the loop may end before it comes."""
    connection = answer.connection
    if connection and connection.transport:
        connection.transport.abort()


def _message(body: str) -> str:
    with contextlib.suppress(ValueError, AttributeError):
        return str(json.loads(body).get("message", body))
    return body[:300]


def _refusal(kind: Kind, status: int, message: str) -> ApiError:
    hint = f" ({_HINTS[status]})" if status in _HINTS else ""
    error = GoneError if status == _GONE else ApiError
    return error(f"{kind.plural}: {status}: {message}{hint}")
