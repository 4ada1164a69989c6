"""What `moe status` says of the wire."""

import pytest
from moe.cli.status_table import wires_text


@pytest.mark.parametrize(
    ("wires", "text"),
    [
        (["native", "native"], "wire: native"),
        (["grpcio"], "wire: grpcio (about 7 times slower hops)"),
        (["native", "grpcio", ""], "wire: grpcio (about 7 times slower hops) and native"),
    ],
)
def test_the_wire_is_named_with_what_it_costs(wires: list[str], text: str) -> None:
    assert wires_text(wires) == text
