"""Where each part of the next layer call goes when all goes well: a replica of every group, chosen beforehand."""

from collections.abc import Callable, Collection

from moe.router.groups import Fleet
from moe.router.replicas import choose_replica
from moe.wire.port import Places


class PlaceFinder:
    """Remembers the last answer, which stays the same object for as long as it is the same."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._places: Places | None = None

    def find(
        self, fleet: Fleet, queued_rows: Callable[[str], int], suspects: Collection[str], turn: int
    ) -> Places | None:
        """None when a group has no ready replica. queued_rows, suspects, turn: as of `choose_replica`."""
        if fleet is self._fleet and not fleet.replicated:
            return self._places
        endpoints: list[str] = []
        for group in fleet.groups:
            replica = choose_replica(fleet.ready(group.name), queued_rows, suspects, turn)
            if replica is None:
                break
            endpoints.append(replica.endpoint)
        whole = len(endpoints) == len(fleet.groups)
        found = Places(tuple(fleet.part_of_expert.tolist()), tuple(endpoints)) if whole else None
        if found != self._places:
            self._places = found
        self._fleet = fleet
        return self._places
