"""What the kinds have in common: the shape of a whole object, Kubernetes' spelling of names, and ways to annotate a field.

Pure. Views of Kubernetes' own kinds derive from `Native` and `NativeObject`. Their enumerated fields are plain `str` whose
allowed values stand in the schema (`one_of`): our server checks them, yet an object from a newer cluster still decodes.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from muster.objects.meta import ObjectMeta
from muster.objects.resources import Column, Resource
from muster.objects.schema import NATIVE
from muster.objects.selectors import LabelSelector
from muster.objects.view import ATOMIC, View, keyed

AGE = Column(name="Age", path=".metadata.creationTimestamp", type="date")
"""The last column of most tables."""

_CAPITALS: Final = {
    "api": "API",
    "cidr": "CIDR",
    "cidrs": "CIDRs",
    "fqdn": "FQDN",
    "id": "ID",
    "io": "IO",
    "ip": "IP",
    "ipc": "IPC",
    "ips": "IPs",
    "pid": "PID",
    "uri": "URI",
    "url": "URL",
    "urls": "URLs",
    "uuid": "UUID",
    "wwns": "WWNs",
}


def json_name(name: str) -> str:
    """`pod_ip` is `podIP`, `from_` is `from`: a Python name as Kubernetes spells it."""
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(_CAPITALS.get(word) or word.capitalize() for word in rest)


class Object(View):
    """Base of the views of whole objects; `spec`, `status` and the rest come from the kind."""

    api_version: Annotated[str, "Group and version of this kind's schema: `v1`, `apps/v1`."] = ""
    kind: Annotated[str, "Name of the kind in CamelCase."] = ""
    metadata: Annotated[ObjectMeta, "Name, namespace, labels, owners and what the server keeps about the object."] = (
        msgspec.field(default_factory=ObjectMeta)
    )


class Native(View, rename=json_name):
    """Base of the parts of Kubernetes' own kinds."""


class NativeObject(Object, rename=json_name):
    """Base of Kubernetes' own kinds."""

    __schema_extra__ = types.MappingProxyType({"x-muster-duplicates-allowed": True, NATIVE: True})


ATOMIC_MAP: Mapping[str, Any] = types.MappingProxyType({"x-kubernetes-map-type": "atomic"})
"""For `__schema_extra__`: the object is owned and replaced as a whole."""

GRANULAR = msgspec.Meta(extra_json_schema={"x-kubernetes-map-type": "granular"})

Strings = Annotated[list[str], ATOMIC]
Texts = dict[str, str]
AtomicTexts = Annotated[dict[str, str], msgspec.Meta(extra_json_schema={"x-kubernetes-map-type": "atomic"})]
Selector = Annotated[LabelSelector, msgspec.Meta(extra_json_schema={"x-kubernetes-map-type": "atomic"})]


def one_of(*values: str) -> msgspec.Meta:
    """The values that a text field may have."""
    return msgspec.Meta(extra_json_schema={"enum": list(values)})


def default(value: Any) -> msgspec.Meta:
    """A default that the server fills in, though the view's own is None."""
    return msgspec.Meta(extra_json_schema={"default": value})


def between(low: int | None = None, high: int | None = None, number_format: str = "int32") -> msgspec.Meta:
    """Bounds of a number that the server checks; decoding does not."""
    extra: dict[str, Any] = {"format": number_format}
    if low is not None:
        extra["minimum"] = low
    if high is not None:
        extra["maximum"] = high
    return msgspec.Meta(extra_json_schema=extra)


def keyed_merge(*keys: str, merge_key: str = "", strategy: str = "merge") -> msgspec.Meta:
    """A list of objects told apart by `keys`, and merged by the first of them in a strategic merge patch."""
    extra = dict(keyed(*keys).extra_json_schema or {})
    extra["x-kubernetes-patch-strategy"] = strategy
    extra["x-kubernetes-patch-merge-key"] = merge_key or keys[0]
    return msgspec.Meta(extra_json_schema=extra)


RETAIN_KEYS = msgspec.Meta(extra_json_schema={"x-kubernetes-patch-strategy": "retainKeys"})
REPLACE = msgspec.Meta(extra_json_schema={"x-kubernetes-patch-strategy": "replace"})

Port = Annotated[int, between(1, 65535)]
Protocol = Annotated[str, one_of("TCP", "UDP", "SCTP")]
Count = Annotated[int, between(0)]
Mode = Annotated[int, between(0, 0o777)]
PullPolicy = Annotated[str, one_of("Always", "IfNotPresent", "Never")]


def asked_resource(view: type[NativeObject], *, group: str, namespaced: bool = False) -> Resource:
    """A kind that is a question: posted, answered, never stored. Named after its view."""
    kind = view.__name__
    return Resource(
        group=group,
        version="v1",
        kind=kind,
        plural=f"{kind.lower()}s",
        namespaced=namespaced,
        verbs=("create",),
        generation_tracked=False,
        view=view,
    )
