"""The Job that reads what a package holds: its few facts reach the operator as the pod's termination message.

So the operator needs no right to read logs and no mount of its own, and a package that can't be used is known before
any expert is started for it.
"""

from moe.operator.manifests.context import Manifest, ModelContext, metadata
from moe.operator.manifests.pods import (
    container_security,
    environment,
    placement,
    pod_security,
    tmp_mount,
    volumes,
)
from moe.operator.naming import CONVERSION_ANNOTATION, PACKAGE_PATH, account_name, inspection_name, labels

_DEADLINE_S = 600
_AGAIN_S = 60
_REPORT = "/dev/termination-log"


def inspection(model: ModelContext, after: str = "") -> Manifest:
    """The Job. after: uid of the conversion that has made the package, if one has.

    It sees the whole claim, to say what is there when the package is not. It goes by itself a minute after its end;
    what has been read stands in the status by then, and what could not be read is looked at again.
    """
    spec: Manifest = {
        "serviceAccountName": account_name(model.name, "package"),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": pod_security(),
        "containers": [
            {
                "name": "package",
                "image": model.image,
                "imagePullPolicy": model.spec.image_pull_policy,
                "command": ["python", "-m", "moe.operator.package_reader"],
                "args": [_folder(model), f"--report={_REPORT}"],
                "env": environment(1),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "securityContext": container_security(),
                "volumeMounts": [{"name": "package", "mountPath": PACKAGE_PATH, "readOnly": True}, tmp_mount()],
            }
        ],
        "volumes": volumes(model),
        **placement(model.spec.router),
    }
    if model.spec.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in model.spec.image_pull_secrets]
    name = inspection_name(model.name)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(model, name, "package", model.owner),
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": _AGAIN_S,
            "activeDeadlineSeconds": _DEADLINE_S,
            "template": {
                "metadata": {"labels": labels(model.name, "package"), "annotations": {CONVERSION_ANNOTATION: after}},
                "spec": spec,
            },
        },
    }


def _folder(model: ModelContext) -> str:
    inside = model.spec.package.sub_path
    return f"{PACKAGE_PATH}/{inside}" if inside else PACKAGE_PATH
