"""A model on a Kubernetes cluster, as commands reach it: found by its MoEModel, its pods through the API server."""
