"""A process that gives claims of the cluster's storage class a folder each, and takes it back with the claim.

Every real cluster has a default storage class; with this one a test that asks for a claim runs here as it does there.
The volumes are `local` ones of the one node, so that fsGroup acts as it does on a disk.
"""

import logging
import shutil
import sys
import time
from pathlib import Path

from . import node
from .addons import PROVISIONER, STORAGE_CLASS
from .api import Api, Document, RefusedError

logger = logging.getLogger("moe.test.provisioner")

_BETWEEN_PASSES_S = 0.5
"""Two lists each time; a few objects, one reader: a watch would be ten times the code."""

_ANNOTATION = "pv.kubernetes.io/provisioned-by"
_VOLUMES = "/api/v1/persistentvolumes"
_CLAIMS = "/api/v1/persistentvolumeclaims"


class Provisioner:
    """Folders below `volumes`, named by the claims' uids."""

    def __init__(self, api: Api, volumes: Path) -> None:
        self._api = api
        self._volumes = volumes

    def pass_over_all(self) -> None:
        """Gives every waiting claim its volume and takes back every released one. Raises RefusedError, OSError."""
        for claim in self._api.get(_CLAIMS)["items"]:
            if claim["spec"].get("storageClassName") == STORAGE_CLASS and not claim["spec"].get("volumeName"):
                self._give(claim)
        for volume in self._api.get(_VOLUMES)["items"]:
            ours = volume["metadata"].get("annotations", {}).get(_ANNOTATION) == PROVISIONER
            if ours and volume["status"].get("phase") in {"Released", "Failed"}:
                self._take_back(volume)

    def _give(self, claim: Document) -> None:
        meta = claim["metadata"]
        folder = self._volumes / meta["uid"]
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        try:
            self._api.request("POST", _VOLUMES, volume_for(claim, folder))
            logger.info("gave %s/%s %s", meta["namespace"], meta["name"], folder)
        except RefusedError as error:
            if error.status != 409:
                raise

    def _take_back(self, volume: Document) -> None:
        name = volume["metadata"]["name"]
        shutil.rmtree(volume["spec"]["local"]["path"], ignore_errors=True)
        self._api.request("DELETE", f"{_VOLUMES}/{name}")
        logger.info("took %s back", name)


def volume_for(claim: Document, folder: Path) -> Document:
    """A PersistentVolume bound to that claim alone, on the one node."""
    meta = claim["metadata"]
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.NAME]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"moe-{meta['uid']}", "annotations": {_ANNOTATION: PROVISIONER}},
        "spec": {
            "capacity": claim["spec"]["resources"]["requests"],
            "accessModes": claim["spec"]["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": STORAGE_CLASS,
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                **{key: meta[key] for key in ("name", "namespace", "uid")},
            },
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
        },
    }


def main(port: str, pki: str, volumes: str) -> None:
    """Runs until it is ended; an API server that is away is waited for."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    provisioner = Provisioner(Api("127.0.0.1", int(port), Path(pki), "provisioner"), Path(volumes))
    while True:
        try:
            provisioner.pass_over_all()
        except (RefusedError, OSError) as error:
            logger.warning("%s", error)
        time.sleep(_BETWEEN_PASSES_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
