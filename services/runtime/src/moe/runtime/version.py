"""The version of moe that runs."""

from importlib.metadata import PackageNotFoundError, version

_DISTRIBUTION = "moe-runtime"


def moe_version() -> str:
    """The installed version, such as `0.1.0`; `unknown` when the sources run without being installed."""
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
