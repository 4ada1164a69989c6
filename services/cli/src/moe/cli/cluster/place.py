"""Where on which cluster a model is, as it was typed or as the kubeconfig has it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """What was asked for; empty means: as the kubeconfig has it, and the namespace's only model."""

    context: str = ""
    namespace: str = ""
    model: str = ""

    def __bool__(self) -> bool:
        return bool(self.context or self.namespace or self.model)


NOWHERE = Place()
"""Not on a cluster."""


@dataclass(frozen=True)
class Site:
    """A namespace of a cluster. context: of the kubeconfig; empty inside the cluster."""

    context: str
    namespace: str

    def __str__(self) -> str:
        where = f"context {self.context}" if self.context else "this pod's cluster"
        return f"{where}, namespace {self.namespace}"

    @property
    def kubectl(self) -> str:
        """The command that asks there, for remedies."""
        context = f" --context {self.context}" if self.context else ""
        return f"kubectl{context} -n {self.namespace}"
