"""Getting ready: progress in the log, and an early end between two steps."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from moe.expert.packing import Computation, pack
from moe.expert.startup import Startup, StoppedError
from moe.expert.weights import load_group, open_package
from moe.models.manifest import expert_file
from support.tiny_package import write_package


@pytest.fixture
def startup(package) -> Iterator[Startup]:
    yield Startup(package, (0, 3), "auto", Computation())
    gc.unfreeze()


def mappings() -> str:
    """What this process has mapped, with the files' names (Linux)."""
    return Path("/proc/self/maps").read_text()


def test_it_gives_the_groups_weights(startup):
    assert startup.run(threads=1).pairs == ((0, 0), (0, 3), (2, 0))


def test_packed_weights_are_resident_once(tmp_path):
    package = open_package(write_package(tmp_path / "tiny"))
    file = str(package.file(expert_file(3)))
    held = load_group(package, [3])
    assert file in mappings()
    packed = pack(held, Computation("native"))
    del held
    gc.collect()
    assert file not in mappings()
    assert packed.bytes >= sum(
        each.nbytes for each in package.expert_weights(3)[0].__dict__.values() if each is not None
    )


def test_a_start_leaves_no_file_mapped(tmp_path):
    package = open_package(write_package(tmp_path / "tiny"))
    weights = Startup(package, (0, 3), "auto", Computation("native")).run(threads=1)
    gc.unfreeze()
    assert weights.pairs == ((0, 0), (0, 3), (2, 0))
    assert str(package.path) not in mappings()


def test_it_logs_the_last_of_each_steps(startup, caplog):
    caplog.set_level(logging.INFO, logger="moe.expert")
    startup.run(threads=1)
    checked, packed, probed = caplog.messages
    assert checked == "checked the files of 2 of 2 experts"
    assert probed == "probed 3 of 3 weights (layer, expert)"
    assert packed.startswith("kernel ")


def test_stopped_it_ends_at_its_next_step(startup):
    startup.stop()
    with pytest.raises(StoppedError):
        startup.run(threads=1)
