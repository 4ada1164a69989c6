"""The API server as the executor sees it: apply, delete, read, tell. One thin port over the official client.

Objects go in and out as plain mappings: manifests are made here, and what is read is compared with them.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config
from moe.operator.kinds import Kind
from moe.operator.manifests import Manifest
from moe.operator.metrics import REQUESTS
from moe.operator.naming import FIELD_MANAGER

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_UNDECLARED = "field not declared in schema"
"""In what the API server says of an apply with fields that the definition doesn't have."""

_TIMEOUT_S = 15.0


class ClusterError(Exception):
    """The API server did not do what it was asked. status: of HTTP, 0 when it could not be reached."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def passing(self) -> bool:
        """Whether the same request may well succeed later: no answer, overload, a failing server."""
        return self.status in (0, 429) or self.status >= 500


class Cluster:
    """A connection to an API server. Made by `connect`, closed by `close`."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api

    @classmethod
    async def connect(cls) -> "Cluster":
        """By the pod's account, or else by the kubeconfig that kubectl would take. Raises ClusterError for neither."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            try:
                await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            except (config.ConfigException, OSError) as error:
                raise ClusterError(0, f"neither a pod's account nor a usable kubeconfig: {error}") from error
        return cls(client.ApiClient(configuration))

    async def close(self) -> None:
        """Gives the connections back."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def apply(
        self, kind: Kind, manifest: Manifest, *, manager: str = FIELD_MANAGER, force: bool = True, subresource: str = ""
    ) -> Manifest:
        """Server-side apply; returns the object as it is then. Raises ClusterError, 409 when others own a field."""
        path = kind.path(manifest["metadata"]["namespace"], manifest["metadata"]["name"], subresource)
        return await self.apply_at(path, manifest, manager=manager, force=force)

    async def apply_at(self, path: str, manifest: Manifest, *, manager: str, force: bool = True) -> Manifest:
        """Server-side apply of an object by its path. Raises ClusterError."""
        query = urlencode({"fieldManager": manager, "force": str(force).lower(), "fieldValidation": "Strict"})
        return await self._request("PATCH", f"{path}?{query}", manifest, _APPLY)

    async def apply_status(self, kind: Kind, manifest: Manifest) -> Manifest:
        """As `apply` of the status; fields that older definitions lack are left out, for the rest is to be told.

        Raises ClusterError.
        """
        try:
            return await self.apply(kind, manifest, subresource="status")
        except ClusterError as error:
            if _UNDECLARED not in str(error):
                raise
        # an apply of undeclared fields is refused whatever is asked for; a merge is pruned
        path = kind.path(manifest["metadata"]["namespace"], manifest["metadata"]["name"], "status")
        query = urlencode({"fieldManager": FIELD_MANAGER, "fieldValidation": "Ignore"})
        return await self._request("PATCH", f"{path}?{query}", {"status": manifest["status"]}, _MERGE)

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Raises ClusterError, 409 when it is there."""
        return await self._request("POST", kind.path(manifest["metadata"]["namespace"]), manifest)

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Raises ClusterError, 409 when it has changed since it was read."""
        path = kind.path(manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        return await self._request("PUT", path, manifest)

    async def get(self, path: str) -> Manifest:
        """Raises ClusterError, 404 when it is not there."""
        return await self._request("GET", path)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Deletes that very object, and what it owns after it. One that is gone already is no error."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self._request("DELETE", kind.path(namespace, name), body)
        except ClusterError as error:
            if error.status not in (404, 409):
                raise

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, content: str = "application/json"
    ) -> Manifest:
        REQUESTS.inc()
        headers = {"Accept": "application/json", "Content-Type": content}
        try:
            prepared = await self._api.param_serialize(
                method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            response = await self._api.call_api(*prepared, _request_timeout=_TIMEOUT_S)
            raw: bytes = await response.read()  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise ClusterError(0, f"{method} {path.partition('?')[0]}: {why}") from error
        if response.status >= 400:
            raise ClusterError(response.status, _message(raw))
        found: Manifest = json.loads(raw)
        return found


def _message(raw: bytes) -> str:
    """What the API server says, for people."""
    try:
        return str(json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:300].decode(errors="replace")
