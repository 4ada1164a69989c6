"""Brings the cluster's custom resource definitions up to this version: `python -m moe.operator.install`.

The chart runs it before each install and upgrade. Definitions of a newer version stay, as another release in the
cluster may stand on them, and they are a superset.
"""

import asyncio
import sys

from moe.operator.cluster import Cluster, ClusterError
from moe.operator.manifests import Manifest
from moe.operator.resources import definitions
from moe.operator.served_definitions import DEFINITIONS_PATH, release_of, schema_of

_MANAGER = "helm"
"""Helm 4 applies crds/ server-side at every install and fails where another manager holds another value; so what this
writes is Helm's, and the next release's newer definitions go in without a conflict."""

_ESTABLISHED_S = 30.0


async def install(cluster: Cluster) -> list[str]:
    """Applies the definitions that are missing, older or other ones of this version; returns a line about each. Raises
    ClusterError, and TimeoutError when the API server takes one without serving it."""
    lines = []
    for wanted in definitions():
        name = wanted["metadata"]["name"]
        found = await _found(cluster, name)
        theirs, ours = release_of(found), release_of(wanted)
        if found is not None and theirs > ours:
            lines.append(f"{name} is of version {_dotted(theirs)}, newer than {_dotted(ours)}; it stays")
            continue
        if found is not None and schema_of(found) == schema_of(wanted):
            lines.append(f"{name} is of version {_dotted(ours)} already")
            continue
        await cluster.apply_at(f"{DEFINITIONS_PATH}/{name}", wanted, manager=_MANAGER)
        await _established(cluster, name)
        lines.append(f"{name} is of version {_dotted(ours)}")
    return lines


async def _found(cluster: Cluster, name: str) -> Manifest | None:
    try:
        return await cluster.get(f"{DEFINITIONS_PATH}/{name}")
    except ClusterError as error:
        if error.status == 404:
            return None
        raise


async def _established(cluster: Cluster, name: str) -> None:
    async with asyncio.timeout(_ESTABLISHED_S):
        while True:
            status = (await cluster.get(f"{DEFINITIONS_PATH}/{name}")).get("status", {})
            answers = {each["type"]: each["status"] for each in status.get("conditions", ())}
            if answers.get("Established") == "True":
                return
            await asyncio.sleep(0.1)


def _dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


async def _run() -> int:
    cluster = await Cluster.connect()
    try:
        for line in await install(cluster):
            print(line)
    except (ClusterError, TimeoutError) as error:
        print(f"the definitions are not brought up to date: {str(error) or 'not served in time'}", file=sys.stderr)
        return 1
    finally:
        await cluster.close()
    return 0


def main() -> int:
    """Returns 0, or 1 when the cluster refuses."""
    try:
        return asyncio.run(_run())
    except ClusterError as error:
        print(f"no cluster: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
