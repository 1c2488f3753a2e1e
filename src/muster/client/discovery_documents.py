"""The documents of discovery as servers send them, and the `Resource`s that they describe.

Pure. Unknown fields are ignored and missing ones have defaults: servers of ten years must all be readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from muster.client.errors import BadResponse
from muster.objects.resources import Resource
from muster.objects.status import NotFound

T = TypeVar("T")


class ApiResource(msgspec.Struct):
    name: str
    kind: str = ""
    singular: str = msgspec.field(name="singularName", default="")
    namespaced: bool = False
    group: str = ""
    version: str = ""
    verbs: list[str] | None = None
    short_names: list[str] | None = msgspec.field(name="shortNames", default=None)
    categories: list[str] | None = None


class ResourceList(msgspec.Struct):
    resources: list[ApiResource] | None = None


class Version(msgspec.Struct):
    version: str


class Group(msgspec.Struct):
    name: str
    versions: list[Version]
    preferred: Version | None = msgspec.field(name="preferredVersion", default=None)


class GroupList(msgspec.Struct):
    groups: list[Group] | None = None


class CoreVersions(msgspec.Struct):
    versions: list[str]


class ResponseKind(msgspec.Struct):
    group: str = ""
    version: str = ""
    kind: str = ""


class AggregatedSubresource(msgspec.Struct):
    subresource: str
    kind: ResponseKind | None = msgspec.field(name="responseKind", default=None)


class AggregatedResource(msgspec.Struct):
    resource: str
    kind: ResponseKind | None = msgspec.field(name="responseKind", default=None)
    scope: str = "Cluster"
    singular: str = msgspec.field(name="singularResource", default="")
    verbs: list[str] | None = None
    short_names: list[str] | None = msgspec.field(name="shortNames", default=None)
    categories: list[str] | None = None
    subresources: list[AggregatedSubresource] | None = None


class AggregatedVersion(msgspec.Struct):
    version: str
    resources: list[AggregatedResource] | None = None


class Named(msgspec.Struct):
    name: str = ""


class AggregatedGroup(msgspec.Struct):
    metadata: Named = msgspec.field(default_factory=Named)
    versions: list[AggregatedVersion] = []


class Aggregated(msgspec.Struct):
    kind: str
    items: list[AggregatedGroup] | None = None


class Served(msgspec.Struct, frozen=True):
    """One group version: its resources, and the group and version of the bodies that its subresources take."""

    resources: tuple[Resource, ...]
    bodies: Mapping[str, str]
    """`pods/eviction` -> `policy/v1`."""


def versions_of(group: Group) -> tuple[str, ...]:
    versions = [version.version for version in group.versions]
    preferred = group.preferred.version if group.preferred else ""
    return tuple(sorted(versions, key=lambda version: version != preferred))


def flattened(version: AggregatedVersion) -> list[ApiResource]:
    """An aggregated version in the older, flat form."""
    flat: list[ApiResource] = []
    for entry in version.resources or []:
        flat.append(
            ApiResource(
                name=entry.resource,
                kind=entry.kind.kind if entry.kind else "",
                singular=entry.singular,
                namespaced=entry.scope == "Namespaced",
                verbs=entry.verbs,
                short_names=entry.short_names,
                categories=entry.categories,
            )
        )
        for sub in entry.subresources or []:
            body = sub.kind or ResponseKind()
            flat.append(
                ApiResource(name=f"{entry.resource}/{sub.subresource}", kind=body.kind, group=body.group, version=body.version)
            )
    return flat


def served(group: str, version: str, listed: list[ApiResource]) -> Served:
    subresources: dict[str, set[str]] = {}
    bodies: dict[str, str] = {}
    for entry in listed:
        plural, slash, subresource = entry.name.partition("/")
        if slash:
            subresources.setdefault(plural, set()).add(subresource)
            if entry.version:
                bodies[entry.name] = f"{entry.group}/{entry.version}" if entry.group else entry.version
    main = [entry for entry in listed if "/" not in entry.name]
    resources = (_resource(group, version, entry, frozenset(subresources.get(entry.name, ()))) for entry in main)
    return Served(tuple(resources), bodies)


def _resource(group: str, version: str, entry: ApiResource, subresources: frozenset[str]) -> Resource:
    """What the server says of itself; view, columns and selectable fields come from our catalog where it knows the kind."""
    from muster.objects.catalog import CATALOG

    known = CATALOG.by_plural(group, version, entry.name)
    if known is None:
        try:
            known = CATALOG.by_kind(group, entry.kind)
        except NotFound:
            known = Resource(group=group, version=version, kind=entry.kind, plural=entry.name)
    return msgspec.structs.replace(
        known,
        version=version,
        plural=entry.name,
        namespaced=entry.namespaced,
        singular=entry.singular or entry.kind.lower(),
        list_kind=known.list_kind or f"{entry.kind}List",
        short_names=tuple(entry.short_names or ()),
        categories=tuple(entry.categories or ()),
        subresources=subresources,
        verbs=tuple(entry.verbs or ()),
    )


def decode(body: bytes, cls: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(body, type=cls)
    except msgspec.DecodeError as error:
        raise BadResponse(
            f"GET {path}: this is not a Kubernetes-style API server, or not one that we understand: {error}"
        ) from error
