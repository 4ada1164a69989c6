"""The directory as a document."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe.discovery.directory import AggregatorReplica, ExpertReplica, Snapshot
from moe.discovery.document import DirectoryError, decode, encode

SNAPSHOT = Snapshot(
    version=7,
    model="demo",
    experts=(
        ExpertReplica("demo-000-0", "demo-000", (0,), "unix:/run/moe/0.sock", ready=True, version="1"),
        ExpertReplica("demo-000-1", "demo-000", (0,), "127.0.0.1:7001", ready=False),
        ExpertReplica("demo-g001-0", "demo-g001", (1, 2, 5), "[::1]:7002", ready=True),
    ),
    aggregators=(AggregatorReplica("agg-0", "127.0.0.1:7100", ready=True),),
)


def document(**changes):
    return {**json.loads(encode(SNAPSHOT)), **changes}


def expert(**changes):
    return {"experts": [{**document()["experts"][0], **changes}]}


def aggregator(**changes):
    return {"aggregators": [{**document()["aggregators"][0], **changes}]}


def test_a_snapshot_comes_back_as_it_was():
    assert decode(encode(SNAPSHOT)) == SNAPSHOT


def test_an_empty_snapshot_comes_back_as_it_was():
    assert decode(encode(Snapshot(0, "", ()))) == Snapshot(0, "", ())


def test_a_document_may_leave_out_a_weights_version():
    written = document()
    del written["experts"][0]["version"]
    assert decode(json.dumps(written)).experts[0].version == ""


BROKEN = {
    "another schema": ({"schema": "moe.directory/v2"}, "schema is 'moe.directory/v2'; this version of moe understands"),
    "no schema": ({"schema": None}, "schema is None"),
    "an unknown key": ({"expert": []}, r"the document has unknown keys \['expert'\]"),
    "version as text": ({"version": "7"}, "version is '7'; want int"),
    "version as truth": ({"version": True}, "version is True; want int"),
    "a negative version": ({"version": -1}, "version is -1; want at least 0"),
    "experts as an object": ({"experts": {}}, "experts is {}; want list"),
    "an expert as text": ({"experts": ["demo"]}, r"experts\[0\] is 'demo'; want an object"),
    "ready as a number": (expert(ready=1), r"experts\[0\].ready is 1; want bool"),
    "ids as text": (expert(experts=["0"]), r"experts\[0\].experts is \['0'\]; want whole numbers"),
    "ids as truth": (expert(experts=[True]), "want whole numbers"),
    "no ids": (expert(experts=[]), "want ascending ids, at least one"),
    "a negative id": (expert(experts=[-1, 0]), "want ascending ids"),
    "falling ids": (expert(experts=[3, 0]), "want ascending ids"),
    "an id twice": (expert(experts=[0, 0]), "want ascending ids"),
    "an endpoint without a port": (expert(endpoint="localhost"), "endpoint 'localhost': want unix:/absolute/path or"),
    "an aggregator's endpoint": (aggregator(endpoint="unix:x"), "endpoint 'unix:x': want unix:/absolute/path or"),
    "an empty name": (expert(name=""), r"experts have names that are empty or not unique: \[''\]"),
    "a name twice": ({"experts": [document()["experts"][0]] * 2}, r"not unique: \['demo-000-0'\]"),
    "an aggregator twice": ({"aggregators": document()["aggregators"] * 2}, r"not unique: \['agg-0'\]"),
    "replicas that differ": (
        {"experts": [document()["experts"][0], {**document()["experts"][1], "experts": [0, 1]}]},
        r"group demo-000: demo-000-1 holds \[0, 1\] and demo-000-0 \[0\]",
    ),
}


@pytest.mark.parametrize(("changes", "text"), BROKEN.values(), ids=BROKEN)
def test_a_broken_document_is_refused_by_place_and_value(changes, text):
    with pytest.raises(DirectoryError, match=text):
        decode(json.dumps(document(**changes)))


@pytest.mark.parametrize("key", ["version", "model", "experts", "aggregators"])
def test_a_missing_key_is_named(key):
    written = document()
    del written[key]
    with pytest.raises(DirectoryError, match=f"{key} is missing"):
        decode(json.dumps(written))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", "[]", '"x"', "\x00"], ids=lambda text: text[:5])
def test_what_is_no_document_is_refused(text):
    with pytest.raises(DirectoryError):
        decode(text)


def test_a_snapshot_that_no_reader_would_take_is_not_written():
    with pytest.raises(DirectoryError, match="want ascending ids"):
        encode(Snapshot(1, "demo", (ExpertReplica("a", "g", (), "unix:/x", ready=True),)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(place=st.sampled_from(["version", "model", "experts", "aggregators", "schema"]), value=json_values)
@settings(max_examples=200, deadline=None)
def test_any_document_is_read_or_refused_and_never_breaks(place, value):
    with contextlib.suppress(DirectoryError):
        assert isinstance(decode(json.dumps(document(**{place: value}))), Snapshot)


@given(field=st.sampled_from(sorted(document()["experts"][0])), value=json_values)
@settings(max_examples=200, deadline=None)
def test_any_replica_is_read_or_refused_and_never_breaks(field, value):
    with contextlib.suppress(DirectoryError):
        assert isinstance(decode(json.dumps(document(**expert(**{field: value})))), Snapshot)
