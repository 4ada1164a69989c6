"""The layer-call port: dispatches and partials on long-lived streams, with grpcio behind it (and later a native one)."""
