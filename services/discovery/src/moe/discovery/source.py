"""Opens the directory that a setting names: a file on one machine, a model in a cluster."""

import re
from pathlib import Path

from moe.discovery.directory import Directory
from moe.discovery.file import FileDirectory
from moe.runtime.errors import StartupError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")

HELP = (
    "Where experts and aggregators are listed, followed as it changes: file:PATH, or kubernetes:NAMESPACE/MODEL for a "
    "MoEModel, watched by the pod's service account or KUBECONFIG."
)


def open_directory(source: str) -> Directory:
    """source: file:PATH or kubernetes:NAMESPACE/MODEL. Raises StartupError."""
    scheme, _, place = source.partition(":")
    if scheme == "file" and place:
        return FileDirectory(Path(place))
    namespace, _, model = place.partition("/")
    if scheme == "kubernetes" and _NAME.fullmatch(namespace) and _NAME.fullmatch(model):
        from moe.discovery.cluster import ClusterDirectory

        return ClusterDirectory(namespace, model)
    raise StartupError(f"--discovery {source!r}: want file:PATH or kubernetes:NAMESPACE/MODEL")
