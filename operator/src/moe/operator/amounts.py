"""Amounts as Kubernetes writes them, and how many threads an amount of processor is worth."""

from decimal import Decimal

from moe.operator.resources import Resources

_SUFFIXES = {
    "m": Decimal("0.001"),
    "": Decimal(1),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGT", start=1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGT", start=1)},
}


def amount(quantity: str) -> Decimal:
    """The number that a quantity is: `500m` is 0.5, `1Ki` is 1024. Raises ValueError for anything else."""
    digits = quantity.rstrip("mkKMGTi")
    factor = _SUFFIXES.get(quantity[len(digits) :])
    if factor is None or not digits:
        raise ValueError(f"{quantity!r} is no quantity; want a number with m, k, Ki, M, Mi, G, Gi, T, Ti or nothing")
    return Decimal(digits) * factor


def threads_of(resources: Resources) -> int:
    """Threads that compute in a pod: the whole cores of its limit, else of its request, at least one."""
    for given in (resources.limits, resources.requests):
        if given is not None and given.cpu is not None:
            return max(1, int(amount(given.cpu)))
    return 1
