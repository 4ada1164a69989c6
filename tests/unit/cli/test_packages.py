import subprocess
import sys

import pytest
from moe.cli.packages import planner_facts, stored
from moe.models.catalog import find_package, store_directory
from moe.models.errors import PackageError
from moe.operator.planner import ModelFacts
from support.tiny_package import MOE_LAYERS, write_package


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MOE_HOME", str(tmp_path / "store"))
    return tmp_path / "store"


def test_a_package_is_found_by_its_name_in_the_store(store):
    write_package(store / "tiny")
    path, facts = planner_facts("tiny")
    assert (path, facts.name, dict(facts.moe_layers)) == (store / "tiny", "tiny", MOE_LAYERS)


def test_a_package_is_found_by_its_path(store, tmp_path):
    write_package(tmp_path / "elsewhere")
    assert planner_facts(str(tmp_path / "elsewhere"))[0] == tmp_path / "elsewhere"


def test_it_is_where_the_catalogue_finds_it(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_package(tmp_path / "tiny")
    write_package(store / "tiny")
    assert planner_facts("tiny")[0] == find_package("tiny")


def test_a_path_is_never_looked_for_in_the_store(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_package(tmp_path / "tiny")
    write_package(store / "tiny")
    assert planner_facts("./tiny")[0] == tmp_path / "tiny"


def test_the_store_is_where_the_catalogue_says(monkeypatch):
    monkeypatch.delenv("MOE_HOME", raising=False)
    assert stored("x") == store_directory() / "x"


def test_a_manifest_that_is_broken_is_refused_by_its_file(store):
    (write_package(store / "tiny") / "manifest.json").write_text("{")
    with pytest.raises(PackageError, match=r"tiny/manifest\.json"):
        planner_facts("tiny")


def test_a_manifest_of_another_version_is_refused_by_its_schema(store):
    manifest = write_package(store / "tiny") / "manifest.json"
    manifest.write_text(manifest.read_text().replace("moe.package/v1", "moe.package/v9"))
    with pytest.raises(PackageError, match=r"moe\.package/v9"):
        planner_facts("tiny")


def test_what_is_not_there_is_refused_by_name(store):
    with pytest.raises(PackageError, match="there is no package 'absent'"):
        planner_facts("absent")


def test_the_supervisor_does_without_torch(store):
    write_package(store / "tiny")
    program = (
        "import sys, moe.cli.main\n"
        "from moe.cli.packages import planner_facts\n"
        "planner_facts('tiny'); sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_facts_are_what_the_planner_takes(store):
    write_package(store / "tiny")
    assert isinstance(planner_facts("tiny")[1], ModelFacts)
