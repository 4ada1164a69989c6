"""Kubeconfigs: JSON, which is YAML, with the certificates inside, so that one file is all that a client needs."""

import base64
import json
from pathlib import Path

import yaml


def write(path: Path, server: str, pki: Path, identity: str) -> None:
    """For the identity whose certificate lies in the folder; in one step."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "moe", "cluster": {"server": server, "certificate-authority-data": _data(pki / "ca.crt")}}
        ],
        "users": [
            {
                "name": identity,
                "user": {
                    "client-certificate-data": _data(pki / f"{identity}.crt"),
                    "client-key-data": _data(pki / f"{identity}.key"),
                },
            }
        ],
        "contexts": [{"name": "moe", "context": {"cluster": "moe", "user": identity, "namespace": "default"}}],
        "current-context": "moe",
    }
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(json.dumps(document, indent=1) + "\n")
    new.replace(path)


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")


def with_token(path: Path, token: str, to: Path) -> Path:
    """The kubeconfig at `path`, any of this world, with a token in place of its users' ways in; written to `to`."""
    document = yaml.safe_load(path.read_text())
    for user in document["users"]:
        user["user"] = {"token": token}
    to.touch(mode=0o600)
    to.write_text(json.dumps(document))
    return to
