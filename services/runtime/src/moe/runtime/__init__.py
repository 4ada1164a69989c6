"""What all services of moe share; knows nothing of models, kernels or Kubernetes.

errors (the statuses that may leave a service), settings, server (with lifecycle, interception, addresses, control),
tensors, process, entry (exit codes), program (a service's main), logs, metrics, traces, telemetry, version.
"""
