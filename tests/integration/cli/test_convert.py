"""`moe convert` and `moe models` on tiny random checkpoints, with a store of the test's own."""

import json
import os
import signal
import subprocess
import time

import pytest
from moe.cli.main import main
from support.families import write_checkpoint
from support.moe_up import MOE, PATIENCE_S
from support.tiny_dense import calibration_texts, write_dense


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint("mixtral", tmp_path_factory.mktemp("checkpoints") / "Tiny Mixtral")


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return write_dense(tmp_path_factory.mktemp("checkpoints") / "dense")


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MOE_HOME", str(tmp_path / "store"))
    return tmp_path / "store"


def run(capsys, *argv, code=0):
    assert main([str(word) for word in argv]) == code
    return capsys.readouterr()


def shown(capsys, name):
    return json.loads(run(capsys, "models", "show", name, "--json").out)


def test_a_package_goes_into_the_store_under_a_name_made_of_the_source(store, checkpoint, capsys):
    path = json.loads(run(capsys, "convert", checkpoint, "--json").out)["path"]
    assert path == str(store / "tiny-mixtral")


def test_a_package_goes_where_it_is_told(store, checkpoint, capsys, tmp_path):
    run(capsys, "convert", checkpoint, tmp_path / "there" / "mine")
    assert shown(capsys, tmp_path / "there" / "mine")["name"] == "mine"


def test_licence_notice_and_source_are_kept(store, checkpoint, capsys):
    labels = ("--licence", "MIT", "--notice", "By us", "--source-label", "home")
    run(capsys, "convert", checkpoint, "--name", "mine", *labels)
    facts = shown(capsys, "mine")
    assert (facts["licence"], facts["notice"], facts["source"]) == ("MIT", "By us", "home")


def test_progress_goes_to_standard_error(store, checkpoint, capsys):
    said = run(capsys, "convert", checkpoint)
    assert ("package: 100 %" in said.err, said.out.startswith(f"made {store}/tiny-mixtral")) == (True, True)


def test_a_package_that_is_there_is_not_replaced_unless_forced(store, checkpoint, capsys):
    run(capsys, "convert", checkpoint, "--json")
    assert str(store / "tiny-mixtral") in run(capsys, "convert", checkpoint, "--json", code=1).err
    run(capsys, "convert", checkpoint, "--json", "--force")


def test_list_shows_what_is_in_the_store(store, checkpoint, capsys):
    run(capsys, "convert", checkpoint, "--json")
    (package,) = json.loads(run(capsys, "models", "list", "--json").out)
    assert (package["name"], package["family"]) == ("tiny-mixtral", "mixtral")


def test_list_of_an_empty_store_says_how_to_fill_it(store, capsys):
    assert "moe convert demo" in run(capsys, "models", "list").out


def test_verify_finds_a_sound_package_sound(store, checkpoint, capsys):
    run(capsys, "convert", checkpoint, "--json")
    assert "all sound" in run(capsys, "models", "verify", "tiny-mixtral").out


def test_verify_names_the_damaged_file_and_exits_with_2(store, checkpoint, capsys):
    run(capsys, "convert", checkpoint, "--json")
    damaged = store / "tiny-mixtral" / "experts" / "expert-00001.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert str(damaged) in run(capsys, "models", "verify", "tiny-mixtral", code=2).err


def test_remove_takes_a_package_out_of_the_store(store, checkpoint, capsys):
    run(capsys, "convert", checkpoint, "--json")
    run(capsys, "models", "remove", "tiny-mixtral", "--yes")
    assert json.loads(run(capsys, "models", "list", "--json").out) == []


def test_remove_of_what_is_not_there_is_refused(store, capsys):
    assert "there is no package" in run(capsys, "models", "remove", "absent", "--yes", code=2).err


def test_a_dense_checkpoint_is_told_which_options_it_needs(store, dense, capsys):
    assert "--upcycle" in run(capsys, "convert", dense, code=2).err


def test_a_dense_checkpoint_is_upcycled(store, dense, capsys):
    run(capsys, "convert", dense, "--upcycle", "--experts", "4", "--topk", "2", "--json")
    assert [shown(capsys, "dense")[key] for key in ("family", "experts", "topk")] == ["mixtral", 4, 2]


def test_a_dense_checkpoint_is_split(store, dense, capsys, tmp_path):
    (tmp_path / "text").write_text("\n".join(calibration_texts()))
    sizes = ("--experts", "4", "--topk", "2", "--shared-neurons", "8")
    run(capsys, "convert", dense, "--split", *sizes, "--calibration", tmp_path / "text", "--json")
    facts = shown(capsys, "dense")
    assert (facts["family"], facts["experts"], facts["expert_inner"]) == ("qwen2_moe", 4, 4)


def test_nothing_but_the_package_is_left_in_the_store(store, dense, capsys):
    run(capsys, "convert", dense, "--upcycle", "--json")
    assert [path.name for path in store.iterdir()] == ["dense"]


def test_calibration_text_that_is_not_there_is_named_and_leaves_nothing(store, dense, capsys):
    missing = ("--split", "--shared-neurons", "8", "--calibration", "/absent.txt")
    assert "calibration file /absent.txt" in run(capsys, "convert", dense, *missing, code=2).err
    assert list(store.iterdir()) == []


def test_a_conversion_interrupted_while_it_writes_leaves_nothing_half_made(store, checkpoint):
    process = subprocess.Popen([*MOE, "convert", str(checkpoint)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and not list(store.glob("*.partial-*/*")) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    code = process.wait(PATIENCE_S)
    half_made = [path.name for path in store.iterdir() if path.name != "tiny-mixtral"]
    assert (code in (0, 130), half_made) == (True, [])
