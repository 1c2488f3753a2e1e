"""The Kubernetes-compatible API over the embedded store. `run.Server` starts it; a request goes protocol, app, handlers."""
