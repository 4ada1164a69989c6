"""The operator and those who discover mean the same names."""

from moe.discovery import names
from moe.operator import naming


def test_the_operators_names_are_those_that_discovery_reads() -> None:
    assert (
        names.GROUP,
        names.VERSION,
        names.MODELS,
        names.EXPERTS,
        names.MODEL_LABEL,
        names.COMPONENT_LABEL,
        names.GROUP_LABEL,
        names.GRPC_PORT_NAME,
    ) == (
        naming.GROUP,
        naming.VERSION,
        naming.MODEL_PLURAL,
        naming.EXPERT_PLURAL,
        naming.MODEL_LABEL,
        naming.COMPONENT_LABEL,
        naming.GROUP_LABEL,
        naming.GRPC_PORT_NAME,
    )


def test_the_components_that_discovery_looks_for_are_labelled_so() -> None:
    labels = [naming.labels("m", "expert", "g"), naming.labels("m", "aggregator"), naming.labels("m", "router")]
    assert [each[names.COMPONENT_LABEL] for each in labels] == [
        names.EXPERT_COMPONENT,
        names.AGGREGATOR_COMPONENT,
        names.ROUTER_COMPONENT,
    ]
