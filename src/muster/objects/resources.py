"""What a kind is called and how it is served: the one description that store, server, client, CLI and CRDs share.

Pure values. `muster.objects.catalog` lists every `Resource` that Muster knows; CustomResourceDefinitions created at run time
become further ones (`from_crd` there).
"""

from __future__ import annotations

import msgspec

from muster.objects.view import View


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """A printer column. `path` is JSONPath in Kubernetes' dialect (`.spec.nodeName`); priority 1 shows only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0
    description: str = ""
    format: str = ""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One kind in one version. Two Resources are the same kind if `group` and `kind` are equal."""

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
    """Of `status`, `scale`, `binding`, `eviction`, `token`, `log`, `finalize`, `approval`."""
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

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`pods` or `kusciajobs.kuscia.secretflow`: how messages and RBAC name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

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
