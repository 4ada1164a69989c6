"""`moe quantize`: what it makes, prints and refuses."""

import json

from moe.cli.main import main
from moe.models.package import Package
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
    assert lines[-4].startswith("experts: ")
    assert lines[-3] == "errors are over random rows, and there is no perplexity: the package has no tokenizer"


def test_a_target_that_is_there_is_refused(tmp_path, capsys):
    source = write_package(tmp_path / "tiny", dtype="bfloat16")
    assert main(["quantize", str(source), str(source)]) == 1
    assert "exists already" in capsys.readouterr().err


def test_a_limit_of_nothing_is_refused(tmp_path, capsys):
    source = write_package(tmp_path / "tiny", dtype="bfloat16")
    assert main(["quantize", str(source), str(tmp_path / "small"), "--limit", "0"]) == 1
    assert "limit: must be above 0, got 0.0" in capsys.readouterr().err
