"""The Endpoints and EndpointSlices of every Service that has a selector: the addresses of its pods, and the ports behind each.

Embedded store only: on a real cluster kube-controller-manager does this. As there, pods that have ended or have no address are
left out, pods that are not ready stand apart (`notReadyAddresses`) unless the service publishes them, and pods that resolve a
named port to different numbers form subsets of their own. A service without selector is somebody else's business.

`plan` is pure; the controller around it reads caches. Endpoints belong to their service, and go with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from muster.controllers import endpoint_slices
from muster.controllers.actions import Action, Create, Delete, Patch, Target
from muster.controllers.runtime import Caches, Controller, Plan, Watch, controller_key, own_key
from muster.objects.status import Raw
from muster.objects.view import View
from muster.store.cache import CONTROLLER_INDEX, Cached, ObjectKey
from muster.store.informer import Change

ADDRESSES_MAX: Final = 1_000
"""More than these are left out, as in Kubernetes; an annotation says so."""
TRUNCATED: Final = "endpoints.kubernetes.io/over-capacity"
HEADLESS: Final = "service.kubernetes.io/headless"


class ServicePort(View):
    port: int = 0
    name: str = ""
    protocol: str = "TCP"
    app_protocol: str = ""
    target_port: int | str | None = None


class ServiceSpec(View):
    selector: dict[str, str] = msgspec.field(default_factory=dict)
    ports: list[ServicePort] = msgspec.field(default_factory=list)
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    type: str = "ClusterIP"
    publish_not_ready_addresses: bool = False


class ServiceView(View):
    spec: ServiceSpec = msgspec.field(default_factory=ServiceSpec)


class ContainerPort(View):
    container_port: int = 0
    name: str = ""
    protocol: str = "TCP"


class Container(View):
    ports: list[ContainerPort] = msgspec.field(default_factory=list)


class PodSpec(View):
    hostname: str = ""
    subdomain: str = ""
    node_name: str = ""
    containers: list[Container] = msgspec.field(default_factory=list)


class Condition(View):
    type: str = ""
    status: str = ""


class PodStatus(View):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: list[Condition] = msgspec.field(default_factory=list)


class PodView(View):
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class BackingPod(msgspec.Struct, frozen=True):
    """One pod behind a service."""

    namespace: str
    name: str
    uid: str
    view: PodView
    is_leaving: bool = False

    @property
    def is_ready(self) -> bool:
        return any(one.type == "Ready" and one.status == "True" for one in self.view.status.conditions)

    @property
    def has_ended(self) -> bool:
        return self.view.status.phase in ("Succeeded", "Failed")


class Present(msgspec.Struct, frozen=True):
    """The Endpoints object as it is."""

    subsets: Sequence[Raw]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    is_owned: bool


def plan(
    service: Target,
    labels: Mapping[str, str],
    spec: ServiceSpec,
    pods: Iterable[BackingPod],
    present: Present | None,
    *,
    slices: Mapping[str, Raw],
) -> list[Action]:
    """What the service's Endpoints and slices lack; `slices` are those that it owns, by name."""
    target = Target("", "Endpoints", service.name, service.namespace)
    owner = {
        "apiVersion": "v1",
        "kind": "Service",
        "name": service.name,
        "uid": service.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    if spec.type == "ExternalName":
        stale: list[Action] = [Delete(target)] if present is not None and present.is_owned else []
        return [*stale, *endpoint_slices.plan(service, {}, owner, [], slices)]
    if not spec.selector:
        return []
    found, is_truncated = subsets(service.name, spec, pods)
    wanted_labels = {**labels, **({HEADLESS: ""} if spec.cluster_ip == "None" else {})}
    whole = _plan_endpoints(target, wanted_labels, owner, found, present, is_truncated=is_truncated)
    return [*whole, *endpoint_slices.plan(service, wanted_labels, owner, found, slices)]


def _plan_endpoints(
    target: Target, wanted_labels: dict[str, str], owner: Raw, found: list[Raw], present: Present | None, *, is_truncated: bool
) -> list[Action]:
    notes = {TRUNCATED: "truncated"} if is_truncated else {}
    meta: Raw = {"name": target.name, "namespace": target.namespace, "labels": wanted_labels, "ownerReferences": [owner]}
    if present is None:
        if notes:
            meta["annotations"] = notes
        return [Create({"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": found})]
    has_note = TRUNCATED in present.annotations
    is_same = list(present.subsets) == found and dict(present.labels) == wanted_labels
    if is_same and present.is_owned and has_note == is_truncated:
        return []
    changed: Raw = {
        "labels": {**dict.fromkeys(set(present.labels) - set(wanted_labels)), **wanted_labels},
        "annotations": {TRUNCATED: notes.get(TRUNCATED)},
        "ownerReferences": [owner],
    }
    return [Patch(target, {"metadata": changed, "subsets": found})]


def subsets(service: str, spec: ServiceSpec, pods: Iterable[BackingPod]) -> tuple[list[Raw], bool]:
    """Addresses grouped by their ports, in a fixed order; and whether some were left out."""
    groups: dict[tuple[tuple[str, int, str, str], ...], tuple[list[Raw], list[Raw]]] = {}
    shown = [
        pod
        for pod in pods
        if pod.view.status.pod_ip and not pod.has_ended and (spec.publish_not_ready_addresses or not pod.is_leaving)
    ]
    shown.sort(key=lambda pod: (not pod.is_ready, pod.name))
    for pod in shown[:ADDRESSES_MAX]:
        ports = _ports(spec, pod)
        if ports is None:
            continue
        ready, waiting = groups.setdefault(ports, ([], []))
        (ready if pod.is_ready or spec.publish_not_ready_addresses else waiting).append(_address(service, pod))
    made: list[Raw] = []
    for ports, (ready, waiting) in sorted(groups.items()):
        subset: Raw = {}
        if ready:
            subset["addresses"] = sorted(ready, key=lambda address: str(address["ip"]))
        if waiting:
            subset["notReadyAddresses"] = sorted(waiting, key=lambda address: str(address["ip"]))
        if ports:
            subset["ports"] = [_port(*port) for port in ports]
        made.append(subset)
    return made, len(shown) > ADDRESSES_MAX


def _ports(spec: ServiceSpec, pod: BackingPod) -> tuple[tuple[str, int, str, str], ...] | None:
    """What the service's ports are at this pod; None when it has ports and the pod has none of them."""
    found = []
    for port in spec.ports:
        number = _number(port, pod.view.spec)
        if number:
            found.append((port.name, number, port.protocol, port.app_protocol))
    return None if spec.ports and not found else tuple(found)


def _number(port: ServicePort, pod: PodSpec) -> int:
    wanted = port.target_port
    if wanted in (None, "", 0):
        return port.port
    if isinstance(wanted, int):
        return wanted
    for container in pod.containers:
        for offered in container.ports:
            if offered.name == wanted and offered.protocol == port.protocol:
                return offered.container_port
    return 0


def _port(name: str, number: int, protocol: str, app_protocol: str) -> Raw:
    made: Raw = {"port": number, "protocol": protocol}
    if name:
        made["name"] = name
    if app_protocol:
        made["appProtocol"] = app_protocol
    return made


def _address(service: str, pod: BackingPod) -> Raw:
    spec = pod.view.spec
    made: Raw = {
        "ip": pod.view.status.pod_ip,
        "targetRef": {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
    }
    if spec.node_name:
        made["nodeName"] = spec.node_name
    if spec.hostname and spec.subdomain == service:
        made["hostname"] = spec.hostname
    return made


# -- the controller ----------------------------------------------------------------------------------------------------------


def _pair(namespace: str, key: str, value: str) -> str:
    return f"{namespace}/{key}={value}"


def _by_labels(pod: Cached) -> Iterable[str]:
    return [_pair(pod.key.namespace, key, value) for key, value in pod.labels.items()]


def _by_selector(service: Cached) -> Iterable[str]:
    """Under one of its labels, which every pod of it has."""
    selector = service.view(ServiceView).spec.selector
    return [_pair(service.key.namespace, *min(selector.items()))] if selector else []


def _selects(service: Cached, labels: Mapping[str, str]) -> bool:
    selector = service.view(ServiceView).spec.selector
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def _services_of(pod: Cached, caches: Caches) -> Iterable[ObjectKey]:
    return [
        service.key
        for pair in _by_labels(pod)
        for service in caches[SERVICES].by_index("selector", pair)
        if _selects(service, pod.labels)
    ]


def _is_told(change: Change) -> bool:
    """Whether anything about a pod changed that Endpoints tell."""
    old, new = change.old, change.new
    if old is None or new is None:
        return True
    before, after = old.view(PodView), new.view(PodView)
    return (old.labels, old.deleting, old.uid, before) != (new.labels, new.deleting, new.uid, after)


SERVICES = Watch(group="", kind="Service", view=ServiceView, keep="nothing", indexes={"selector": _by_selector})
PODS = Watch(
    group="",
    kind="Pod",
    view=PodView,
    keep="nothing",
    indexes={"labels": _by_labels},
    keys=_services_of,
    matters=_is_told,
)
ENDPOINTS = Watch(group="", kind="Endpoints", keys=own_key)
SLICES = Watch(
    group=endpoint_slices.GROUP,
    kind="EndpointSlice",
    keys=controller_key("", "Service"),
    label_selector=f"{endpoint_slices.MANAGED_BY}={endpoint_slices.MANAGER}",
)


class EndpointsKeeper(Controller):
    """Keys are services."""

    name = "endpoints"
    watches = (SERVICES, PODS, ENDPOINTS, SLICES)
    workers = 4

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        service = caches[SERVICES].get(key)
        if service is None or service.deleting:
            return Plan()
        spec = service.view(ServiceView).spec
        pods = [
            BackingPod(pod.key.namespace, pod.key.name, pod.uid, pod.view(PodView), pod.deleting)
            for pair in _by_selector(service)
            for pod in caches[PODS].by_index("labels", pair)
            if _selects(service, pod.labels)
        ]
        target = Target("", "Service", key.name, key.namespace, service.uid)
        slices = {one.key.name: one.raw for one in caches[SLICES].by_index(CONTROLLER_INDEX, service.uid)}
        return Plan(plan(target, service.labels, spec, pods, _present(caches[ENDPOINTS].get(key), service.uid), slices=slices))


def _present(endpoints: Cached | None, service_uid: str) -> Present | None:
    if endpoints is None:
        return None
    raw = endpoints.raw
    return Present(
        subsets=raw.get("subsets") or [],
        labels=endpoints.labels,
        annotations=(raw.get("metadata") or {}).get("annotations") or {},
        is_owned=endpoints.controller_uid == service_uid,
    )
