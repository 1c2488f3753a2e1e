"""What objects count against ResourceQuotas, and what a quota says: Kubernetes' arithmetic.

Pure. A quota bounds resources by name; each name belongs to one kind (`kind_of`), and every object of that kind comes to a
`Counted`: its amounts by name, and what scopes ask about. Pods, services and claims have amounts of their own, all others
count as one each. A pod that has ended keeps nothing but its place in `count/pods`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.objects.meta import name_of
from muster.objects.quantity import ZERO, Quantity
from muster.objects.rules.report import obj, objs
from muster.objects.status import Raw
from muster.objects.view import Quantities

PODS: Final = "pods"
SERVICES: Final = "services"
CLAIMS: Final = "persistentvolumeclaims"
QUOTAS: Final = "resourcequotas"
Amounts = Mapping[str, Quantity]

_ONE: Final = Quantity.of(1)
_COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_OF_CLASS: Final = ".storageclass.storage.k8s.io/"
_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
_NOT_COUNTED: Final = frozenset({"events", "events.events.k8s.io"})
_ALIASES: Final = frozenset({"configmaps", "secrets", "replicationcontrollers", QUOTAS})
"""Kinds that may be named without `count/`."""
_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys((PODS, *_COMPUTE, *(f"{word}.{name}" for word in ("requests", "limits") for name in _COMPUTE)), PODS),
    **dict.fromkeys((SERVICES, "services.nodeports", "services.loadbalancers"), SERVICES),
    **dict.fromkeys((CLAIMS, "requests.storage"), CLAIMS),
    **{name: name for name in _ALIASES},
}
_WHOLE: Final = frozenset({PODS, SERVICES, "services.nodeports", "services.loadbalancers", CLAIMS, *_ALIASES})
_MUST_BE_STATED: Final[Mapping[str, tuple[str, str]]] = {
    "cpu": ("requests", "cpu"),
    "memory": ("requests", "memory"),
    **{f"{word}.{name}": (word, name) for word in ("requests", "limits") for name in ("cpu", "memory")},
}
"""What every container must state where a quota bounds it: where, and of what."""


def kind_of(name: str) -> str:
    """The kind (its qualified plural) whose objects count for a resource of a quota; "" when none does."""
    if name.startswith("count/"):
        kind = name.removeprefix("count/")
        return "" if kind in _NOT_COUNTED else kind
    if name in _KINDS:
        return _KINDS[name]
    if _OF_CLASS in name:
        return CLAIMS
    asked = name.removeprefix("requests.")
    if asked.startswith("hugepages-") or (asked != name and _is_extended(asked)):
        return PODS
    return ""


def is_whole(name: str) -> bool:
    """Whether a resource of a quota is a number of objects, of which there are no fractions."""
    return name in _WHOLE or name.startswith("count/")


def _is_extended(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


# -- what an object counts as --------------------------------------------------------------------------------------------------


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What one object comes to."""

    amounts: Amounts
    is_terminating: bool = False
    is_best_effort: bool = False
    is_across_namespaces: bool = False
    """Whether it wants to be near to, or away from, pods of namespaces that it names."""
    priority_class: str = ""
    unstated: frozenset[str] = frozenset()
    """Of the resources that containers must state, those that some container does not."""


class _Resources(msgspec.Struct):
    requests: Quantities | None = None
    limits: Quantities | None = None


class _Container(msgspec.Struct):
    resources: _Resources | None = None
    restart_policy: str | None = msgspec.field(default=None, name="restartPolicy")


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    overhead: Quantities | None = None
    active_deadline_seconds: Any = None
    priority_class_name: Any = None
    affinity: Any = None


class _PodStatus(msgspec.Struct):
    phase: Any = None


class _Pod(msgspec.Struct):
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus | None = None


_pod_of = msgspec.json.Decoder(_Pod).decode
_any_of = msgspec.json.Decoder().decode
_singles: dict[str, Counted] = {}
_shared: dict[Any, Counted] = {}
_SHARED_MAX: Final = 4096
_SHARED_AMOUNTS_MAX: Final = 16
"""A pod that states more is counted by itself: what anybody may send is not to be kept a thousand times after it is gone."""


def counted(kind: str, raw: Raw) -> Counted:
    """What an object of this kind comes to."""
    if kind == PODS:
        return _counted_pod(msgspec.convert(raw, _Pod))
    if kind == SERVICES:
        return _counted_service(raw)
    if kind == CLAIMS:
        return _counted_claim(raw)
    return _single(kind)


def counted_json(kind: str, value: bytes) -> Counted:
    """The same from its JSON, of which no more is decoded than counts."""
    if kind == PODS:
        return _counted_pod(_pod_of(value))
    return counted(kind, _any_of(value)) if kind in (SERVICES, CLAIMS) else _single(kind)


def _single(kind: str) -> Counted:
    found = _singles.get(kind)
    if found is None:
        names = (f"count/{kind}", kind) if kind in _ALIASES else (f"count/{kind}",)
        found = Counted(amounts=dict.fromkeys(names, _ONE))
        if len(_singles) < _SHARED_MAX:
            _singles[kind] = found
    return found


def _counted_pod(pod: _Pod) -> Counted:
    """Pods of one job come to the same: they share what is kept of it, and it is worked out once."""
    spec = pod.spec
    is_ended = pod.status is not None and pod.status.phase in _ENDED
    is_terminating = isinstance(spec.active_deadline_seconds, int | float) and spec.active_deadline_seconds >= 0
    stay, first, overhead = spec.containers or [], spec.init_containers or [], spec.overhead or {}
    priority_class = str(spec.priority_class_name or "")
    asked = (tuple(map(_key, stay)), tuple(map(_key, first)), tuple(overhead.items()))
    is_across = spec.affinity is not None and _is_across_namespaces(spec.affinity)
    key = (is_ended, is_terminating, is_across, priority_class, asked)
    found = _shared.get(key)
    if found is None:
        every = [*stay, *first]
        found = Counted(
            amounts={"count/pods": _ONE} if is_ended else _amounts_of_pod(stay, first, overhead),
            is_terminating=is_terminating,
            is_best_effort=not any(
                _amount(value) for one in every for word in ("requests", "limits") for value in _basic(_stated(one, word))
            ),
            is_across_namespaces=is_across,
            priority_class=priority_class,
            unstated=frozenset(
                resource
                for resource, (word, name) in _MUST_BE_STATED.items()
                if any(name not in _stated(one, word) for one in every)
            ),
        )
        amounts_len = len(overhead) + sum(1 + len(_stated(one, "requests")) + len(_stated(one, "limits")) for one in every)
        if amounts_len <= _SHARED_AMOUNTS_MAX:
            if len(_shared) >= _SHARED_MAX:
                _shared.clear()
            _shared[key] = found
    return found


def _is_across_namespaces(affinity: Any) -> bool:
    for word in ("podAffinity", "podAntiAffinity"):
        wanted = obj(affinity, word)
        terms = [term for _, term in objs(wanted, "requiredDuringSchedulingIgnoredDuringExecution", "")]
        terms += [
            obj(liked, "podAffinityTerm") for _, liked in objs(wanted, "preferredDuringSchedulingIgnoredDuringExecution", "")
        ]
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms):
            return True
    return False


def _key(container: _Container) -> Any:
    """All of a container that counts, to be compared."""
    resources = container.resources
    if resources is None:
        return container.restart_policy
    requests, limits = resources.requests or {}, resources.limits or {}
    return (container.restart_policy, tuple(requests.items()), tuple(limits.items()))


def _amounts_of_pod(stay: Sequence[_Container], first: Sequence[_Container], overhead: Quantities) -> Amounts:
    amounts = {"count/pods": _ONE, PODS: _ONE}
    requests, limits = (_total(stay, first, overhead, word) for word in ("requests", "limits"))
    for name, amount in requests.items():
        if name in _COMPUTE or name.startswith("hugepages-"):
            amounts[name] = amounts[f"requests.{name}"] = amount
        elif _is_extended(name):
            amounts[f"requests.{name}"] = amount
    for name in _COMPUTE:
        if name in limits:
            amounts[f"limits.{name}"] = limits[name]
    return amounts


def _total(stay: Sequence[_Container], first: Sequence[_Container], overhead: Quantities, word: str) -> dict[str, Quantity]:
    """Containers together, or one init container if that is more, and the overhead. Init containers that go on running, which
    1.20 does not know, count with the containers."""
    total: dict[str, Quantity] = {}
    for container in (*stay, *(one for one in first if one.restart_policy == "Always")):
        _add(total, _stated(container, word))
    for container in first:
        for name, value in _stated(container, word).items():
            total[name] = max(total.get(name, ZERO), _amount(value))
    _add(total, overhead)
    return total


def _add(total: dict[str, Quantity], texts: Mapping[str, str | int | float]) -> None:
    for name, value in texts.items():
        total[name] = total.get(name, ZERO) + _amount(value)


def _stated(container: _Container, word: str) -> Quantities:
    resources = container.resources
    if resources is None:
        return {}
    return (resources.requests if word == "requests" else resources.limits) or {}


def _basic(texts: Quantities) -> list[str | int | float]:
    return [texts[name] for name in ("cpu", "memory") if name in texts]


def _counted_service(raw: Raw) -> Counted:
    spec = obj(raw, "spec")
    type_ = spec.get("type")
    ports = len(objs(spec, "ports", "")) if type_ in ("NodePort", "LoadBalancer") else 0
    amounts = {
        "count/services": _ONE,
        SERVICES: _ONE,
        "services.nodeports": Quantity.of(ports),
        "services.loadbalancers": _ONE if type_ == "LoadBalancer" else ZERO,
    }
    return Counted(amounts=amounts)


def _counted_claim(raw: Raw) -> Counted:
    spec = obj(raw, "spec")
    asked = obj(obj(spec, "resources"), "requests").get("storage")
    class_ = obj(obj(raw, "metadata"), "annotations").get(_CLASS_ANNOTATION) or spec.get("storageClassName") or ""
    amounts = {"count/persistentvolumeclaims": _ONE, CLAIMS: _ONE}
    if class_:
        amounts[f"{class_}{_OF_CLASS}{CLAIMS}"] = _ONE
    if asked is not None:
        amount = _amount(asked)
        storage = Quantity.of(amount.value(), amount.family)
        amounts["requests.storage"] = storage
        if class_:
            amounts[f"{class_}{_OF_CLASS}requests.storage"] = storage
    return Counted(amounts=amounts)


def _amount(value: str | int | float) -> Quantity:
    """Nothing for what is no quantity: the schema lets none pass."""
    try:
        return Quantity.parse(value)
    except ValueError:
        return ZERO


# -- what a quota says ---------------------------------------------------------------------------------------------------------


SCOPES: Final = ("Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity")


class Scope(msgspec.Struct, frozen=True):
    name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()

    def holds(self, pod: Counted) -> bool:
        match self.name:
            case "Terminating":
                return pod.is_terminating
            case "NotTerminating":
                return not pod.is_terminating
            case "BestEffort":
                return pod.is_best_effort
            case "NotBestEffort":
                return not pod.is_best_effort
            case "CrossNamespacePodAffinity":
                return pod.is_across_namespaces
            case "PriorityClass":
                return self._selects(pod.priority_class)
        return False

    def _selects(self, value: str) -> bool:
        match self.operator:
            case "In":
                return bool(value) and value in self.values
            case "NotIn":
                return value not in self.values
            case "DoesNotExist":
                return not value
        return bool(value)


class Quota(msgspec.Struct, frozen=True):
    """A ResourceQuota's spec, read."""

    name: str
    hard: Amounts
    scopes: tuple[Scope, ...]
    names: Mapping[str, tuple[str, ...]]
    """The resources that it bounds, by the kind that counts for them."""

    @staticmethod
    def of(raw: Raw) -> Quota:
        spec = obj(raw, "spec")
        hard = {name: _amount(value) for name, value in obj(spec, "hard").items()}
        selector = [one for _, one in objs(obj(spec, "scopeSelector"), "matchExpressions", "")]
        names: dict[str, tuple[str, ...]] = {}
        for name in sorted(hard):
            if kind := kind_of(name):
                names[kind] = (*names.get(kind, ()), name)
        return Quota(
            name=name_of(raw),
            hard=hard,
            scopes=(
                *(Scope(str(name)) for name in spec.get("scopes") or ()),
                *(
                    Scope(str(one.get("scopeName")), str(one.get("operator")), tuple(map(str, one.get("values") or ())))
                    for one in selector
                ),
            ),
            names=names,
        )

    def bounds(self, kind: str, one: Counted) -> Sequence[str]:
        """The resources of which this object counts; scopes are about pods, so a quota with scopes counts nothing else."""
        names = self.names.get(kind, ())
        if names and self.scopes and not (kind == PODS and all(scope.holds(one) for scope in self.scopes)):
            return ()
        return names
