"""`moe quantize`: what it makes, prints and refuses."""

import json

from moe.cli.main import main
from moe.cli.packages import planner_facts
from moe.models.package import Package
from moe.operator.package_reader import read_package
from support.tiny_package import write_package


def test_it_makes_a_package_in_the_store_and_names_who_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MOE_HOME", str(tmp_path / "store"))
    source = write_package(tmp_path / "tiny", dtype="bfloat16")
    assert main(["quantize", str(source), "--limit", "0.000001"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[-4:] == ["0,", "1,", "2,", "3"]
    assert lines[-2:] == [f"made {tmp_path / 'store' / 'tiny-int8'}", "bring it up with: moe up tiny-int8"]
    assert Package.open(tmp_path / "store" / "tiny-int8").manifest.name == "tiny-int8"


def test_as_json_it_tells_every_experts_error(tmp_path, capsys):
    source = write_package(tmp_path / "tiny", dtype="bfloat16")
    assert main(["quantize", str(source), str(tmp_path / "small"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["name"], told["kept"]) == (str(tmp_path / "small"), "small", {"0": [], "2": []})
    assert [len(told["errors"][layer]) for layer in ("0", "2")] == [4, 3]
    assert told["bytes_after"] > 0


def test_it_tells_sizes_and_why_there_is_no_perplexity(tmp_path, capsys):
    source = write_package(tmp_path / "tiny", dtype="bfloat16")
    assert main(["quantize", str(source), str(tmp_path / "small")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-5] == "scales: one for an output channel"
    assert lines[-4].startswith("experts: ")
    assert lines[-3] == "errors are over random rows, and there is no perplexity: the package has no tokenizer"


def test_groups_get_scales_of_their_own_and_the_package_is_found_by_its_facts(tmp_path, capsys):
    source = write_package(tmp_path / "tiny", dtype="bfloat16")
    assert main(["quantize", str(source), str(tmp_path / "small"), "--group-size", "16"]) == 0
    assert "scales: one for 16 inputs of an output channel" in capsys.readouterr().out.splitlines()
    assert Package.open(tmp_path / "small").manifest.quantisation.group_size == 16
    assert planner_facts(str(tmp_path / "small"))[1].name == "small"
    assert read_package(tmp_path / "small")["experts"] == 4


def test_a_group_size_that_can_not_be_is_refused(tmp_path, capsys):
    source = write_package(tmp_path / "tiny", dtype="bfloat16")
    assert main(["quantize", str(source), str(tmp_path / "small"), "--group-size", "20"]) == 1
    assert "group_size: got 20, want a multiple of 16" in capsys.readouterr().err
    assert not (tmp_path / "small").exists()


def test_a_target_that_is_there_is_refused(tmp_path, capsys):
    source = write_package(tmp_path / "tiny", dtype="bfloat16")
    assert main(["quantize", str(source), str(source)]) == 1
    assert "exists already" in capsys.readouterr().err


def test_a_limit_of_nothing_is_refused(tmp_path, capsys):
    source = write_package(tmp_path / "tiny", dtype="bfloat16")
    assert main(["quantize", str(source), str(tmp_path / "small"), "--limit", "0"]) == 1
    assert "limit: must be above 0, got 0.0" in capsys.readouterr().err
