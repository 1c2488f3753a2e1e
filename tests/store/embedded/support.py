"""What the tests of the embedded store share: kinds, small objects, a clock that stands still, repeatable entropy."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.objects.catalog import CATALOG
from muster.objects.status import Raw
from muster.store.contract import EventType
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.records import Event, Record, record_of

NAMESPACES = CATALOG.by_kind("", "Namespace")
CONFIG_MAPS = CATALOG.by_kind("", "ConfigMap")
SECRETS = CATALOG.by_kind("", "Secret")
PODS = CATALOG.by_kind("", "Pod")
NODES = CATALOG.by_kind("", "Node")
SERVICES = CATALOG.by_kind("", "Service")
DEPLOYMENTS = CATALOG.by_kind("apps", "Deployment")
BUDGETS = CATALOG.by_kind("policy", "PodDisruptionBudget")
CRDS = CATALOG.by_kind("apiextensions.k8s.io", "CustomResourceDefinition")

START = 1_800_000_000.0


class ManualClock:
    """Moves when a test says so."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def seeded(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


async def open_store(path: Path | None = None, **options: Any) -> EmbeddedStore:
    """A store with the namespace `default`, which a server would make."""
    options.setdefault("clock", ManualClock())
    store = await EmbeddedStore.open(path, **options)
    if not store.list_records(NAMESPACES).records:
        await store.create(NAMESPACES, {"metadata": {"name": "default"}})
    return store


def config_map(name: str, data: dict[str, str] | None = None, **metadata: Any) -> Raw:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data or {}}


def pod(name: str, **metadata: Any) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [{"name": "main", "image": "example.com/app:1"}]},
    }


def record(name: str, rv: int, *, namespace: str = "default", **metadata: Any) -> Record:
    raw: Raw = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(rv), **metadata},
    }
    return record_of(raw, (namespace, name), rv, ())


def change(type_: str, new: Record, previous: Record | None = None) -> Event:
    return Event(EventType(type_), new, previous)
