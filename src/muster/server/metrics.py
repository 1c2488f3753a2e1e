"""What the server counts, for `/metrics`. Names that Kubernetes has too keep Kubernetes' names, so its dashboards work.

One registry per server, so that several can live in one process. Label values come only from known resources and verbs:
a client can't make up new series. Rendering goes to a worker thread, because thousands of series take a while.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from muster.server.config import ServerLimits

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_KNOWN_VERBS = frozenset({"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"})


class Metrics:
    def __init__(self, limits: ServerLimits) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.requests = Counter(
            "apiserver_request",
            "Requests by verb, resource and code",
            ["verb", "group", "resource", "subresource", "code"],
            registry=self.registry,
        )
        self.latency = Histogram(
            "apiserver_request_duration_seconds",
            "Time from the end of the headers to the end of the answer; watches are not counted here",
            ["verb", "group", "resource"],
            buckets=_LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "apiserver_current_inflight_requests", "Requests being served now", ["request_kind"], registry=self.registry
        )
        self.watches = Gauge(
            "apiserver_longrunning_requests",
            "Watches, followed logs and connections into pods open now",
            registry=self.registry,
        )
        self.watch_events = Counter(
            "apiserver_watch_events", "Events sent to watchers", ["group", "resource"], registry=self.registry
        )
        self.refused = Counter(
            "muster_server_refused", "Requests refused because a limit was reached", ["limit"], registry=self.registry
        )
        self.queued = Gauge(
            "apiserver_flowcontrol_current_inqueue_requests",
            "Requests that wait to be served, and watches and long answers that wait for their next turn",
            ["priority_level"],
            registry=self.registry,
        )
        self.executing = Gauge(
            "apiserver_flowcontrol_current_executing_requests",
            "Requests being served now, by priority level",
            ["priority_level"],
            registry=self.registry,
        )
        self.rejected = Counter(
            "apiserver_flowcontrol_rejected_requests",
            "Requests that were not served: the queue was full, or they waited too long or were given up",
            ["priority_level", "reason"],
            registry=self.registry,
        )
        self.waited = Histogram(
            "apiserver_flowcontrol_request_wait_duration_seconds",
            "How long requests waited that could not be served at once",
            ["priority_level"],
            buckets=_LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.held_bytes = Gauge(
            "muster_server_held_bytes",
            "Bytes held for clients: bodies that arrive or wait, answers on their way, events that watchers have not read",
            ["what"],
            registry=self.registry,
        )
        self.handshakes = Gauge(
            "muster_server_handshakes", "Connections that are not through their TLS handshake", registry=self.registry
        )
        self.node_streams = Gauge(
            "muster_server_node_streams", "Connections into pods that are open or being opened", registry=self.registry
        )
        self.authentication = Counter(
            "authentication_attempts", "Authentications by outcome", ["result"], registry=self.registry
        )
        self.connections = Gauge("muster_server_connections", "Open connections", registry=self.registry)
        self.audit_dropped = Gauge("muster_server_audit_dropped", "Audit lines that were lost", registry=self.registry)
        bounds = Gauge("muster_server_limit", "The configured bounds", ["name"], registry=self.registry)
        for name in limits.__struct_fields__:
            bounds.labels(name).set(float(getattr(limits, name)))
        # Children are looked up once and kept: `labels()` costs more than the observation itself.
        self._counters: dict[tuple[str, str, str, str, int], Callable[[], None]] = {}
        self._histograms: dict[tuple[str, str, str], Callable[[float], None]] = {}

    def request_done(self, *, verb: str, group: str, resource: str, subresource: str, code: int, seconds: float | None) -> None:
        """`resource` must be "" unless it is a served one; `seconds` None for watches."""
        verb = verb if verb in _KNOWN_VERBS else "other"
        key = (verb, group, resource, subresource, code)
        count = self._counters.get(key)
        if count is None:
            count = self._counters[key] = self.requests.labels(verb, group, resource, subresource, str(code)).inc
        count()
        if seconds is not None:
            observe = self._histograms.get(key[:3])
            if observe is None:
                observe = self._histograms[key[:3]] = self.latency.labels(verb, group, resource).observe
            observe(seconds)

    def render(self) -> bytes:
        """The text that Prometheus scrapes. Thread-safe."""
        return generate_latest(self.registry)
