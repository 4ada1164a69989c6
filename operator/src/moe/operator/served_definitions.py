"""Whether the cluster's custom resource definitions are this operator's own, and which are older.

An operator acts on older ones too, as a field that they lack can't be wished; but somebody has to hear of it, or will
wonder where such a field went.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from moe.operator.cluster import ClusterError
from moe.operator.metrics import DEFINITIONS_CURRENT
from moe.operator.naming import SCHEMA_ANNOTATION, VERSION_ANNOTATION
from moe.operator.resources import definitions

logger = logging.getLogger("moe.operator")

DEFINITIONS_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_LOOK_S = 3.0
_AGAIN_S = 60.0
"""Between looks at definitions that are older, until somebody has brought them up to date."""


class Reader(Protocol):
    """What reads the API server."""

    async def get(self, path: str) -> dict[str, Any]:
        """The object at a path. Raises ClusterError."""


async def until_served(cluster: Reader) -> tuple[str, ...]:
    """Returns, once the cluster knows all custom resources, the names of definitions that are older than the operator.

    Says in the log when they are not its own.
    """
    own, older = True, []
    for each in definitions():
        name = each["metadata"]["name"]
        found = await _found(cluster, name)
        if schema_of(found) == schema_of(each):
            continue
        own = False
        logger.warning("definition %s is of another version of moe; apply charts/moe/crds of this one", name)
        if release_of(found) <= release_of(each):
            older.append(name)
    DEFINITIONS_CURRENT.set(own)
    return tuple(older)


async def until_current(cluster: Reader, *, again_s: float = _AGAIN_S) -> None:
    """Returns once no definition is older than the operator, however long the API server is away meanwhile."""
    older = True
    while older:
        await asyncio.sleep(again_s)
        older = bool(await until_served(cluster))


def release_of(definition: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Version of moe that a definition is of, as numbers; none for one without."""
    text = (definition or {}).get("metadata", {}).get("annotations", {}).get(VERSION_ANNOTATION, "")
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def schema_of(definition: Mapping[str, Any]) -> str:
    """Digest of its schema, as it says."""
    return str(definition["metadata"].get("annotations", {}).get(SCHEMA_ANNOTATION))


async def _found(cluster: Reader, name: str) -> dict[str, Any]:
    complained = ""
    while True:
        try:
            return await cluster.get(f"{DEFINITIONS_PATH}/{name}")
        except ClusterError as error:
            if str(error) != complained:
                logger.error("no definition %s: %s; install those of this version (charts/moe/crds)", name, error)
            complained = str(error)
            await asyncio.sleep(_LOOK_S)
