"""`metrics.k8s.io/v1beta1`: what nodes and pods use now, as `kubectl top` and autoscalers ask for it.

Nothing is stored: each answer is computed from the NodeMetric objects that agents write (`slo.koordinator.sh`), which hold the
last report of a node and of the pods on it. As with metrics-server, a node whose last report is too old is left out rather than
shown with old figures, and so are pods that no report names; these kinds can be read but not watched.

An agent reports a pod as a whole. A pod with one container is shown with that container; for one with several, the whole use is
shown under one entry, `ALL_CONTAINERS`.

Concurrency: reads from the store's memory on the event loop; stateless. RBAC is asked before, as for any resource.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec

from muster.objects.kinds.base import Native, NativeObject
from muster.objects.resources import Column, Resource
from muster.objects.status import NotFound, Raw
from muster.objects.time import Clock, parse_time
from muster.objects.view import Quantities
from muster.server.config import ServerLimits
from muster.server.exchange import Request, Response
from muster.server.handlers import ResourceHandlers
from muster.server.negotiation import Form, encode, negotiate
from muster.server.options import list_options
from muster.server.tables import partial_metadata, table
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.records import Record

GROUP: Final = "metrics.k8s.io"
VERSION: Final = "v1beta1"
REPORT_AGE_MAX_S: Final = 180.0
"""A report older than this says nothing about now. Agents report every minute unless told otherwise."""
REPORTS_MISSED_MAX: Final = 3
"""Where an agent is told to report less often: so many of its intervals may pass."""
ALL_CONTAINERS: Final = "all"
_SHOWN: Final = ("cpu", "memory")
_TURN_LEN: Final = 50
"""Pods or nodes that are gone through before others have a turn."""


class ContainerMetrics(Native):
    """What one container uses."""

    name: Annotated[str, "Name of the container; `all` for the whole of a pod with several."] = ""
    usage: Annotated[Quantities, "By resource: `cpu` and `memory`."] = {}  # noqa: RUF012


class NodeMetrics(NativeObject):
    """What a node uses now."""

    timestamp: Annotated[str, "When it was reported."] = ""
    window: Annotated[str, "Over how long it was averaged."] = ""
    usage: Annotated[Quantities, "By resource: `cpu` and `memory`."] = {}  # noqa: RUF012


class PodMetrics(NativeObject):
    """What a pod uses now."""

    timestamp: Annotated[str, "When it was reported."] = ""
    window: Annotated[str, "Over how long it was averaged."] = ""
    containers: Annotated[list[ContainerMetrics], "By container."] = []  # noqa: RUF012


def _resource(view: type[NativeObject], plural: str, usage: str, *, namespaced: bool) -> Resource:
    return Resource(
        group=GROUP,
        version=VERSION,
        kind=view.__name__,
        plural=plural,
        namespaced=namespaced,
        verbs=("get", "list"),
        view=view,
        columns=(
            Column(name="CPU", path=f"{usage}.cpu"),
            Column(name="Memory", path=f"{usage}.memory"),
            Column(name="Window", path=".window"),
        ),
    )


NODES: Final = _resource(NodeMetrics, "nodes", ".usage", namespaced=False)
PODS: Final = _resource(PodMetrics, "pods", ".containers[0].usage", namespaced=True)


class _Report(msgspec.Struct, frozen=True):
    """A node's last report, when it is young enough."""

    timestamp: str
    window: str
    usage: Mapping[str, str]
    pods: Mapping[tuple[str, str], Mapping[str, str]]
    """Use by (namespace, name)."""


class ResourceMetrics:
    def __init__(self, handlers: ResourceHandlers, store: EmbeddedStore, *, clock: Clock, limits: ServerLimits) -> None:
        self._handlers = handlers
        self._store = store
        self._clock = clock
        self._limits = limits

    def register(self) -> None:
        self._handlers.computed[(GROUP, VERSION, NODES.plural)] = (NODES, self._serve_nodes)
        self._handlers.computed[(GROUP, VERSION, PODS.plural)] = (PODS, self._serve_pods)

    async def _serve_nodes(self, request: Request) -> Response:
        return await self._serve(request, NODES, self._nodes(request))

    async def _serve_pods(self, request: Request) -> Response:
        return await self._serve(request, PODS, self._pods(request))

    async def _serve(self, request: Request, resource: Resource, steps: Iterator[Raw | None]) -> Response:
        form = negotiate(request.header("accept"))
        found: list[Raw] = []
        for number, one_or_none in enumerate(steps, 1):
            if one_or_none is not None:
                found.append(one_or_none)
            if number % _TURN_LEN == 0:
                await request.turn()
        if request.info.verb == "list":
            return Response(body=encode(self._list(request, resource, found, form), form), content_type=form.content_type)
        one = found[0] if found else None
        if one is None:
            name = request.info.name
            raise NotFound(
                f'{resource.plural}.{GROUP} "{name}" not found: there is no report of it, or none of the last minutes',
                kind=resource.plural,
                group=GROUP,
                name=name,
            )
        shown = self._list(request, resource, [one], form) if form.transform == "Table" else _shown(one, form)
        return Response(body=encode(shown, form), content_type=form.content_type)

    def _list(self, request: Request, resource: Resource, found: list[Raw], form: Form) -> Raw:
        if form.transform == "Table":
            include = request.query.choice("includeObject", ("None", "Metadata", "Object"), "Metadata")
            return table(resource, found, self._clock(), version=form.version, include=include)
        kind, api_version = f"{resource.kind}List", resource.api_version
        if form.transform:
            kind, api_version = "PartialObjectMetadataList", f"meta.k8s.io/{form.version}"
        return {"kind": kind, "apiVersion": api_version, "metadata": {}, "items": [_shown(one, form) for one in found]}

    # --- what is known

    def _nodes(self, request: Request) -> Iterator[Raw | None]:
        """For each that is asked for its metrics, or None when there are none."""
        for record in self._asked(request, "Node"):
            report = self._report(record.name)
            if report is not None and report.usage:
                yield {**_head(NODES, record.raw(), report), "usage": dict(report.usage)}
            else:
                yield None

    def _pods(self, request: Request) -> Iterator[Raw | None]:
        reports: dict[str, _Report | None] = {}
        for record in self._asked(request, "Pod"):
            pod = record.raw()
            spec = pod.get("spec") or {}
            node = spec.get("nodeName") or ""
            if node not in reports:
                reports[node] = self._report(node) if node else None
            report = reports[node]
            usage = report.pods.get((record.namespace, record.name)) if report is not None else None
            if report is not None and usage:
                containers = [c.get("name", "") for c in spec.get("containers") or []]
                name = containers[0] if len(containers) == 1 else ALL_CONTAINERS
                yield {**_head(PODS, pod, report), "containers": [{"name": name, "usage": dict(usage)}]}
            else:
                yield None

    def _asked(self, request: Request, kind: str) -> Iterator[Record]:
        """The nodes or pods that the request is about, by name or by selectors."""
        resource = self._store.catalog.by_kind("", kind)
        info = request.info
        if info.verb == "get":
            yield self._store.get_record(resource, info.name, info.namespace or None)
            return
        options = list_options(request.query, self._limits)
        yield from self._store.list_records(
            resource,
            info.namespace or None,
            label_selector=options.label_selector,
            field_selector=options.field_selector,
        ).records

    def _report(self, node: str) -> _Report | None:
        try:
            record = self._store.get_record(self._store.catalog.by_kind("slo.koordinator.sh", "NodeMetric"), node, None)
        except NotFound:
            return None
        raw = record.raw()
        status = _object(raw.get("status"))
        policy = _object(_object(raw.get("spec")).get("metricCollectPolicy"))
        timestamp = status.get("updateTime")
        interval_s = _number(policy.get("reportIntervalSeconds"))
        age_max_s = max(REPORT_AGE_MAX_S, REPORTS_MISSED_MAX * interval_s)
        if not isinstance(timestamp, str) or self._age_s(timestamp) > age_max_s:
            return None
        window_s = _number(policy.get("aggregateDurationSeconds")) or interval_s or 60.0
        pods = {
            (pod.get("namespace", ""), pod.get("name", "")): _usage(pod.get("podUsage"))
            for pod in map(_object, status.get("podsMetric") or [])
        }
        usage = _usage(_object(status.get("nodeMetric")).get("nodeUsage"))
        return _Report(timestamp, f"{window_s:g}s", usage, pods)

    def _age_s(self, timestamp: str) -> float:
        try:
            return self._clock() - parse_time(timestamp)
        except ValueError:
            return float("inf")


def _head(resource: Resource, raw: Raw, report: _Report) -> Raw:
    source = raw["metadata"]
    metadata: Raw = {"name": source["name"]}
    if resource.namespaced:
        metadata["namespace"] = source["namespace"]
    # The instant of the answer is the age of the figures, not that of the pod.
    metadata["creationTimestamp"] = report.timestamp
    if source.get("labels"):
        metadata["labels"] = source["labels"]
    return {
        "kind": resource.kind,
        "apiVersion": resource.api_version,
        "metadata": metadata,
        "timestamp": report.timestamp,
        "window": report.window,
    }


def _shown(one: Raw, form: Form) -> Raw:
    return partial_metadata(one, f"meta.k8s.io/{form.version}") if form.transform else one


def _usage(raw: Any) -> dict[str, str]:
    resources = _object(_object(raw).get("resources"))
    return {name: str(resources[name]) for name in _SHOWN if resources.get(name) is not None}


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0.0
