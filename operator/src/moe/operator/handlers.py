"""What kopf calls: every change of a watched object goes to the world and names the model to look at again.

No finalizer, no annotation, no state of kopf's own on any object: owner references delete, and the reconciler reads
everything anew. kopf lists and watches, reconnects, and holds the first handling back until all kinds are listed.
"""

from typing import Any

import kopf
from moe.operator.kinds import WATCHED, Kind
from moe.operator.naming import MODEL_LABEL
from moe.operator.reconciler import Reconciler
from moe.operator.world import World


def registry_of(world: World, reconciler: Reconciler) -> kopf.OperatorRegistry:
    """The handlers of an operator."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)

    async def end(**_: Any) -> None:
        await reconciler.close()

    kopf.on.cleanup(registry=registry)(end)
    for kind in WATCHED:
        _watch(registry, kind, world, reconciler)
    return registry


def kopf_settings() -> kopf.OperatorSettings:
    """Reads only what carries a model's label, and nothing that needs rights in the whole cluster."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 5.0
    settings.queueing.exit_timeout = 0.5
    settings.watching.connect_timeout = 5.0
    settings.watching.server_timeout = 300  # whole seconds: the API server takes no fraction
    for kind in WATCHED:
        if kind.labelled:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = MODEL_LABEL
    return settings


def _watch(registry: kopf.OperatorRegistry, kind: Kind, world: World, reconciler: Reconciler) -> None:
    place = (kind.group, kind.version, kind.plural)

    async def keep(body: kopf.Body, **_: Any) -> None:
        """Before any handling; kopf waits until this has seen every object that there is."""
        world.put(_plain(body, kind))

    async def attend(event: kopf.RawEvent, body: kopf.Body, **_: Any) -> None:
        plain = _plain(body, kind)
        concerned = world.drop(plain) if event["type"] == "DELETED" else world.concerned(plain)
        for key in concerned:
            reconciler.look_at(key)

    kopf.index(*place, id=f"keep-{kind.plural}", registry=registry)(keep)
    kopf.on.event(*place, id=f"attend-{kind.plural}", registry=registry)(attend)


def _plain(body: kopf.Body, kind: Kind) -> dict[str, Any]:
    """The object as a mapping of its own; a list's items come without kind and version."""
    return {**body, "kind": kind.name, "apiVersion": kind.api_version}


async def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """As the pod's account, or else as kubectl would."""
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
