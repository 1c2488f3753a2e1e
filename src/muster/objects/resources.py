"""What a kind is called and how it is served: the one description that store, server, client, CLI and CRDs share.

Pure values. `muster.objects.catalog` lists every `Resource` that Muster knows; CustomResourceDefinitions created at run time
become further ones (`from_crd` there).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from muster.objects.status import Raw
from muster.objects.view import View


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """A printer column. `path` is JSONPath in Kubernetes' dialect (`.spec.nodeName`); priority 1 shows only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0
    description: str = ""
    format: str = ""


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """How a version that no object is kept in is made of the one that all are kept in, and back.

    Versions of one group are held against one set of rules, those of the stored version: what is written is converted first. A
    version of another group has its own.

    Both ways are pure functions of whole objects: they take any JSON object, leave it as it is, say nothing of `apiVersion`,
    and `to_stored(from_stored(raw))` is as good as `raw`. `managedFields` stay as they are, each entry in the version it names.
    """

    stored_group: str
    from_stored: Callable[[Raw], Raw]
    to_stored: Callable[[Raw], Raw]
    stored_field: Callable[[str], str] = str
    """What a selectable field is called in the stored version."""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One kind in one version. Two Resources are the same kind if `group` and `kind` are equal, or if `collection` is."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    """Of `status`, `scale`, `binding`, `eviction`, `token`, `log`, `exec`, `portforward`, `finalize`, `approval`."""
    verbs: tuple[str, ...] = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
    columns: tuple[Column, ...] = ()
    """After NAME (and NAMESPACE); an empty tuple means AGE alone."""
    view: type[View] | None = None
    """The typed view of the whole object; None for kinds known only by a CRD created at run time."""
    selectable_fields: tuple[str, ...] = ()
    """Besides metadata.name and metadata.namespace."""
    is_custom: bool = False
    """On a real cluster this kind exists only because its CRD was installed."""
    scale_paths: tuple[str, str, str] | None = None
    """With the `scale` subresource: paths of the replicas in spec and in status, and of the label selector as text or ""."""
    generation_tracked: bool = True
    """False for kinds without spec (ConfigMap, Event, ...): Kubernetes leaves their generation unset."""
    generation_counts_annotations: bool = False
    """Whether the generation moves with annotations too, as that of Deployments does."""
    status_keeps: frozenset[str] = frozenset()
    """Metadata that a write to the status leaves as it is. Of custom kinds that is all of it, whatever this says."""

    conversion: Conversion | None = None
    """Set where objects are kept in another version than this, in this group or in another one."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`pods` or `kusciajobs.kuscia.secretflow`: how messages and RBAC name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def collection(self) -> str:
        """The `qualified` of the version that its objects are kept in: one set of objects may have names in two groups."""
        if self.conversion is None:
            return self.qualified
        return f"{self.plural}.{self.conversion.stored_group}" if self.conversion.stored_group else self.plural

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

    def converted(self, raw: Raw, wanted: Resource) -> Raw:
        """An object of this version in another version of its kind. `raw` stays as it is."""
        if self.conversion is not None:
            raw = self.conversion.to_stored(raw)
        if wanted.conversion is not None:
            raw = wanted.conversion.from_stored(raw)
        return {**raw, "apiVersion": wanted.api_version}

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """The URL path under the server's root."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)
