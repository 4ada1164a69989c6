import os
import subprocess
import sys
from pathlib import Path

import pytest
from moe.cli.errors import UsageError
from moe.cli.supervise.runtime_dir import NameTakenError, base_folder, clean_stale, owned_folder


@pytest.fixture
def base(tmp_path):
    return base_folder({"XDG_RUNTIME_DIR": str(tmp_path)})


def left_behind(base: Path, name: str) -> None:
    """A supervisor that took the name and was killed."""
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from moe.cli.supervise.runtime_dir import owned_folder\n"
        "with owned_folder(Path(sys.argv[1]), sys.argv[2]) as folder:\n"
        "    (folder / 'x.sock').touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(base), name], check=False)


def test_the_base_is_private(base):
    assert base.stat().st_mode & 0o777 == 0o700


def test_without_a_runtime_folder_the_base_has_the_user_id_in_its_name(tmp_path):
    assert base_folder({}, shared=tmp_path) == tmp_path / f"moe-{os.getuid()}"


def test_a_base_that_others_can_read_is_refused_by_name(tmp_path):
    (tmp_path / "moe").mkdir()
    (tmp_path / "moe").chmod(0o755)
    with pytest.raises(UsageError, match=f"{tmp_path}/moe must be a folder of your own with mode 0700"):
        base_folder({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_base_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "moe").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="must be a folder of your own"):
        base_folder({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_runtime_folder_that_does_not_exist_is_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match="absent/moe: No such file or directory"):
        base_folder({"XDG_RUNTIME_DIR": str(tmp_path / "absent")})


def test_nothing_is_left_at_the_end(base):
    with owned_folder(base, "demo") as folder:
        (folder / "a.sock").touch()
    assert list(base.iterdir()) == []


def test_nothing_is_left_after_an_error(base):
    with pytest.raises(KeyboardInterrupt), owned_folder(base, "demo"):
        raise KeyboardInterrupt
    assert list(base.iterdir()) == []


def test_a_name_that_is_held_is_refused(base):
    with owned_folder(base, "demo"), pytest.raises(NameTakenError), owned_folder(base, "demo"):
        pass


def test_a_refused_second_leaves_the_first_folder_alone(base):
    with owned_folder(base, "demo") as folder:
        with pytest.raises(NameTakenError), owned_folder(base, "demo"):
            pass
        assert folder.is_dir()


def test_a_name_can_be_taken_again_after_its_holder_was_killed(base):
    left_behind(base, "demo")
    with owned_folder(base, "demo") as folder:
        assert list(folder.iterdir()) == []


def test_what_a_killed_supervisor_left_is_cleaned_and_named(base):
    left_behind(base, "demo")
    assert (clean_stale(base), list(base.iterdir())) == (["demo"], [])


def test_cleaning_leaves_a_live_deployment_alone(base):
    with owned_folder(base, "demo") as folder:
        assert (clean_stale(base), folder.is_dir()) == ([], True)
