"""Whether what is wished differs from what is there, so that nothing is written that has not changed.

The digest of what was applied last finds every change of wishes, removals too; comparing field by field finds what
others have changed since. Fields that the wishes don't name are somebody else's.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from moe.operator.amounts import amount
from moe.operator.manifests import Manifest
from moe.operator.naming import DIGEST_ANNOTATION, FIELD_MANAGER, REPLICAS_MANAGER


def digest(manifest: Manifest) -> str:
    """Of a manifest, the same for the same wishes."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]


def marked(manifest: Manifest) -> Manifest:
    """The manifest as it is applied: with the digest of itself."""
    annotations = {**manifest["metadata"].get("annotations", {}), DIGEST_ANNOTATION: digest(manifest)}
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}


def differs(wished: Manifest, found: Mapping[str, Any] | None) -> bool:
    """Whether a marked manifest has to be applied. found: the object as it is, None when there is none."""
    return found is None or not covers(found, wished)


def covers(found: Any, wished: Any) -> bool:
    """Whether all that is wished is there. Amounts are compared as numbers: `1000m` is `1`."""
    if isinstance(wished, Mapping):
        return isinstance(found, Mapping) and all(
            covers(found[key], value) if key in found else _is_nothing(value) for key, value in wished.items()
        )
    if isinstance(wished, list):
        return (
            isinstance(found, list)
            and len(found) == len(wished)
            and all(covers(one, other) for one, other in zip(found, wished, strict=True))
        )
    return bool(found == wished) or _same_amount(found, wished)


def replicas_are_ours(found: Mapping[str, Any]) -> bool:
    """Whether nobody but the operator has set `spec.replicas` of an object (slimmed by `slim`)."""
    return replica_owners(found) <= {REPLICAS_MANAGER, FIELD_MANAGER} and not _scaled_to_nothing(found)


def replicas_are_claimed(found: Mapping[str, Any]) -> bool:
    """Whether anybody owns them beside the manager that made the object, who will let go of them.

    While a default is nobody's, Kubernetes does not note who scales it: so it is claimed.
    """
    return bool(replica_owners(found) - {FIELD_MANAGER}) or _scaled_to_nothing(found)


def _scaled_to_nothing(found: Mapping[str, Any]) -> bool:
    """Whether somebody has scaled to 0: a 0 is left out of a Scale on its way, so Kubernetes notes it as nobody's."""
    return not replica_owners(found) and found["spec"].get("replicas") == 0


def replica_owners(found: Mapping[str, Any]) -> set[str]:
    """Field managers that own `spec.replicas`."""
    return {str(entry.get("manager")) for entry in found["metadata"].get("managedFields", ())}


def slim(body: Mapping[str, Any]) -> Manifest:
    """A body as the operator keeps it: of its field managers only those who own `spec.replicas`."""
    managed = [
        {"manager": entry.get("manager"), "operation": entry.get("operation")}
        for entry in body["metadata"].get("managedFields", ())
        if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
    ]
    return {**body, "metadata": {**body["metadata"], "managedFields": managed}}


def _is_nothing(value: Any) -> bool:
    """Whether the API server leaves the field out; a number it keeps, 0 too."""
    return value is None or value is False or (not isinstance(value, int) and not value)


def _same_amount(found: Any, wished: Any) -> bool:
    try:
        return amount(str(found)) == amount(str(wished))
    except (ValueError, ArithmeticError):
        return False
