"""Definitions that are older are told apart from newer ones, and their renewal is seen."""

import copy

import pytest
from moe.operator.cluster import ClusterError
from moe.operator.metrics import DEFINITIONS_CURRENT
from moe.operator.naming import SCHEMA_ANNOTATION, VERSION_ANNOTATION
from moe.operator.resources import definitions
from moe.operator.served_definitions import until_current, until_served


class Definitions:
    """An API server's, of some version of moe. away: answers that fail first."""

    def __init__(self, version=None, *, away=0):
        self.version = version
        self.away = away
        self.looks = 0

    async def get(self, path):
        self.looks += 1
        if self.away:
            self.away -= 1
            raise ClusterError(503, "the API server is away")
        found = copy.deepcopy(next(each for each in definitions() if path.endswith(each["metadata"]["name"])))
        if self.version:
            found["metadata"]["annotations"] = {SCHEMA_ANNOTATION: "other", VERSION_ANNOTATION: self.version}
        return found


NAMES = tuple(each["metadata"]["name"] for each in definitions())


@pytest.mark.parametrize(
    ("version", "older", "own"), [(None, (), 1), ("0.0.9", NAMES, 0), ("99.0.0", (), 0), ("unheard of", NAMES, 0)]
)
async def test_older_definitions_are_named_and_newer_ones_are_not(version, older, own):
    assert await until_served(Definitions(version)) == older
    assert DEFINITIONS_CURRENT._value.get() == own


async def test_it_looks_again_until_they_are_current_whatever_fails_meanwhile(monkeypatch):
    monkeypatch.setattr("moe.operator.served_definitions._LOOK_S", 0.001)
    cluster = Definitions("0.0.9", away=1)
    looks = []

    async def get(path, read=cluster.get):
        looks.append(path)
        if len(looks) > 6:
            cluster.version = None
        return await read(path)

    cluster.get = get
    await until_current(cluster, again_s=0.001)
    assert len(looks) > 6
