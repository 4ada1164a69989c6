"""Asks an API server for a model and its pods, and for ways to them; failures become sentences for people."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from moe.cli.cluster.place import Site
from moe.cli.errors import CliError, UsageError
from moe.discovery import names

if TYPE_CHECKING:
    import aiohttp
    from kubernetes.aio.client import Configuration

Body = Mapping[str, Any]

_ANSWER_S = 15.0
_ALIVE_S = 20.0
"""Between two looks of a way whether its other end is there: a silent break is seen after this."""

_LOGIN = "log in to the cluster again, or choose another --context"
_RIGHTS = "ask for the right to get and list moemodels, moeexperts and pods, and to get and create pods/portforward"
_HINTS = {
    401: _LOGIN,
    403: _RIGHTS,
    404: "moe is not installed there; see docs/operating.md (helm install moe charts/moe)",
}
_WAY_HINTS = {401: _LOGIN, 403: _RIGHTS, 404: "it has just gone"}


class ClusterApi:
    """Requests about one namespace. To be made and used on one event loop."""

    def __init__(self, configuration: "Configuration", site: Site) -> None:
        from kubernetes.aio.stream import WsApiClient

        self.site = site
        self._host = configuration.host
        self._api = WsApiClient(configuration, heartbeat=_ALIVE_S)  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        """Closes the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def model(self, name: str) -> Body:
        """The MoEModel; without a name the namespace's only one. Raises CliError naming those that there are."""
        models = {each["metadata"]["name"]: each for each in await self._moe(names.MODELS)}
        if not models:
            raise CliError(
                f"{self.site}: there is no MoEModel; `kubectl get moemodels --all-namespaces` shows all, -n chooses "
                "the namespace"
            )
        there = ", ".join(sorted(models))
        if not name and len(models) > 1:
            raise UsageError(f"{self.site}: there are several models ({there}); choose one with --model")
        if name and name not in models:
            raise CliError(f"{self.site}: there is no MoEModel {name!r}; there are: {there}")
        return models[name or there]

    async def experts(self, model: str) -> list[Body]:
        """The MoEExperts of a model."""
        return [each for each in await self._moe(names.EXPERTS) if each["spec"]["model"] == model]

    async def pods(self, model: str, component: str = "") -> list[Body]:
        """The pods of a model, or of one component of it."""
        selector = f"{names.MODEL_LABEL}={model}" + (f",{names.COMPONENT_LABEL}={component}" if component else "")
        query = urlencode({"labelSelector": selector})
        return await self._list("pods", f"/api/v1/namespaces/{self.site.namespace}/pods?{query}")

    @contextlib.asynccontextmanager
    async def way(self, pod: str, port: int) -> AsyncIterator["aiohttp.ClientWebSocketResponse"]:
        """A connection to a pod's port as Kubernetes forwards it. Raises CliError."""
        import aiohttp

        path = f"/api/v1/namespaces/{self.site.namespace}/pods/{pod}/portforward"
        try:
            prepared = await self._api.param_serialize(
                "GET", path, query_params=[("ports", str(port))], auth_settings=["BearerToken"]
            )
            method, url, headers, _, _ = prepared
            sent: Any = await self._api.call_api(method, url, headers, _preload_content=False)  # type: ignore[no-untyped-call]
            async with sent.response as socket:
                yield socket
        except aiohttp.WSServerHandshakeError as error:
            what = f"port-forward to pod {pod}"
            raise self._refusal(what, error.status, "refused", _WAY_HINTS) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CliError(f"{self.site}: port-forward to pod {pod}: {str(error) or type(error).__name__}") from error

    async def _moe(self, plural: str) -> list[Body]:
        path = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{self.site.namespace}/{plural}"
        return await self._list(plural, path)

    async def _list(self, what: str, path: str) -> list[Body]:
        import aiohttp

        try:
            prepared = await self._api.param_serialize(
                "GET", path, header_params={"Accept": "application/json"}, auth_settings=["BearerToken"]
            )
            method, url, headers, _, _ = prepared
            send: Any = self._api.rest_client.request
            response = await send(method, url, headers=headers, _request_timeout=_ANSWER_S)
            raw: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CliError(
                f"{self.site}: the API server {self._host} does not answer: {str(error) or type(error).__name__}; is "
                "the cluster up, and the context right?"
            ) from error
        if response.status >= 400:
            raise self._refusal(what, response.status, _message(raw), _HINTS)
        return json.loads(raw)["items"]  # type: ignore[no-any-return]

    def _refusal(self, what: str, status: int, message: str, hints: Mapping[int, str]) -> CliError:
        hint = f"; {hints[status]}" if status in hints else ""
        return CliError(f"{self.site}: {what}: {status}: {message.strip()}{hint}")


def _message(raw: bytes) -> str:
    """What the API server says, for people."""
    try:
        return str(json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:300].decode(errors="replace")
