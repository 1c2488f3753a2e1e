"""Objects for the conformance suite, and waiting without sleeping: every wait is a watch."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from muster.objects.resources import Resource
from muster.objects.status import NotFound, Raw
from muster.store.contract import EventType, Store, WatchEvent

PATIENCE_S = 60.0
"""How long anything may take before a test is stuck. Nothing is asserted about how long it does take."""


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def config_map(name: str, data: dict[str, str] | None = None, **metadata: Any) -> Raw:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data or {"key": "value"}}


def pod(name: str, *, node: str = "", **metadata: Any) -> Raw:
    spec: Raw = {"containers": [{"name": "main", "image": "example.com/app:1"}], "terminationGracePeriodSeconds": 30}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def some_event(name: str, namespace: str) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "some-pod"},
        "reason": "Testing",
        "message": "an event to be forgotten",
        "type": "Normal",
    }


def network_policy(name: str, app: str = "a") -> Raw:
    """A kind whose generation counts and that no controller of the cluster touches."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress"]},
    }


_TEMPLATE: Raw = {
    "metadata": {"labels": {"app": "some"}},
    "spec": {"containers": [{"name": "main", "image": "example.com/app:1"}]},
}
_SELECTED: Raw = {"selector": {"matchLabels": {"app": "some"}}, "template": _TEMPLATE}
_SOME: dict[str, tuple[str, Raw]] = {
    "Pod": ("v1", _TEMPLATE["spec"]),
    "Node": ("v1", {}),
    "Namespace": ("v1", {}),
    "Service": ("v1", {"selector": {"app": "some"}, "ports": [{"port": 80}]}),
    "ResourceQuota": ("v1", {"hard": {"pods": "10"}}),
    "PersistentVolume": (
        "v1",
        {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/nowhere"}},
    ),
    "PersistentVolumeClaim": ("v1", {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}),
    "ReplicationController": ("v1", {"selector": {"app": "some"}, "template": _TEMPLATE, "replicas": 0}),
    "Deployment": ("apps/v1", {**_SELECTED, "replicas": 0}),
    "ReplicaSet": ("apps/v1", {**_SELECTED, "replicas": 0}),
    "StatefulSet": ("apps/v1", {**_SELECTED, "replicas": 0, "serviceName": "some"}),
    "DaemonSet": ("apps/v1", _SELECTED),
    "Job": ("batch/v1", {"parallelism": 0, "template": {"spec": {**_TEMPLATE["spec"], "restartPolicy": "Never"}}}),
    "PodDisruptionBudget": ("", {"selector": {"matchLabels": {"app": "some"}}, "minAvailable": 1}),
    "Ingress": ("networking.k8s.io/v1", {"defaultBackend": {"service": {"name": "some", "port": {"number": 80}}}}),
}


def some_object(kind: str, name: str, **metadata: Any) -> Raw:
    """An object of a kind of Kubernetes' own; of some of them other versions are served by an older cluster."""
    api_version, spec = _SOME[kind]
    versioned = {"apiVersion": api_version} if api_version else {}
    return {**versioned, "kind": kind, "metadata": {"name": name, **metadata}, "spec": copy.deepcopy(spec)}


def definition(group: str, plural: str = "widgets", kind: str = "Widget") -> Raw:
    """A CustomResourceDefinition with a schema, a default, a status and a scale."""
    schema: Raw = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 10},
                    "colour": {"type": "string", "enum": ["red", "green"], "default": "red"},
                    "replicas": {"type": "integer"},
                    "parts": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {"name": {"type": "string"}, "weight": {"type": "integer"}},
                        },
                    },
                },
            },
            "status": {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}}},
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                    },
                }
            ],
        },
    }


def widget(group: str, name: str, **spec: Any) -> Raw:
    return {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 1, **spec}}


@contextlib.asynccontextmanager
async def custom_kind(store: Store, schema: Raw | None = None) -> AsyncIterator[Resource]:
    """Widgets in a group of their own, for the length of a test."""
    group = f"{unique('g')}.example.com"
    definitions = await store.resource("apiextensions.k8s.io", "CustomResourceDefinition")
    made = definition(group)
    if schema is not None:
        made["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema
    crd = await store.create(definitions, made)
    await until(store, definitions, crd["metadata"]["name"], None, is_established)
    try:
        yield await served(store, group, "Widget")
    finally:
        await store.delete(definitions, crd["metadata"]["name"])


def is_established(crd: Raw) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


async def served(store: Store, group: str, kind: str) -> Resource:
    """A real server announces a new kind a moment after its definition is established."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                resource = await store.resource(group, kind)
                await store.list(resource)
            except NotFound:
                await asyncio.sleep(0.2)
            else:
                return resource


async def until(
    store: Store, resource: Resource, name: str, namespace: str | None, is_so: Callable[[Raw], bool] | None
) -> Raw | None:
    """The object once `is_so` holds; with None, wait until it is gone."""
    selector = f"metadata.name={name}"
    page = await store.list(resource, namespace, field_selector=selector)
    for found in page.items:
        if is_so is not None and is_so(found):
            return found
    if not page.items and is_so is None:
        return None
    watch = store.watch(resource, namespace, field_selector=selector, resource_version=page.resource_version)
    async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(watch):  # type: ignore[type-var]
        async for event in watch:
            if event.type is EventType.DELETED:
                if is_so is None:
                    return None
            elif event.type is not EventType.BOOKMARK and is_so is not None and is_so(event.object):
                return event.object
    raise AssertionError(f"the watch of {resource.qualified} {name} ended before what was waited for came")


async def gone(store: Store, resource: Resource, name: str, namespace: str | None) -> None:
    await until(store, resource, name, namespace, None)


NOT_OURS = "kube-root-ca.crt"
"""A config map that a real cluster puts into every namespace, some time after it was made."""


class Recorder:
    """Reads a watch: events without bookmarks, and without what the cluster does on its own."""

    def __init__(self, events: AsyncIterator[WatchEvent]) -> None:
        self._events = events

    async def take(self, count: int) -> list[WatchEvent]:
        """The next `count` events."""
        taken: list[WatchEvent] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(taken) < count:
                event = await anext(self._events)
                if event.type is not EventType.BOOKMARK and event.object["metadata"]["name"] != NOT_OURS:
                    taken.append(event)
        return taken

    async def until_name(self, name: str) -> list[tuple[str, str]]:
        """Events as (type, name) up to the first about `name`: nothing that must not come can hide behind it."""
        seen: list[tuple[str, str]] = []
        while not seen or seen[-1][1] != name:
            (event,) = await self.take(1)
            seen.append((event.type.value, event.object["metadata"]["name"]))
        return seen


@contextlib.asynccontextmanager
async def watching(store: Store, resource: Resource, namespace: str | None, **options: Any) -> AsyncIterator[Recorder]:
    watch = store.watch(resource, namespace, **options)
    async with contextlib.aclosing(watch):  # type: ignore[type-var]
        yield Recorder(watch)


def brief(events: list[WatchEvent]) -> list[tuple[str, str]]:
    return [(event.type.value, event.object["metadata"]["name"]) for event in events]
