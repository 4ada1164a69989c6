"""A snapshot as a JSON document and back, checked in both directions.

{"schema": "moe.directory/v1", "version": 7, "model": "demo",
 "experts": [{"name": "demo-003-0", "group": "demo-003", "experts": [3], "endpoint": "unix:/run/moe/3.sock",
              "ready": true, "version": "1"}],
 "aggregators": [{"name": "agg-0", "endpoint": "127.0.0.1:7100", "ready": true}]}
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from moe.discovery.directory import AggregatorReplica, ExpertReplica, Snapshot
from moe.runtime.addresses import parse
from moe.runtime.errors import MoeError, StartupError

SCHEMA = "moe.directory/v1"

T = TypeVar("T")


class DirectoryError(MoeError):
    """A document that is no directory; names the place in it, the value and what is wanted."""


def encode(snapshot: Snapshot) -> str:
    """The document of a snapshot. Raises DirectoryError when no reader would take it."""
    _check(snapshot)
    return json.dumps({"schema": SCHEMA, **dataclasses.asdict(snapshot)}, indent=1) + "\n"


def decode(text: str) -> Snapshot:
    """The snapshot in a document. Raises DirectoryError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DirectoryError(f"not JSON: {error}") from error
    root = _table(document, "the document", {"schema", "version", "model", "experts", "aggregators"})
    if root.get("schema") != SCHEMA:
        raise DirectoryError(f"schema is {root.get('schema')!r}; this version of moe understands {SCHEMA!r}")
    snapshot = Snapshot(
        version=_get(root, "version", int, ""),
        model=_get(root, "model", str, ""),
        experts=tuple(_expert(each, f"experts[{i}]") for i, each in enumerate(_get(root, "experts", list, ""))),
        aggregators=tuple(
            _aggregator(each, f"aggregators[{i}]") for i, each in enumerate(_get(root, "aggregators", list, ""))
        ),
    )
    _check(snapshot)
    return snapshot


def _expert(raw: object, where: str) -> ExpertReplica:
    entry = _table(raw, where, {"name", "group", "experts", "endpoint", "ready", "version"})
    ids = _get(entry, "experts", list, where)
    if not all(type(each) is int for each in ids):
        raise DirectoryError(f"{where}.experts is {ids!r}; want whole numbers")
    return ExpertReplica(
        name=_get(entry, "name", str, where),
        group=_get(entry, "group", str, where),
        experts=tuple(ids),
        endpoint=_get(entry, "endpoint", str, where),
        ready=_get(entry, "ready", bool, where),
        version=_get(entry, "version", str, where) if "version" in entry else "",
    )


def _aggregator(raw: object, where: str) -> AggregatorReplica:
    entry = _table(raw, where, {"name", "endpoint", "ready"})
    return AggregatorReplica(
        name=_get(entry, "name", str, where),
        endpoint=_get(entry, "endpoint", str, where),
        ready=_get(entry, "ready", bool, where),
    )


def _table(raw: object, where: str, known: set[str]) -> Mapping[str, object]:
    if not isinstance(raw, dict):
        raise DirectoryError(f"{where} is {_short(raw)}; want an object")
    unknown = sorted(set(raw) - known)
    if unknown:
        raise DirectoryError(f"{where} has unknown keys {unknown}; known are {sorted(known)}")
    return raw


def _get(entry: Mapping[str, object], key: str, kind: type[T], where: str) -> T:
    name = f"{where}.{key}".lstrip(".")
    if key not in entry:
        raise DirectoryError(f"{name} is missing")
    value = entry[key]
    if type(value) is not kind:
        raise DirectoryError(f"{name} is {_short(value)}; want {kind.__name__}")
    return value


def _check(snapshot: Snapshot) -> None:
    """What types can't say: names once, ids ascending, one set of experts per group, endpoints that can be dialled."""
    if snapshot.version < 0:
        raise DirectoryError(f"version is {snapshot.version}; want at least 0")
    _check_unique("experts", [each.name for each in snapshot.experts])
    _check_unique("aggregators", [each.name for each in snapshot.aggregators])
    held: dict[str, ExpertReplica] = {}
    for replica in snapshot.experts:
        _check_experts(replica, held.setdefault(replica.group, replica))
    endpoints = [each.endpoint for each in snapshot.experts] + [each.endpoint for each in snapshot.aggregators]
    for endpoint in endpoints:
        try:
            parse(endpoint)
        except StartupError as error:
            raise DirectoryError(f"endpoint {endpoint!r}: want unix:/absolute/path or host:port") from error


def _check_experts(replica: ExpertReplica, first: ExpertReplica) -> None:
    ids = replica.experts
    if not ids or ids[0] < 0 or list(ids) != sorted(set(ids)):
        raise DirectoryError(f"experts of {replica.name} are {list(ids)}; want ascending ids, at least one")
    if ids != first.experts:
        raise DirectoryError(
            f"group {replica.group}: {replica.name} holds {list(ids)} and {first.name} {list(first.experts)}"
        )


def _check_unique(what: str, names: Iterable[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1 or not name)
    if twice:
        raise DirectoryError(f"{what} have names that are empty or not unique: {twice}")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
