"""MoEModel: a model package served with every expert group a Deployment of its own.

Everything accepted here acts on a workload; what does not act yet is not here, and the API server refuses it.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from moe.operator.naming import LONGEST_MODEL_NAME
from moe.operator.resources.fields import Rule, described, immutable
from moe.operator.resources.parts import Condition, Resources, Toleration

_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_SUB_PATH = r"^([A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)?$"
_RECREATE = "make another MoEModel"


@dataclass(frozen=True)
class PackageSource:
    """Where the model package lies: a persistent volume claim in the model's namespace, made by `moe convert`."""

    claim: str = described(
        "Name of the PersistentVolumeClaim. Every pod mounts it read-only, so one that several nodes may read "
        "(ReadOnlyMany, ReadWriteMany) lets pods spread.",
        longest=253,
        pattern=_NAME,
    )
    sub_path: str = described(
        "Folder of the package within the claim, such as models/demo; empty for the claim's root.",
        default="",
        longest=512,
        pattern=_SUB_PATH,
    )
    source: str = described(
        "What `moe convert` makes the package of while its folder holds none: `demo`, or the folder of a Hugging Face "
        "checkpoint within the claim, such as checkpoints/mixtral. Empty: the package has to be there.",
        default="",
        longest=512,
        pattern=_SUB_PATH,
    )
    conversion: Resources = described("Of the Job that converts the source.", default=Resources())

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.source == '' || (self.subPath != '' && self.subPath != self.source)",
            "a package that is made of a source needs a folder of its own; set subPath",
        ),
        Rule(
            "self.source != '' || (!has(self.conversion.requests) && !has(self.conversion.limits))",
            "conversion says how a source is converted; without source leave it out",
        ),
    )


@dataclass(frozen=True)
class Placed:
    """Where a component's pods go."""

    node_selector: dict[str, str] | None = described("Labels that a node must have.", default=None, most=32, longest=63)
    tolerations: tuple[Toleration, ...] = described("Taints that the pods put up with.", default=(), most=32)
    priority_class_name: str | None = described(
        "PriorityClass of the pods; none: the cluster's default.", default=None, longest=253, pattern=_NAME
    )


@dataclass(frozen=True)
class Router(Placed):
    """The front desk: tokenizer, attention, gate; what clients talk to."""

    replicas: int = described(
        "Router pods. Whoever scales the Deployment owns the number from then on.", default=1, minimum=0, maximum=64
    )
    resources: Resources = described("Of each router pod.", default=Resources())
    max_running: int = described(
        "Requests that one router computes at once; each holds a slot of the cache.",
        default=16,
        minimum=1,
        maximum=4096,
    )
    max_context: int = described(
        "Most tokens of prompt and answer together; the model's own bound holds as well.",
        default=4096,
        minimum=2,
        maximum=16777216,
    )
    kv_tokens: int = described(
        "Cache tokens promised to running requests of one router together.",
        default=32768,
        minimum=2,
        maximum=2147483647,
    )


@dataclass(frozen=True)
class Aggregator(Placed):
    """Adds the experts' weighted partial sums."""

    placement: Literal["own", "embedded"] = described(
        "own: a Deployment that all routers share. embedded: inside each router, which saves a hop and costs the "
        "router the additions.",
        default="own",
    )
    replicas: int = described(
        "Pods of placement own. Whoever scales the Deployment owns the number from then on.",
        default=1,
        minimum=1,
        maximum=64,
    )
    resources: Resources = described("Of each pod of placement own.", default=Resources())

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.placement == 'own' || (self.replicas == 1 && !has(self.resources.requests) && "
            "!has(self.resources.limits) && !has(self.nodeSelector) && size(self.tolerations) == 0 && "
            "!has(self.priorityClassName))",
            "an embedded aggregator has no pods of its own; leave everything but placement out, or use placement own",
        ),
    )


@dataclass(frozen=True)
class Experts(Placed):
    """The expert groups: one MoEExpert, Deployment and headless Service each."""

    per_pod: int = described(
        "Experts that one group holds, the last group maybe fewer; 1 gives every expert pods of its own.",
        default=1,
        minimum=1,
        maximum=4096,
        rules=(immutable("perPod", f"the groups would overlap while they change; {_RECREATE}"),),
    )
    replicas: int = described(
        "Pods of every group that nobody has scaled; `kubectl scale moeexpert/NAME` takes one group over.",
        default=1,
        minimum=0,
        maximum=64,
    )
    resources: Resources = described("Of each expert pod.", default=Resources())
    gpus: int = described(
        "GPUs (nvidia.com/gpu) set aside for each expert pod; 0 schedules it like any other pod.",
        default=0,
        minimum=0,
        maximum=16,
    )
    spread: Literal["nodes", "zones", "none"] = described(
        "Over what the replicas of a group spread where possible.", default="nodes"
    )


@dataclass(frozen=True)
class MissingExpert:
    """What happens to a request when an expert group does not answer."""

    policy: Literal["wait", "renormalise", "fail"] = described(
        "wait: until the layer's time is up, for an exact answer. renormalise: the other experts' weights are scaled "
        "up and the response says so. fail: the request ends with UNAVAILABLE.",
        default="wait",
    )


@dataclass(frozen=True)
class Routing:
    """How rows find their experts, and what happens when they don't. A change acts on new requests within seconds."""

    top_k: int = described(
        "Experts per token; 0 is the checkpoint's own, which alone gives its exact answers. More cost more.",
        default=0,
        minimum=0,
        maximum=4096,
    )
    strategy: Literal["family", "drop"] = described(
        "How topK experts are taken. family: by the family's own selection and weights, as if its configuration said "
        "topK. drop: the heaviest of the checkpoint's own choice with their own weights; the others' are dropped.",
        default="family",
    )
    missing_expert: MissingExpert = described("When an expert group does not answer.", default=MissingExpert())
    layer_timeout_seconds: float = described(
        "How long a layer may take, retries included.", default=120.0, minimum=0.05, maximum=86400
    )
    hedge_after_seconds: float = described(
        "Silence after which a part goes to another replica too; 0 derives it from what layers take.",
        default=0.0,
        minimum=0,
        maximum=86400,
    )
    deterministic: bool = described(
        "Whether a request's tokens are the same to the bit whatever shares its batch; slower, and a change rolls all "
        "pods.",
        default=False,
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.strategy == 'family' || self.topK > 0",
            "strategy drop leaves experts out; set topK to how many are to stay",
        ),
        Rule(
            "self.hedgeAfterSeconds < self.layerTimeoutSeconds",
            "hedgeAfterSeconds has to be below layerTimeoutSeconds, or the second replica is never asked in time",
        ),
    )


@dataclass(frozen=True)
class ModelSpec:
    """What is wished of a model."""

    package: PackageSource = described(
        "Where the model package lies.",
        rules=(immutable("package", f"its experts would be mixed with the new ones; {_RECREATE}"),),
    )
    image: str | None = described(
        "Image of all pods, such as registry/moe:0.1.0; none: the operator's own.", default=None, longest=512
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = described(
        "When nodes pull the image.", default="IfNotPresent"
    )
    image_pull_secrets: tuple[str, ...] = described(
        "Names of Secrets by which nodes pull the image.", default=(), most=16, longest=253, pattern=_NAME
    )
    router: Router = described("The routers.", default=Router())
    aggregator: Aggregator = described("The aggregators.", default=Aggregator())
    experts: Experts = described("The expert groups.", default=Experts())
    routing: Routing = described("How rows are routed.", default=Routing())


@dataclass(frozen=True)
class PackageFacts:
    """What the package holds, read once by a Job."""

    name: str = described("The package's own name.", longest=63)
    digest: str = described("sha256 of its manifest, which holds the sha256 of every file.", longest=64)
    experts: int = described("Expert ids, of the widest layer.", minimum=1)
    layers: int = described("Layers with experts.", minimum=1)
    topk: int = described("Experts that a token goes to in each layer.", minimum=1)


@dataclass(frozen=True)
class ModelStatus:
    """What the operator sees."""

    observed_generation: int = described("The metadata.generation that this is about.", default=0, minimum=0)
    package: PackageFacts | None = described("What the package holds.", default=None)
    experts: str = described("Expert groups with a ready replica, of all: 7/8.", default="", longest=32)
    routers: str = described("Ready routers, of those wished: 1/1.", default="", longest=32)
    endpoint: str = described("Where clients in the cluster dial: host:port of gRPC.", default="", longest=253)
    conditions: tuple[Condition, ...] = described("What is so and why.", default=(), most=16, list_key="type")


@dataclass(frozen=True)
class MoEModel:
    """A Mixture-of-Experts model served with every expert group a Deployment of its own."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"size(self.metadata.name) <= {LONGEST_MODEL_NAME}",
            f"a model's name has at most {LONGEST_MODEL_NAME} characters, as names of pods are made from it",
        ),
        Rule(
            "self.metadata.name.matches('^[a-z]([a-z0-9-]*[a-z0-9])?$')",
            "a model's name begins with a letter and holds only a-z, 0-9 and -, as it becomes a host name",
        ),
        Rule(
            "!self.metadata.name.matches('-(g?[0-9]{3,}|router|aggregator|expert|package|discovery)$')",
            "a model's name must not end like the name of one of its parts (-003, -g001, -router, -aggregator, "
            "-expert, -package, -discovery): it could be taken for another model's part",
        ),
    )

    spec: ModelSpec = described("What is wished.")
    status: ModelStatus | None = described("What the operator sees; written by it alone.", default=None)
