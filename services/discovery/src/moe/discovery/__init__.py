"""Who serves which expert, where and at which version; one port, a watched file behind it (Kubernetes later)."""
