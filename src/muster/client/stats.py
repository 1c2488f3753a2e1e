"""What a client is doing, as plain counters, and as metrics for whoever exposes them.

`TransportStats` is written on the client's event loop and may be read from anywhere: a reader sees each number whole.
`collector` is the only thing here that needs prometheus-client, and imports it when called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector


class TransportStats(msgspec.Struct, kw_only=True):
    in_flight: int = 0
    in_flight_max: int = 0
    in_flight_limit: int = 0
    """What is allowed now: less than `in_flight_max` while the server says that it is too busy."""
    waiting: int = 0
    """Requests that wait for one of the `in_flight_max` slots."""
    streams: int = 0
    streams_max: int = 0
    requests: int = 0
    """Calls, however often each was sent."""
    failures: int = 0
    """Attempts that ended in an error, refusals by the server included."""
    retries: int = 0
    retries_refused: int = 0
    """Repetitions that the budget did not allow."""
    watch_resumes: int = 0
    last_error: str = ""
    """What the last repetition was for."""


METRICS: Mapping[str, tuple[str, str, str]] = {
    "muster_client_in_flight": ("gauge", "in_flight", "Requests that have been sent and not answered"),
    "muster_client_in_flight_max": ("gauge", "in_flight_max", "Bound of muster_client_in_flight"),
    "muster_client_in_flight_limit": (
        "gauge",
        "in_flight_limit",
        "What may be in flight now; lower while the server is too busy",
    ),
    "muster_client_waiting": ("gauge", "waiting", "Requests that wait for a free slot"),
    "muster_client_streams": ("gauge", "streams", "Open watches and logs"),
    "muster_client_streams_max": ("gauge", "streams_max", "Bound of muster_client_streams"),
    "muster_client_requests": ("counter", "requests", "Requests made, each counted once however often it was sent"),
    "muster_client_failures": ("counter", "failures", "Attempts that failed or were refused"),
    "muster_client_retries": ("counter", "retries", "Requests sent again"),
    "muster_client_retries_refused": ("counter", "retries_refused", "Repetitions that the retry budget did not allow"),
    "muster_client_watch_resumes": ("counter", "watch_resumes", "Watches taken up again after their connection ended"),
}


def collector(clients: Callable[[], Iterable[tuple[str, TransportStats]]]) -> Collector:
    """A prometheus collector over the named clients that `clients` gives at the time of each scrape."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector as Base

    class ClientCollector(Base):
        def collect(self) -> Iterator[Metric]:
            known = list(clients())
            for name, (kind, field, text) in METRICS.items():
                family: Metric
                if kind == "counter":
                    counter = CounterMetricFamily(name, text, labels=["client"])
                    for client, stats in known:
                        counter.add_metric([client], getattr(stats, field))
                    family = counter
                else:
                    gauge = GaugeMetricFamily(name, text, labels=["client"])
                    for client, stats in known:
                        gauge.add_metric([client], getattr(stats, field))
                    family = gauge
                yield family

    return ClientCollector()
