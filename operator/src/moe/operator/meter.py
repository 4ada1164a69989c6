"""Where a pod's busy time is read: the port that `load_rounds` asks, and its adapter for experts' metrics pages.

A page is what any pod with the right labels says: it is read up to a bound in bytes and in time, leads nowhere else,
and a number that can't be one is refused. Where a network policy keeps the experts' own port for routers and
aggregators, the port of the pages stays open, and reading them takes no right at the API server.
"""

import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import aiohttp
from moe.operator.naming import EXPERT_BUSY_METRIC, METRICS_PORT

AT_ONCE = 32
"""Pages that are read at one time."""

ANSWER_S = 5.0
"""Longest that one page may take. A process that computes on all its cores may need a second or two."""

_LONGEST_PAGE = 256 * 1024
"""Bytes of a page; an expert's has some ten thousand."""

_LINE = re.compile(rb"^%b (\S+)" % EXPERT_BUSY_METRIC.encode(), re.MULTILINE)


class MeterError(Exception):
    """A pod's busy time can't be read. The message says where and why."""


class Meter(Protocol):
    """What reads the busy time of pods."""

    async def busy_s(self, host: str) -> float:
        """Seconds that the pod's compute thread has computed since its start. host: its address. Raises MeterError."""


class PageMeter:
    """Reads metrics pages over HTTP; a connection for each, as one read in half a minute keeps none."""

    def __init__(self, session: aiohttp.ClientSession, port: int = METRICS_PORT) -> None:
        self._session = session
        self._port = port

    async def busy_s(self, host: str) -> float:
        """See `Meter`."""
        url = f"http://{f'[{host}]' if ':' in host else host}:{self._port}/metrics"
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status != 200:
                    raise MeterError(f"{url}: HTTP {response.status}")
                return await _busy_s(response, url)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise MeterError(f"{url}: {str(error) or type(error).__name__}") from error


@asynccontextmanager
async def page_meter(port: int = METRICS_PORT, answer_s: float = ANSWER_S) -> AsyncIterator[PageMeter]:
    """A meter for as long as the block runs."""
    connections = aiohttp.TCPConnector(limit=AT_ONCE, force_close=True)
    timeout = aiohttp.ClientTimeout(total=answer_s)
    # uncompressed: packing a page costs the expert more than sending it
    plain = {"Accept-Encoding": "identity"}
    async with aiohttp.ClientSession(
        connector=connections, timeout=timeout, headers=plain, auto_decompress=False
    ) as session:
        yield PageMeter(session, port)


async def _busy_s(response: aiohttp.ClientResponse, url: str) -> float:
    """The metric's value. Raises MeterError."""
    page = bytearray()
    async for chunk in response.content.iter_any():
        page += chunk
        if len(page) > _LONGEST_PAGE:
            raise MeterError(f"{url}: the page has more than {_LONGEST_PAGE} bytes; it is no expert's")
    line = _LINE.search(page)
    if line is None:
        raise MeterError(f"{url}: no {EXPERT_BUSY_METRIC}; it is no expert's page, or of another version of moe")
    return _seconds(line[1].decode(errors="replace"), url)


def _seconds(text: str, url: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds < math.inf:
        raise MeterError(f"{url}: {EXPERT_BUSY_METRIC} is {text[:40]!r}; want seconds, 0 or more")
    return seconds
