"""What becomes of starts when the fork server dies."""

from moe.cli.supervise import spawner as module
from moe.cli.supervise.deployment import Deployment
from moe.cli.supervise.lifecycle import Exited, Rules
from moe.cli.supervise.spawner import Spawner
from moe.cli.supervise.spec import ProcessSpec, Role

SPEC = ProcessSpec("agg-0", Role.AGGREGATOR, "none", (), "unix:/none")


class DeafServer:
    """A fork server that dies before it says anything of what it was told to start."""

    def __init__(self, *_):
        self.asked = []

    def spawn(self, spec, log):
        self.asked.append(spec.name)


def test_a_start_that_was_lost_with_the_fork_server_is_told_as_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ForkServer", DeafServer)
    rules = Rules(restart_delay=lambda failures: 0.05, drain_timeout_s=10.0)
    deployment = Deployment(
        "demo", "demo", "/none", SPEC.endpoint, (SPEC,), (), {}, rules, 60.0, tmp_path, tmp_path, tmp_path / "d"
    )
    told = []
    spawner = Spawner(deployment, lambda name, event: told.append((name, type(event))), lambda reason: None)
    spawner.keep_alive(0.0)
    spawner.loaded()
    spawner.spawn(SPEC)
    spawner.lost()
    assert told == [("agg-0", Exited)]
