"""What the implementations of the wire are called, for people too; without torch, for the supervisor."""

WIRES = ("grpcio", "native")
SLOWER = 7
"""About how many times slower grpcio's hops are than the native wire's: the layer calls of docs/performance.md."""


def told(name: str) -> str:
    """The name of an implementation for people, with what it costs."""
    return f"{name} (about {SLOWER} times slower hops)" if name == "grpcio" else name
