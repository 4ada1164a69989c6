"""The one error of the test cluster: every message names the thing, the value and what to do."""


class ClusterError(Exception):
    """The cluster, or something that it is made of, could not be made, started or ended."""
