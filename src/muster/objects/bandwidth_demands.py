"""What a piece of work asks of the nodes: for each pod that it will make, the bandwidth that one node must have. Pure.

`demands` reads a raw Pod, KusciaJob, KusciaTask or Job. A KusciaJob's figure is a party's total, which is divided over that
party's pods; the others' figures are for one pod. Never raises for what an object holds: what can't be read asks for nothing,
and the rules for the kind have refused it already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from muster.objects.bandwidth import Directions, Limit, PodBandwidth, raw_pod_bandwidth, resource_bandwidth
from muster.objects.bandwidth_units import NOTHING, format_bandwidth, largest_share_bps
from muster.objects.labels import Kubernetes, KusciaLabel, Muster

Raw = Mapping[str, Any]
FindImage = Callable[[str], Raw | None]
"""An AppImage by name; None when there is none."""
PODS_MAX: Final = 1_000_000


class Demand(msgspec.Struct, frozen=True):
    """The most that one pod asks for. `domain` is the party whose nodes it goes to; "" when it may go to any."""

    field: str
    request: Directions
    domain: str = ""
    total: Directions = NOTHING
    """What it is a share of, when that is more."""
    pods: int = 1


def demands(group: str, kind: str, raw: Raw, find_image: FindImage = lambda name: None) -> list[Demand]:
    """Of each pod or kind of pod that asks for any bandwidth; an empty list for kinds that ask for none."""
    reader = _READERS.get((group, kind))
    return [] if reader is None else [demand for demand in reader(raw, find_image) if demand.request]


def _pod(raw: Raw, find_image: FindImage) -> Iterator[Demand]:
    selector = _object(_object(raw, "spec"), "nodeSelector")
    domain = selector.get(KusciaLabel.NODE_NAMESPACE) or selector.get(KusciaLabel.NODE_DOMAIN) or ""
    request = raw_pod_bandwidth(raw).request
    yield Demand("spec", request, str(domain), request)


def _job(raw: Raw, find_image: FindImage) -> Iterator[Demand]:
    for path, role in _items(_object(raw, "spec"), "roles", "spec"):
        request = resource_bandwidth(_object(role, "resources")).request
        yield Demand(f"{path}.resources", request, "", request)


def _kuscia_job(raw: Raw, find_image: FindImage) -> Iterator[Demand]:
    for where, task in _items(_object(raw, "spec"), "tasks", "spec"):
        image = find_image(str(task.get("appImage") or "")) or {}
        for path, party in _items(task, "parties", where):
            total = resource_bandwidth(_object(party, "resources")).request
            pods = _replicas(deploy_template(image, str(party.get("role") or "")))
            largest = Directions(largest_share_bps(total.egress_bps, pods), largest_share_bps(total.ingress_bps, pods))
            yield Demand(f"{path}.resources", largest, str(party.get("domainID") or ""), total, pods)


def _kuscia_task(raw: Raw, find_image: FindImage) -> Iterator[Demand]:
    for path, party in _items(_object(raw, "spec"), "parties", "spec"):
        image = find_image(str(party.get("appImageRef") or "")) or {}
        template = deploy_template(image, str(party.get("role") or ""))
        containers = {str(c.get("name")): c for _, c in _items(_object(template, "spec"), "containers", "")}
        own = _object(_object(party, "template"), "spec")
        for _, container in _items(own, "containers", ""):
            name = str(container.get("name"))
            containers[name] = {**containers.get(name, {}), **{key: value for key, value in container.items() if value}}
        request = sum((resource_bandwidth(_object(c, "resources")).request for c in containers.values()), NOTHING)
        yield Demand(f"{path}.template.spec.containers", request, str(party.get("domainID") or ""), request)


_READERS: Final[Mapping[tuple[str, str], Callable[[Raw, FindImage], Iterator[Demand]]]] = {
    ("", "Pod"): _pod,
    ("muster.dev", "Job"): _job,
    ("kuscia.secretflow", "KusciaJob"): _kuscia_job,
    ("kuscia.secretflow", "KusciaTask"): _kuscia_task,
}


def deploy_template(image: Raw, role: str) -> Raw:
    """The AppImage's template for a party's role, as Kuscia chooses it: by name, else the one for any role, else the first
    when the party names none. Empty when there is none."""
    templates = [template for _, template in _items(_object(image, "spec"), "deployTemplates", "")]
    for template in templates:
        if role and role in (word.strip() for word in str(template.get("role") or "").split(",")):
            return template
    for template in templates:
        if not template.get("role"):
            return template
    return templates[0] if templates and not role else {}


def _replicas(template: Raw) -> int:
    replicas = template.get("replicas")
    return replicas if isinstance(replicas, int) and not isinstance(replicas, bool) and 1 <= replicas <= PODS_MAX else 1


def share(total: PodBandwidth, parts: int, index: int) -> PodBandwidth:
    """What the pod at `index` of `parts` gets of a party's total: the shares of all add up to it exactly."""

    def part(bps: int) -> int:
        whole, rest = divmod(bps, parts)
        return whole + (index < rest)

    if not 0 <= index < parts:
        raise ValueError(f"there is no share {index} of {parts}")
    request = Directions(part(total.request.egress_bps), part(total.request.ingress_bps))
    if total.limit is None:
        return PodBandwidth(request)
    egress, ingress = total.limit.egress_bps, total.limit.ingress_bps
    return PodBandwidth(request, Limit(None if egress is None else part(egress), None if ingress is None else part(ingress)))


def pod_annotations(wanted: PodBandwidth) -> dict[str, str]:
    """The annotations that make a pod ask for exactly this: a share of a party's total need not be whole Mbps."""
    notes: dict[str, str] = {}
    if wanted.request.egress_bps == wanted.request.ingress_bps:
        if wanted.request:
            notes[Muster.BANDWIDTH] = format_bandwidth(wanted.request.egress_bps)
    else:
        notes[Muster.BANDWIDTH_EGRESS] = format_bandwidth(wanted.request.egress_bps)
        notes[Muster.BANDWIDTH_INGRESS] = format_bandwidth(wanted.request.ingress_bps)
    if wanted.limit is not None:
        # Kubernetes' bandwidth plugin reads these as quantities, so they are plain numbers.
        if wanted.limit.egress_bps is not None:
            notes[Kubernetes.EGRESS_BANDWIDTH] = str(wanted.limit.egress_bps)
        if wanted.limit.ingress_bps is not None:
            notes[Kubernetes.INGRESS_BANDWIDTH] = str(wanted.limit.ingress_bps)
    return notes


def _object(parent: Raw, key: str) -> dict[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _items(parent: Raw, key: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    value = parent.get(key)
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, dict):
            yield f"{path}.{key}[{index}]", item
