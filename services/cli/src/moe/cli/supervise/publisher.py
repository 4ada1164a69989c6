"""Writes what others read of a deployment: the directory for its parts, the state file for `moe status`."""

import os
from collections.abc import Callable

from moe.cli.supervise import state_file
from moe.cli.supervise.deployment import Deployment
from moe.cli.supervise.fleet import Fleet
from moe.cli.supervise.lifecycle import Process
from moe.cli.supervise.notices import Notice
from moe.cli.supervise.spec import ProcessSpec
from moe.cli.supervise.state_file import DeploymentRecord, ProcessRecord
from moe.discovery import file as directory_file


class Publisher:
    """Publishes a fleet's state; what can't be written is said once and tried again at the next flush."""

    def __init__(self, deployment: Deployment, fleet: Fleet, notify: Callable[[Notice], None]) -> None:
        self._deployment = deployment
        self._fleet = fleet
        self._notify = notify
        self._version = 0
        self._changed = True
        self._complained = False

    def changed(self) -> None:
        """Something is to be written at the next flush."""
        self._changed = True

    def flush(self) -> None:
        """Writes both files if something changed."""
        if not self._changed:
            return
        self._version += 1
        try:
            directory_file.write(
                self._deployment.directory, self._fleet.snapshot(self._deployment.model, self._version)
            )
            state_file.write(self._deployment.folder, self._record())
        except OSError as error:
            if not self._complained:
                self._notify(Notice("unwritten", f"can't write {error.filename}: {error.strerror}; trying again"))
            self._complained = True
            return
        self._changed = self._complained = False

    def _record(self) -> DeploymentRecord:
        deployment = self._deployment
        return DeploymentRecord(
            name=deployment.name,
            model=deployment.model,
            package=deployment.package,
            pid=os.getpid(),
            pid_started=state_file.own_start(),
            address=deployment.address,
            up=self._fleet.up,
            processes=process_records(self._fleet),
        )


def process_records(fleet: Fleet) -> tuple[ProcessRecord, ...]:
    """Every process of a fleet as it stands, in the order of the plan."""
    return tuple(_record(spec, fleet.processes[spec.name]) for spec in fleet.specs.values())


def _record(spec: ProcessSpec, process: Process) -> ProcessRecord:
    return ProcessRecord(
        name=spec.name,
        role=spec.role.value,
        state=process.state.value,
        pid=process.pid,
        restarts=process.restarts,
        endpoint=spec.endpoint,
        group=spec.group,
        experts=spec.experts,
        reason=process.reason,
    )
