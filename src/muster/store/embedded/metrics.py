"""The store's numbers for Prometheus: each limit beside what is used of it.

Read when they are asked for: the store itself only counts. `collect` may run in any thread, while the store works; it takes no
locks (see `usage.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from muster.store.embedded.store import EmbeddedStore


class StoreCollector(Collector):
    """Register it with a `CollectorRegistry`: `registry.register(StoreCollector(store))`."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        usage = self._store.usage()
        objects = GaugeMetricFamily("muster_store_objects", "Objects in the store, by kind", labels=["resource"])
        for resource, count in usage.objects.items():
            objects.add_metric([resource], count)
        yield objects
        for name, help_, value in usage.gauges():
            yield GaugeMetricFamily(f"muster_store_{name}", help_, value=value)
        for name, help_, value in usage.counters():
            yield CounterMetricFamily(f"muster_store_{name}", help_, value=value)
