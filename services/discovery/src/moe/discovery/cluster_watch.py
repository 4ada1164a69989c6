"""Keeps a copy of some objects of a cluster up to date: list once, then watch, and again whenever that breaks.

What was seen last stays while the API server is away; who follows is told that it may be old, and when it is not any
more. Knows no client library: requests come through `Requests`.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from moe.runtime.errors import MoeError

Body = Mapping[str, Any]

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 2.0
"""Between tries while the API server is away; a router that is back late sends to pods that are gone."""

_SETTLED_S = 5.0
"""A watch that lasted so long was a success: the waits start over."""


class ApiError(MoeError):
    """The API server can't be reached, or refuses. The message names who was asked for what, and what to do."""


class GoneError(ApiError):
    """The version to go on from is too old (410): the objects have to be listed anew."""


@dataclass(frozen=True)
class Kind:
    """Objects to follow. selector: of labels; name: of the one object, if it is one."""

    group: str
    version: str
    plural: str
    selector: str = ""
    name: str = ""


class Requests(Protocol):
    """How the API server is asked."""

    async def list(self, kind: Kind) -> Body:
        """The List object. Raises ApiError."""

    def watch(self, kind: Kind, version: str) -> AsyncIterator[Body]:
        """Events after that version until the server ends it, as it does after a while. Raises ApiError, GoneError."""


@dataclass(frozen=True)
class Listener:
    """Who is told. changed: all objects, by name; lost: what went wrong, at each try; found: contact, at each list."""

    changed: Callable[[Mapping[str, Body]], None]
    lost: Callable[[str], None]
    found: Callable[[], None]


async def follow(requests: Requests, kind: Kind, listener: Listener) -> None:
    """Until it is cancelled."""
    failures = 0
    while True:
        began = time.monotonic()
        try:
            await _list_and_watch(requests, kind, listener)
        except GoneError:
            # Listing anew is the whole remedy, but not in a tight loop, should the list be as old.
            failures += 1
        except ApiError as error:
            failures = 0 if time.monotonic() - began > _SETTLED_S else failures
            failures += 1
            listener.lost(error.message)
        await asyncio.sleep(wait_s(failures, random.random()))


async def _list_and_watch(requests: Requests, kind: Kind, listener: Listener) -> None:
    listed = await requests.list(kind)
    objects: dict[str, Body] = {each["metadata"]["name"]: each for each in listed["items"]}
    version = listed["metadata"]["resourceVersion"]
    listener.found()
    listener.changed(objects)
    while True:
        async for event in requests.watch(kind, version):
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] == "BOOKMARK":
                continue
            name = event["object"]["metadata"]["name"]
            if event["type"] == "DELETED":
                objects.pop(name, None)
            else:
                objects[name] = event["object"]
            listener.changed(objects)


def wait_s(failures: int, dice: float) -> float:
    """Before the next try: doubling to a bound, and spread (dice in [0, 1)) so that routers don't all come at once."""
    longest = min(FIRST_WAIT_S * 2.0 ** min(failures - 1, 16), LONGEST_WAIT_S)
    return longest * (0.5 + dice / 2)
