"""The manifest: what it says survives writing and reading; what a stranger wrote into it is refused by field."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moe.kernels.ffn import FfnSpec
from moe.models.errors import PackageError, PackageVersionError
from moe.models.manifest import (
    ExpertFacts,
    FileFacts,
    Manifest,
    expert_file,
    expert_tensor,
    parse_manifest,
)

FILE = Path("/packages/tiny/manifest.json")
FACTS = FileFacts("0" * 64, 10)
NAMES = ("backbone/config.json", "backbone/model.safetensors", "probes.json", expert_file(0), expert_file(1))


def manifest(**changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "name": "tiny",
        "family": "mixtral",
        "architecture": "MixtralForCausalLM",
        "dtype": "bfloat16",
        "hidden": 64,
        "vocabulary": 128,
        "layers": 3,
        "moe_layers": {1: 2, 2: 1},
        "topk": 1,
        "experts": ExpertFacts(64, 48, FfnSpec("clamped_swiglu", gated=True, bias=True, limit=7.0, alpha=1.702)),
        "has_tokenizer": False,
        "source": "somewhere",
        "licence": "Apache-2.0",
        "notice": "© someone",
        "files": dict.fromkeys(NAMES, FACTS),
        "tools": {"transformers": "5.24.0"},
    }
    return Manifest(**(values | changes))


def edited(*path: str | int, value: object) -> bytes:
    """A sound manifest with one field set to something else (`...` removes it)."""
    content = json.loads(manifest().to_bytes())
    place = content
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(content).encode()


def test_what_is_written_is_read_back() -> None:
    assert parse_manifest(manifest().to_bytes(), FILE) == manifest()


def test_the_order_in_which_it_was_made_does_not_change_its_bytes() -> None:
    other = manifest(files=dict.fromkeys(reversed(NAMES), FACTS), moe_layers={2: 1, 1: 2})

    assert other.to_bytes() == manifest().to_bytes()


def test_layers_may_differ_in_their_count_of_experts() -> None:
    assert [manifest().layers_of(expert) for expert in range(3)] == [(1, 2), (1,), ()]


def test_an_experts_tensors_have_the_standard_layout() -> None:
    shapes = manifest().experts.shapes()

    assert shapes == {"up": (96, 64), "down": (64, 48), "up_bias": (96,), "down_bias": (64,)}


def test_an_ungated_expert_has_one_row_up_per_inner_column() -> None:
    facts = ExpertFacts(hidden=10, inner=3, ffn=FfnSpec("relu2", gated=False, bias=False))

    assert facts.shapes() == {"up": (3, 10), "down": (10, 3)}


def test_the_names_within_a_package_are_those_of_the_contract() -> None:
    assert (expert_file(3), expert_tensor(7, "up_bias")) == ("experts/expert-00003.safetensors", "layers.7.up_bias")


def test_the_dtype_is_torchs() -> None:
    assert manifest().torch_dtype is torch.bfloat16


@pytest.mark.parametrize("schema", ["moe.package/v4", "something else", ""])
def test_another_schema_version_says_which_are_understood(schema: str) -> None:
    with pytest.raises(PackageVersionError, match=r"manifest.json.*reads moe\.package/v1"):
        parse_manifest(edited("schema", value=schema), FILE)


HUGE = 10**4000
BAD: list[tuple[tuple[str | int, ...], object]] = [
    (("name",), ...),
    (("name",), 5),
    (("name",), "Tiny"),
    (("name",), "-tiny"),
    (("name",), "a/b"),
    (("name",), "x" * 41),
    (("name",), "tiny\n"),
    (("notice",), "\ud800"),
    (("schema",), ["moe.package/v1"]),
    (("family",), None),
    (("architecture",), "os.system('x')"),
    (("dtype",), "float8_e4m3fn"),
    (("dtype",), {}),
    (("hidden",), 0),
    (("hidden",), -1),
    (("hidden",), True),
    (("hidden",), 64.0),
    (("hidden",), "64"),
    (("hidden",), HUGE),
    (("vocabulary",), 1 << 40),
    (("layers",), 1 << 20),
    (("layers",), 2),
    (("moe_layers",), {}),
    (("moe_layers",), [8]),
    (("moe_layers",), {"-1": 2}),
    (("moe_layers",), {"01": 2}),
    (("moe_layers",), {"²": 2}),
    (("moe_layers",), {"1": 1 << 30}),
    (("moe_layers", "1"), HUGE),
    (("topk",), 2),
    (("experts",), 3),
    (("experts", "inner"), 0),
    (("experts", "ffn", "activation"), "tanh"),
    (("experts", "ffn", "activation"), []),
    (("experts", "ffn", "gated"), 1),
    (("experts", "ffn", "gated"), False),
    (("experts", "ffn", "limit"), -7),
    (("experts", "ffn", "limit"), "7"),
    (("experts", "ffn", "alpha"), None),
    (("experts", "ffn", "alpha"), HUGE),
    (("has_tokenizer",), 0),
    (("files",), []),
    (("files", "probes.json"), ...),
    (("files", expert_file(1)), ...),
    (("files", "backbone/config.json"), ...),
    (("files", "probes.json", "size"), -1),
    (("files", "probes.json", "size"), HUGE),
    (("files", "probes.json", "sha256"), "0" * 63),
    (("files", "probes.json", "sha256"), "G" * 64),
    (("files", "probes.json", "extra"), 1),
    (("tools",), None),
    (("unknown",), 1),
]


@pytest.mark.parametrize(("path", "value"), BAD, ids=[f"{'.'.join(map(str, p))}={str(v)[:20]}" for p, v in BAD])
def test_a_field_out_of_bounds_is_refused_by_name(path: tuple[str | int, ...], value: object) -> None:
    with pytest.raises(PackageError, match=rf"manifest\.json: .*{path[0]}"):
        parse_manifest(edited(*path, value=value), FILE)


ESCAPES = [
    "../outside.json",
    "backbone/../../outside.json",
    "/etc/passwd",
    "backbone//x.json",
    "backbone/./x.json",
    "backbone\\..\\x.json",
    "backbone/.hidden.json",
    "",
    "backbone/",
    "backbone/x.json\x00",
    "backbone/" + "x" * 600 + ".json",
    "~/x.json",
]
FOREIGN = ["backbone/model.bin", "backbone/modeling.py", "x.json", "experts/expert-00002.safetensors", "experts/x.json"]


@pytest.mark.parametrize("name", [*ESCAPES, *FOREIGN])
def test_a_file_that_has_no_place_in_a_package_is_refused(name: str) -> None:
    with pytest.raises(PackageError, match=r"manifest\.json: files"):
        parse_manifest(edited("files", name, value={"sha256": "0" * 64, "size": 1}), FILE)


def nested() -> bytes:
    return b'{"schema":' * 100_000


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe\x00",
        b'{"schema": NaN}',
        b'{"schema": Infinity}',
        b'{"a": 1, "a": 2}',
        b'{"schema": ' + b"9" * 10_000 + b"}",
        nested(),
    ],
)
def test_what_is_no_sound_json_is_a_package_error(raw: bytes) -> None:
    with pytest.raises(PackageError, match=r"manifest\.json"):
        parse_manifest(raw, FILE)


@pytest.mark.parametrize("make", [lambda b: b[: len(b) // 2], lambda b: b + b"x", lambda b: b.replace(b'"', b"", 1)])
def test_a_cut_or_garbled_manifest_is_a_package_error(make: Callable[[bytes], bytes]) -> None:
    with pytest.raises(PackageError, match=r"manifest\.json"):
        parse_manifest(make(manifest().to_bytes()), FILE)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
FIELDS = st.sampled_from([key for key in json.loads(manifest().to_bytes()) if key != "schema"])


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(field=FIELDS, value=JSON)
def test_any_value_in_any_field_is_read_or_refused_but_never_crashes(field: str, value: object) -> None:
    try:
        read = parse_manifest(edited(field, value=value), FILE)
    except PackageError as error:
        assert "manifest.json" in str(error)  # noqa: PT017
    else:
        assert parse_manifest(read.to_bytes(), FILE) == read


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(position=st.integers(0, len(manifest().to_bytes()) - 1), value=st.integers(0, 255))
def test_any_changed_byte_is_read_or_refused_but_never_crashes(position: int, value: int) -> None:
    raw = bytearray(manifest().to_bytes())
    raw[position] = value
    try:
        read = parse_manifest(bytes(raw), FILE)
    except PackageError as error:
        assert "manifest.json" in str(error)  # noqa: PT017
    else:
        assert parse_manifest(read.to_bytes(), FILE) == read
