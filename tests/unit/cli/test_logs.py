"""Logs stay below a bound, whatever the disk says."""

import shutil

from moe.cli.supervise import logs


def full_disk(*_):
    raise OSError(28, "No space left on device")


def test_a_log_that_has_grown_too_large_starts_anew_and_the_old_one_is_kept(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("old")
    logs.bound(log, largest=2)
    assert (log.read_text(), (tmp_path / "a.log.1").read_text()) == ("", "old")


def test_without_room_for_the_old_lines_it_starts_anew_all_the_same(tmp_path, monkeypatch):
    log = tmp_path / "a.log"
    log.write_text("old")
    monkeypatch.setattr(shutil, "copyfile", full_disk)
    logs.bound(log, largest=2)
    assert (log.read_text(), (tmp_path / "a.log.1").exists()) == ("", False)


def test_a_log_that_does_not_exist_is_no_matter(tmp_path):
    logs.bound(tmp_path / "none.log")
