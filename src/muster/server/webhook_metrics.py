"""What is counted of admission webhooks that this server calls. Names that Kubernetes has too keep Kubernetes' names.

Label values are webhook names, which users choose: the first `NAMES_MAX` are kept apart, all later ones are `other`.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

NAMES_MAX: Final = 100
OTHER: Final = "other"
_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class WebhookMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._names: set[str] = set()
        self._requests = Counter(
            "apiserver_admission_webhook_request",
            "Calls of admission webhooks, by HTTP-like code: 200 allowed, else that of the refusal, 0 when there was no answer",
            ["name", "type", "operation", "code", "rejected"],
            registry=registry,
        )
        self._latency = Histogram(
            "apiserver_admission_webhook_admission_duration_seconds",
            "Time to ask an admission webhook and to read its answer",
            ["name", "type", "operation", "rejected"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._rejections = Counter(
            "muster_admission_webhook_rejections",
            "Writes refused because of an admission webhook, by error_type: no_error when it said no, calling_webhook_error "
            "when it gave no answer and has to, apiserver_internal_error when what it wanted could not be done",
            ["name", "type", "operation", "error_type"],
            registry=registry,
        )
        self._fail_open = Counter(
            "muster_admission_webhook_fail_open",
            "Calls of admission webhooks that got no answer and were let pass, as their failurePolicy says",
            ["name", "type"],
            registry=registry,
        )

    def called(self, name: str, type_: str, operation: str, *, code: int, is_rejected: bool, seconds: float) -> None:
        name, rejected = self._known(name), "true" if is_rejected else "false"
        self._requests.labels(name, type_, operation, str(code), rejected).inc()
        self._latency.labels(name, type_, operation, rejected).observe(seconds)

    def rejected(self, name: str, type_: str, operation: str, error_type: str) -> None:
        self._rejections.labels(self._known(name), type_, operation, error_type).inc()

    def failed_open(self, name: str, type_: str) -> None:
        self._fail_open.labels(self._known(name), type_).inc()

    def _known(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) >= NAMES_MAX:
            return OTHER
        self._names.add(name)
        return name
