"""What a directory tells Prometheus."""

from pathlib import Path

from moe.discovery.directory import ExpertReplica, Snapshot
from moe.discovery.figures import readings
from moe.discovery.file import FileDirectory, write


def test_a_directory_tells_its_version_and_how_many_experts_are_ready(tmp_path: Path) -> None:
    replicas = [ExpertReplica(f"p{i}", "g", (0,), f"127.0.0.1:{7000 + i}", ready=i < 2) for i in range(3)]
    write(tmp_path / "d", Snapshot(4, "demo", tuple(replicas)))
    assert told(tmp_path / "d") == {
        "moe_discovery_lost": {"": 0},
        "moe_discovery_version": {"": 4},
        "moe_discovery_replicas": {"ready": 2, "not ready": 1},
    }


def test_a_directory_that_can_not_be_read_says_so(tmp_path: Path) -> None:
    assert told(tmp_path / "missing")["moe_discovery_lost"] == {"": 1}


def told(path: Path) -> dict[str, dict[str, float]]:
    directory = FileDirectory(path)
    try:
        return {each.name: dict(each.values) for each in readings(directory)}
    finally:
        directory.close()
