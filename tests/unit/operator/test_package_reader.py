"""The inspection reads of a package what moe.models reads, and says what is wrong in a sentence."""

import json
import re

import pytest
from moe.models.package import Package
from moe.operator.package_reader import main, read_package
from moe.operator.resources import PackageFacts, read
from support.tiny_package import write_package


@pytest.fixture
def folder(tmp_path):
    return write_package(tmp_path / "tiny")


def report(folder, tmp_path):
    path = tmp_path / "report"
    code = main([str(folder), "--report", str(path)])
    return code, path.read_text()


def test_the_facts_are_those_that_the_services_read(folder):
    package, found = Package.open(folder), read_package(folder)
    assert found["digest"] == package.manifest_sha256
    assert (found["name"], found["topk"]) == (package.manifest.name, package.manifest.topk)
    assert (found["experts"], found["layers"]) == (package.manifest.expert_count, len(package.manifest.moe_layers))


def test_the_report_is_what_a_status_takes(folder, tmp_path):
    code, text = report(folder, tmp_path)
    assert code == 0
    assert read(PackageFacts, json.loads(text)).experts == 4


def lose(folder, name):
    (folder / name).unlink()


def cut(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:-20])


def another_schema(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "schema": "moe.package/v9"}))


FAULTS = {
    "no manifest": (
        lambda folder: lose(folder, "manifest.json"),
        "there is no manifest.json .* holds backbone, experts",
    ),
    "no json": (lambda folder: cut(folder, "manifest.json"), "manifest.json is not a package's"),
    "a list": (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json is not a package's"),
    "an expert lost": (lambda folder: lose(folder, "experts/expert-00001.safetensors"), "expert-00001.* is missing"),
    "an expert cut": (
        lambda folder: cut(folder, "experts/expert-00002.safetensors"),
        "expert-00002.* bytes instead of",
    ),
    "a newer schema": (another_schema, "schema is 'moe.package/v9'; this version of moe reads moe.package/v1"),
}


@pytest.mark.parametrize(("spoil", "words"), FAULTS.values(), ids=FAULTS)
def test_a_package_that_cannot_be_served_is_refused_with_the_reason(folder, tmp_path, spoil, words):
    spoil(folder)
    code, text = report(folder, tmp_path)
    assert code == 2
    assert re.search(words, text), text


def test_a_folder_that_is_not_there_says_what_is(folder, tmp_path):
    code, text = report(folder / "modles" / "demo", tmp_path)
    assert code == 2
    assert "there is no folder modles; the place where it should be holds backbone, experts, manifest.json" in text


def test_an_empty_claim_says_where_the_package_was_looked_for(tmp_path):
    code, text = report(tmp_path, tmp_path)
    assert (code, "holds nothing" in text) == (2, True)


def test_a_report_fits_into_a_termination_message(folder, tmp_path):
    (folder / "manifest.json").write_text(json.dumps({"schema": "x" * 9000}))
    _, text = report(folder, tmp_path)
    assert len(text.encode()) <= 4096
