"""The layer-call port: dispatches and partials on long-lived streams; grpcio behind it now, a native one later."""
