"""Who we are to which cluster: a pod's own account inside, a context of the kubeconfig elsewhere."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe.cli.cluster.place import Place, Site
from moe.cli.errors import UsageError

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_REMEDY = "set KUBECONFIG to a kubeconfig, choose a context with --context"


def inside(environ: Mapping[str, str], place: Place) -> bool:
    """Whether this is a pod that is to talk to its own cluster: pods' addresses answer then."""
    return "KUBERNETES_SERVICE_HOST" in environ and "KUBECONFIG" not in environ and not place.context


async def configured(environ: Mapping[str, str], place: Place) -> tuple["Configuration", Site]:
    """How to ask, and where. Asks nothing yet. Raises UsageError when there is no such way."""
    from kubernetes.aio import config
    from kubernetes.aio.client import Configuration

    configuration = Configuration()
    # the client itself looks at KUBECONFIG only once, when it is imported
    files = environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    try:
        if inside(environ, place):
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            return configuration, Site("", place.namespace or _own_namespace())
        name, chosen = _context(files, place.context)
        await config.load_kube_config(files, context=name, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise UsageError(f"no way to a cluster: {error}; {_REMEDY}") from error
    return configuration, Site(name, place.namespace or str(chosen.get("namespace") or "default"))


def _context(files: str, wanted: str) -> tuple[str, Mapping[str, Any]]:
    """The context of that name, or the current one. files: separated as KUBECONFIG separates them."""
    import yaml
    from kubernetes.aio.config.kube_config import KubeConfigMerger

    if not any(Path(file).expanduser().is_file() for file in files.split(os.pathsep) if file):
        raise UsageError(f"no way to a cluster: there is no kubeconfig {files}; {_REMEDY}")
    try:
        merged: dict[str, Any] = KubeConfigMerger(files).config.value  # type: ignore[no-untyped-call]
        known = {str(each.value["name"]): each.value.get("context") or {} for each in merged["contexts"]}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"no way to a cluster: {files} is no kubeconfig ({error}); {_REMEDY}") from error
    name = wanted or str(merged.get("current-context") or "")
    if not name:
        raise UsageError(f"{files} has no current context; choose one with --context: {_listed(known)}")
    if name not in known:
        raise UsageError(f"there is no context {name!r} in {files}; there are: {_listed(known)}")
    return name, known[name]


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none"


def _own_namespace() -> str:
    return _ACCOUNT_NAMESPACE.read_text().strip()
