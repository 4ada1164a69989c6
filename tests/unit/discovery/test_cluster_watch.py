"""How a copy of a cluster's objects is kept: told events, losses, and lists that are too old."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from moe.discovery.cluster_watch import LONGEST_WAIT_S, ApiError, Body, GoneError, Kind, Listener, follow, wait_s

KIND = Kind("g", "v", "things")
PATIENCE_S = 10.0


def body(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}}


def event(kind: str, name: str, version: str) -> Body:
    return {"type": kind, "object": body(name, version)}


@dataclass
class Scripted:
    """An API server whose faults come at chosen moments. lists, watches: an error is raised, events are sent."""

    lists: list[list[str] | ApiError]
    watches: list[list[Body | ApiError]]
    watched_from: list[str] = field(default_factory=list)
    listed: int = 0

    async def list(self, kind: Kind) -> Body:
        found = self.lists[min(self.listed, len(self.lists) - 1)]
        self.listed += 1
        if isinstance(found, ApiError):
            raise found
        return {"metadata": {"resourceVersion": f"l{self.listed}"}, "items": [body(each, "0") for each in found]}

    async def watch(self, kind: Kind, version: str) -> AsyncIterator[Body]:
        self.watched_from.append(version)
        if len(self.watched_from) > len(self.watches):
            await asyncio.Event().wait()
        for each in self.watches[len(self.watched_from) - 1]:
            if isinstance(each, ApiError):
                raise each
            yield each


@dataclass
class Heard:
    """What a listener was told."""

    names: list[tuple[str, ...]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    found: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def listener(self) -> Listener:
        return Listener(self._changed, self._lost, self._found)

    def _changed(self, objects: Mapping[str, Body]) -> None:
        self.names.append(tuple(objects))
        self.news.set()

    def _lost(self, reason: str) -> None:
        self.lost.append(reason)
        self.news.set()

    def _found(self) -> None:
        self.found += 1


async def hear(server: Scripted, until: int) -> Heard:
    """Follows until that many changes were told."""
    heard = Heard()
    following = asyncio.create_task(follow(server, KIND, heard.listener()))
    async with asyncio.timeout(PATIENCE_S):
        while len(heard.names) < until:
            heard.news.clear()
            await heard.news.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return heard


async def test_events_change_what_was_listed() -> None:
    events = [event("ADDED", "c", "1"), event("MODIFIED", "a", "2"), event("DELETED", "b", "3")]
    heard = await hear(Scripted([["a", "b"]], [events]), 4)
    assert heard.names == [("a", "b"), ("a", "b", "c"), ("a", "b", "c"), ("a", "c")]


async def test_a_watch_that_ends_goes_on_after_the_last_event_without_listing() -> None:
    server = Scripted([["a"]], [[event("ADDED", "b", "5")], [event("ADDED", "c", "6")]])
    await hear(server, 3)
    assert (server.listed, server.watched_from[:2]) == (1, ["l1", "5"])


async def test_a_bookmark_moves_the_version_and_is_no_object() -> None:
    bookmark: Body = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    server = Scripted([["a"]], [[bookmark], [event("ADDED", "b", "10")]])
    heard = await hear(server, 2)
    assert (server.watched_from[:2], heard.names) == (["l1", "9"], [("a",), ("a", "b")])


async def test_a_version_that_is_gone_lists_anew_and_is_no_loss() -> None:
    server = Scripted([["a"], ["b"]], [[GoneError("too old")]])
    heard = await hear(server, 2)
    assert (heard.names, heard.lost) == ([("a",), ("b",)], [])


async def test_an_api_server_that_is_away_is_told_and_what_was_seen_is_not_taken_back() -> None:
    away = ApiError("connection refused")
    heard = await hear(Scripted([["a"], away, away, ["a", "b"]], [[away]]), 2)
    assert (heard.names, heard.lost, heard.found) == ([("a",), ("a", "b")], ["connection refused"] * 3, 2)


@pytest.mark.parametrize(
    ("failures", "longest"), [(1, 0.05), (2, 0.1), (4, 0.4), (20, LONGEST_WAIT_S), (10**6, LONGEST_WAIT_S)]
)
def test_waits_double_to_a_bound_and_are_spread_over_their_upper_half(failures: int, longest: float) -> None:
    assert (wait_s(failures, 0.0), wait_s(failures, 1.0)) == (pytest.approx(longest / 2), pytest.approx(longest))
