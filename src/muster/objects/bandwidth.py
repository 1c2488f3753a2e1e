"""What objects say about bandwidth: a node's capacity, a pod's request and limit, those of Muster's and Kuscia's own kinds.

A figure for one direction wins over the figure for both. On a node, what an administrator wrote wins over what the agent found,
which wins over the extended resource. Nothing here raises for what an object holds: a figure that can't be read is left out,
the next source is taken, and a `Problem` says so.

Pure; safe to call from any thread. Cheap where an object says nothing about bandwidth, since that is most of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from muster.objects.bandwidth_units import (
    ACCEPTED,
    BANDWIDTH_MAX_BPS,
    LIMIT_MAX_BPS,
    LIMIT_MIN_BPS,
    MBPS,
    NOTHING,
    Directions,
    both,
    bps_to_mbps,
    divide,
    format_bandwidth,
    kbps_to_bps,
    largest_share_bps,
    mbps_to_bps,
    parse_bandwidth,
)
from muster.objects.labels import Kubernetes, Kuscia, Muster
from muster.objects.reason_codes import Reason

__all__ = [
    "ACCEPTED",
    "BANDWIDTH_MAX_BPS",
    "LIMIT_MAX_BPS",
    "LIMIT_MIN_BPS",
    "MBPS",
    "NOTHING",
    "Directions",
    "Limit",
    "NodeBandwidth",
    "PodBandwidth",
    "Problem",
    "Source",
    "both",
    "bps_to_mbps",
    "divide",
    "format_bandwidth",
    "is_bandwidth_resource",
    "kbps_to_bps",
    "largest_share_bps",
    "mbps_to_bps",
    "node_bandwidth",
    "node_capacity",
    "parse_bandwidth",
    "pod_bandwidth",
    "raw_pod_bandwidth",
    "resource_bandwidth",
]

Source = Literal["", "annotation", "agent", "resource"]
"""Where a node's figure comes from; of two different ones, the stronger."""
Texts = Mapping[str, Any]

_RESOURCE: Final = Kuscia.RESOURCE_BANDWIDTH
_NODE_KEYS: Final = frozenset(
    {
        Muster.BANDWIDTH,
        Muster.BANDWIDTH_EGRESS,
        Muster.BANDWIDTH_INGRESS,
        Muster.BANDWIDTH_RESERVED,
        Muster.AGENT_BANDWIDTH,
        Muster.AGENT_BANDWIDTH_EGRESS,
        Muster.AGENT_BANDWIDTH_INGRESS,
        Muster.AGENT_BANDWIDTH_RESERVED,
    }
)
_POD_KEYS: Final = frozenset(
    {
        Muster.BANDWIDTH,
        Muster.BANDWIDTH_EGRESS,
        Muster.BANDWIDTH_INGRESS,
        Kubernetes.EGRESS_BANDWIDTH,
        Kubernetes.INGRESS_BANDWIDTH,
    }
)
_RESOURCES: Final = (
    Muster.RESOURCE_BANDWIDTH,
    Muster.RESOURCE_BANDWIDTH_EGRESS,
    Muster.RESOURCE_BANDWIDTH_INGRESS,
    _RESOURCE,
)


class Problem(msgspec.Struct, frozen=True):
    """A figure that can't be used. `field` is relative to the object, or to the `resources` that were read."""

    reason: Reason
    field: str
    value: object
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason.value}: {self.message}"


class Limit(msgspec.Struct, frozen=True):
    """A ceiling for each direction; None means that there is none."""

    egress_bps: int | None = None
    ingress_bps: int | None = None


class NodeBandwidth(msgspec.Struct, frozen=True):
    """What a node has. `total` is None when nobody has said; `usable` is `total` less the reserve."""

    total: Directions | None = None
    usable: Directions | None = None
    reserved_bps: int = 0
    source: Source = ""
    problems: tuple[Problem, ...] = ()


class PodBandwidth(msgspec.Struct, frozen=True):
    """What a pod (or a party, or a role's replica) asks for, and the ceiling on its use."""

    request: Directions = NOTHING
    limit: Limit | None = None
    problems: tuple[Problem, ...] = ()


_NO_NODE: Final = NodeBandwidth()
_NO_POD: Final = PodBandwidth()


# -- nodes ------------------------------------------------------------------------------------------------------------------


def node_capacity(annotations: Texts | None, allocatable: Texts | None, capacity: Texts | None = None) -> Directions | None:
    """What work may reserve on a node, its reserve held back; None when nobody has said what it has."""
    return node_bandwidth(annotations, allocatable, capacity).usable


def node_bandwidth(annotations: Texts | None, allocatable: Texts | None, capacity: Texts | None = None) -> NodeBandwidth:
    """From `metadata.annotations`, `status.allocatable` and `status.capacity`. A direction that nobody speaks of has none."""
    is_annotated = bool(annotations) and not _NODE_KEYS.isdisjoint(annotations or ())
    if not is_annotated and not (allocatable and _RESOURCE in allocatable):
        return _NO_NODE
    notes = annotations if is_annotated and annotations is not None else {}
    problems: list[Problem] = []
    own_egress, own_ingress = _annotated(notes, *_OWN, problems)
    agent_egress, agent_ingress = _annotated(notes, *_AGENT, problems)
    reserved = _note(notes, Muster.BANDWIDTH_RESERVED, problems)
    if reserved is None:
        reserved = _note(notes, Muster.AGENT_BANDWIDTH_RESERVED, problems)
    offered = _whole_mbps(allocatable, "status.allocatable", problems)
    whole = _whole_mbps(capacity, "status.capacity", problems)
    egress, egress_from = _first(own_egress, agent_egress, offered)
    ingress, ingress_from = _first(own_ingress, agent_ingress, offered)
    if egress is None and ingress is None:
        return NodeBandwidth(problems=tuple(problems)) if problems else _NO_NODE
    held = reserved or 0
    return NodeBandwidth(
        total=Directions(_total(egress, egress_from, whole), _total(ingress, ingress_from, whole)),
        usable=Directions(_usable(egress, egress_from, whole, reserved), _usable(ingress, ingress_from, whole, reserved)),
        reserved_bps=held,
        source=min((s for s in (egress_from, ingress_from) if s), key=_STRENGTH.index),
        problems=tuple(problems),
    )


_OWN: Final = (Muster.BANDWIDTH, Muster.BANDWIDTH_EGRESS, Muster.BANDWIDTH_INGRESS)
_AGENT: Final = (Muster.AGENT_BANDWIDTH, Muster.AGENT_BANDWIDTH_EGRESS, Muster.AGENT_BANDWIDTH_INGRESS)
_STRENGTH: Final[Sequence[Source]] = ("annotation", "agent", "resource")


def _annotated(notes: Texts, either: str, egress: str, ingress: str, problems: list[Problem]) -> tuple[int | None, int | None]:
    common = _note(notes, either, problems)
    sent, received = _note(notes, egress, problems), _note(notes, ingress, problems)
    return common if sent is None else sent, common if received is None else received


def _first(own: int | None, agent: int | None, offered: int | None) -> tuple[int | None, Source]:
    if own is not None:
        return own, "annotation"
    if agent is not None:
        return agent, "agent"
    return offered, "resource" if offered is not None else ""


def _total(bps: int | None, source: Source, whole: int | None) -> int:
    if bps is None:
        return 0
    return max(bps, whole) if source == "resource" and whole is not None else bps


def _usable(bps: int | None, source: Source, whole: int | None, reserved: int | None) -> int:
    """The published resource has its publisher's reserve taken out already: ours is not taken out on top of that."""
    if bps is None:
        return 0
    if source == "resource" and reserved is not None and whole is not None:
        return max(min(bps, whole - reserved), 0)
    return max(bps - (reserved or 0), 0)


def _note(notes: Texts, key: str, problems: list[Problem]) -> int | None:
    value = notes.get(key)
    return None if value is None else _parsed(value, f"metadata.annotations[{key}]", problems)


def _ceiling(notes: Texts, key: str, problems: list[Problem]) -> int | None:
    value = notes.get(key)
    if value is None:
        return None
    return _parsed(value, f"metadata.annotations[{key}]", problems, min_bps=LIMIT_MIN_BPS, max_bps=LIMIT_MAX_BPS)


def _whole_mbps(amounts: Texts | None, path: str, problems: list[Problem]) -> int | None:
    value = amounts.get(_RESOURCE) if amounts else None
    if value is None:
        return None
    try:
        return mbps_to_bps(value)
    except ValueError as error:
        problems.append(Problem(Reason.UNIT_INVALID, f"{path}[{_RESOURCE}]", value, str(error)))
        return None


def _parsed(
    value: object, field: str, problems: list[Problem], *, min_bps: int = 0, max_bps: int = BANDWIDTH_MAX_BPS
) -> int | None:
    try:
        return parse_bandwidth(value, min_bps=min_bps, max_bps=max_bps)
    except ValueError as error:
        problems.append(Problem(Reason.UNIT_INVALID, field, value, str(error)))
        return None


# -- pods -------------------------------------------------------------------------------------------------------------------


def pod_bandwidth(annotations: Texts | None, requests: Texts | None, limits: Texts | None = None) -> PodBandwidth:
    """A pod's, from its annotations and from its containers' `resources` added up (`kuscia.io/bandwidth`, whole Mbps).

    A direction that an annotation speaks of is the annotation's. A limit in `resources` without a request is the request, as
    Kubernetes has it. The ceilings are Kubernetes' own annotations.
    """
    is_annotated = bool(annotations) and not _POD_KEYS.isdisjoint(annotations or ())
    if not is_annotated and not (requests and _RESOURCE in requests) and not (limits and _RESOURCE in limits):
        return _NO_POD
    notes = annotations if is_annotated and annotations is not None else {}
    problems: list[Problem] = []
    common = _whole_mbps(requests, "requests", problems)
    if common is None:
        common = _whole_mbps(limits, "limits", problems)
    egress, ingress = _annotated(notes, *_OWN, problems)
    limit = Limit(
        _ceiling(notes, Kubernetes.EGRESS_BANDWIDTH, problems), _ceiling(notes, Kubernetes.INGRESS_BANDWIDTH, problems)
    )
    request = Directions(
        (common or 0) if egress is None else egress,
        (common or 0) if ingress is None else ingress,
    )
    fields = (f"metadata.annotations[{Kubernetes.EGRESS_BANDWIDTH}]", f"metadata.annotations[{Kubernetes.INGRESS_BANDWIDTH}]")
    _compare(request, limit, fields, problems)
    return PodBandwidth(request, None if limit == Limit() else limit, tuple(problems))


def raw_pod_bandwidth(raw: Mapping[str, Any]) -> PodBandwidth:
    """A pod's, from the whole raw object: its containers added up, or its largest init container if that is more."""
    metadata, spec = _object(raw, "metadata"), _object(raw, "spec")
    bps, problems = _containers_bps(spec)
    found = pod_bandwidth(_object(metadata, "annotations"), {_RESOURCE: -(-bps // MBPS)} if bps else None)
    return msgspec.structs.replace(found, problems=(*problems, *found.problems)) if problems else found


def _containers_bps(spec: Mapping[str, Any]) -> tuple[int, list[Problem]]:
    problems: list[Problem] = []
    sidecars = largest = running = 0
    for index, container in enumerate(_list(spec, "initContainers")):
        wanted = _container_bps(container, "initContainers", index, problems)
        if isinstance(container, dict) and container.get("restartPolicy") == "Always":
            sidecars += wanted
            largest = max(largest, sidecars)
        else:
            largest = max(largest, sidecars + wanted)
    for index, container in enumerate(_list(spec, "containers")):
        running += _container_bps(container, "containers", index, problems)
    overhead = _whole_mbps(_object(spec, "overhead"), "spec.overhead", problems) or 0
    return max(sidecars + running, largest) + overhead, problems


def _container_bps(container: object, key: str, index: int, problems: list[Problem]) -> int:
    resources = container.get("resources") if isinstance(container, dict) else None
    for word in ("requests", "limits"):
        amounts = _object(resources, word) if isinstance(resources, dict) else {}
        if _RESOURCE in amounts:
            bps = _whole_mbps(amounts, f"spec.{key}[{index}].resources.{word}", problems)
            if bps is not None:
                return bps
    return 0


# -- requests and limits of Muster's and Kuscia's kinds -----------------------------------------------------------------------


def is_bandwidth_resource(name: str) -> bool:
    """Whether a name under `requests` or `limits` of our own kinds is a bandwidth, and so has its units."""
    return name in _RESOURCES


def resource_bandwidth(resources: Mapping[str, Any] | None) -> PodBandwidth:
    """From `requests` and `limits` of KusciaJob, KusciaTask and Job: `bandwidth`, `bandwidth-egress`, `bandwidth-ingress`,
    or `kuscia.io/bandwidth` in whole Mbps. A limit without a request is the request, as Kubernetes has it."""
    requests, limits = _object(resources, "requests"), _object(resources, "limits")
    if not any(name in requests or name in limits for name in _RESOURCES):
        return _NO_POD
    problems: list[Problem] = []
    asked, ceiling = _of_resources(requests, "requests", problems), _of_resources(limits, "limits", problems)
    limit = Limit(*ceiling)
    request = Directions(*((c if a is None else a) or 0 for a, c in zip(asked, ceiling, strict=True)))
    _compare(request, limit, (_named(limits, "egress"), _named(limits, "ingress")), problems)
    return PodBandwidth(request, None if limit == Limit() else limit, tuple(problems))


def _of_resources(amounts: Texts, path: str, problems: list[Problem]) -> tuple[int | None, int | None]:
    least = LIMIT_MIN_BPS if path == "limits" else 0
    values = {
        name: _parsed(amounts[name], f"{path}[{name}]", problems, min_bps=least)
        for name in _RESOURCES[:3]
        if amounts.get(name) is not None
    }
    common, kuscia = values.get(Muster.RESOURCE_BANDWIDTH), _whole_mbps(amounts, path, problems)
    if common is not None and kuscia is not None and common != kuscia:
        message = f"says {format_bandwidth(kuscia)}, but {Muster.RESOURCE_BANDWIDTH} says {format_bandwidth(common)}; keep one"
        problems.append(Problem(Reason.MANIFEST_INVALID, f"{path}[{_RESOURCE}]", amounts[_RESOURCE], message))
    common = kuscia if common is None else common
    egress, ingress = values.get(Muster.RESOURCE_BANDWIDTH_EGRESS), values.get(Muster.RESOURCE_BANDWIDTH_INGRESS)
    return common if egress is None else egress, common if ingress is None else ingress


def _named(limits: Texts, direction: str) -> str:
    """The field that the limit of a direction came from."""
    own = f"{Muster.RESOURCE_BANDWIDTH}-{direction}"
    names = (own, Muster.RESOURCE_BANDWIDTH, _RESOURCE)
    return f"limits[{next((name for name in names if name in limits), own)}]"


def _compare(request: Directions, limit: Limit, fields: tuple[str, str], problems: list[Problem]) -> None:
    pairs = (
        ("egress", request.egress_bps, limit.egress_bps, fields[0]),
        ("ingress", request.ingress_bps, limit.ingress_bps, fields[1]),
    )
    told: set[str] = set()
    for direction, asked, ceiling, field in pairs:
        if ceiling is None or asked <= ceiling or field in told:
            continue
        told.add(field)
        what = "" if fields[0] == fields[1] else f" {direction}"
        message = (
            f"the{what} request {format_bandwidth(asked)} is more than the limit {format_bandwidth(ceiling)}; "
            "lower the request or raise the limit"
        )
        problems.append(Problem(Reason.REQUEST_EXCEEDS_LIMIT, field, format_bandwidth(ceiling), message))


def _object(parent: Mapping[str, Any] | None, key: str) -> dict[str, Any]:
    value = parent.get(key) if parent else None
    return value if isinstance(value, dict) else {}


def _list(parent: Mapping[str, Any], key: str) -> list[object]:
    value = parent.get(key)
    return value if isinstance(value, list) else []
