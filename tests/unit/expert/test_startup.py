"""Getting ready: progress in the log, and an early end between two steps."""

import gc
import logging
from collections.abc import Iterator

import pytest
from moe.expert.packing import Computation
from moe.expert.startup import Startup, StoppedError


@pytest.fixture
def startup(package) -> Iterator[Startup]:
    yield Startup(package, (0, 3), "auto", Computation())
    gc.unfreeze()


def test_it_gives_the_groups_weights(startup):
    assert startup.run(threads=1).pairs == ((0, 0), (0, 3), (2, 0))


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
