"""The kinds that a store serves: those of the catalog, and those that CustomResourceDefinitions add while it runs.

On the loop only. A kind is stored once, in one version, and may be served in several, some of them in other groups (Events);
schemas are compiled when first used.
A CustomResourceDefinition for a kind of the catalog is stored like any other object and changes nothing: the catalog's own
description stays in force, so Muster's controllers can rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from muster.objects.catalog import Catalog
from muster.objects.patch.shape import root_shape
from muster.objects.patch.versions import Version, Versions
from muster.objects.resources import Resource
from muster.objects.schema import schema_of
from muster.objects.status import MethodNotAllowed, NotFound, Raw
from muster.objects.structural import Structural
from muster.store.embedded.collection import Collection
from muster.store.embedded.core import Core


class Served:
    """One kind: its versions, where its objects are, and what shape they must have."""

    def __init__(
        self, versions: Sequence[Resource], stored: Resource, collection: Collection, schemas: Mapping[str, Raw] | None = None
    ) -> None:
        self.versions = {resource.api_version: resource for resource in versions}
        self.stored = stored
        self.collection = collection
        self.is_from_crd = schemas is not None
        self.is_terminating = False
        """Its CustomResourceDefinition is being deleted: nothing new may come."""
        self._schemas = schemas or {}
        self._structurals: dict[str, Structural | None] = {}
        self._beside: dict[str, Versions] = {}
        api_versions = [resource.api_version for resource in versions if resource.conversion is None]
        collection.serve(api_versions, stored.api_version, stored.selectable_fields)

    @property
    def is_custom(self) -> bool:
        return self.is_from_crd or self.stored.is_custom

    def schema(self, resource: Resource) -> Raw | None:
        """The structural schema of a version; None when nothing is known of its shape."""
        structural = self.structural(resource)
        return None if structural is None else structural.schema

    def structural(self, resource: Resource) -> Structural | None:
        version = resource.api_version
        if version not in self._structurals:
            resource = self.versions[version]
            schema = self._schemas.get(version)
            if schema is None and resource.view is not None:
                schema = schema_of(resource.view)
            self._structurals[version] = None if schema is None else Structural(schema)
        return self._structurals[version]

    def beside(self, resource: Resource) -> Versions:
        """The other versions, where they differ by more than their names: managers of fields may speak them."""
        version = resource.api_version
        if version not in self._beside:
            others = [other for other in self.versions.values() if other.api_version != version]
            is_one_shape = resource.conversion is None and all(other.conversion is None for other in others)
            seen = {o.api_version: self._seen(resource, o) if o.group == resource.group else None for o in others}
            self._beside[version] = {} if is_one_shape else seen
        return self._beside[version]

    def _seen(self, resource: Resource, other: Resource) -> Version:
        return Version(
            read=lambda raw: resource.converted(raw, other),
            write=lambda raw: other.converted(raw, resource),
            shape=root_shape(self.schema(other)),
        )

    def shaped_as(self, resource: Resource) -> Resource:
        """The version in which what is sent as `resource` gets its defaults and is checked (see `Conversion`)."""
        is_ours = resource.conversion is not None and resource.group == self.stored.group
        return self.stored if is_ours else resource

    def as_stored(self, resource: Resource, raw: Raw) -> Raw:
        """An object in the version of `resource` as it is kept. It may be `raw` itself, which then has another apiVersion."""
        if resource.conversion is not None:
            raw = resource.conversion.to_stored(raw)
        raw["apiVersion"] = self.stored.api_version
        return raw


class Registry:
    def __init__(self, core: Core, catalog: Catalog) -> None:
        self._core = core
        self._base = catalog
        self._served: dict[str, Served] = {}
        """By qualified plural. A kind that has names in two groups is there twice."""
        self._custom: dict[str, tuple[Resource, ...]] = {}
        """Resources by the name of the CustomResourceDefinition that adds them."""
        self.catalog = catalog
        """Everything that is served now."""
        self.revision = 0
        """Grows whenever what is served changes: a write that was shaped before then is shaped again."""
        self.on_changed: list[Callable[[], None]] = []
        by_id: dict[str, list[Resource]] = {}
        for resource in catalog.all:
            by_id.setdefault(resource.collection, []).append(resource)
        for id_, versions in by_id.items():
            stored = next(resource for resource in versions if resource.conversion is None)
            served = Served(versions, stored, core.collection(id_))
            self._served.update({resource.qualified: served for resource in versions})

    # --- look-ups ------------------------------------------------------------------------------------------------

    def find(self, resource: Resource) -> Served:
        """How `resource` is served. NotFound when it is not, or not in that version."""
        served = self._served.get(resource.qualified)
        if served is None or resource.api_version not in served.versions:
            raise NotFound(
                f"the server could not find the requested resource: {resource.qualified} in version {resource.version}",
                kind=resource.plural,
                group=resource.group,
            )
        if "get" not in resource.verbs and "list" not in resource.verbs:
            raise MethodNotAllowed(f"{resource.qualified} are answered and never stored", kind=resource.plural)
        return served

    def find_kind(self, group: str, kind: str) -> Served | None:
        """By group and kind, as owner references name them."""
        try:
            resource = self.catalog.by_kind(group, kind)
        except NotFound:
            return None
        return self._served.get(resource.qualified)

    def pods(self) -> Served:
        served = self.find_kind("", "Pod")
        if served is None:
            raise NotFound("the server could not find the requested resource: it serves no pods")
        return served

    def by_id(self, id_: str) -> Served | None:
        """By the name of its collection."""
        return self._served.get(id_)

    @property
    def all(self) -> Sequence[Served]:
        return list(dict.fromkeys(self._served.values()))

    def is_built_in(self, id_: str) -> bool:
        served = self._served.get(id_)
        return served is not None and not served.is_from_crd

    # --- CustomResourceDefinitions -------------------------------------------------------------------------------

    def serve_custom(self, served: Served) -> None:
        """Add or replace the kind that a definition describes. A definition's name is its kind's qualified plural."""
        id_ = served.collection.id
        assert not self.is_built_in(id_)
        self._served[id_] = served
        self._custom[id_] = tuple(served.versions.values())
        self._rebuild()

    def drop_custom(self, crd_name: str) -> None:
        """Serve the kind no longer; its objects are gone already. Watches of it end."""
        versions = self._custom.pop(crd_name, ())
        if not versions:
            return
        served = self._served.pop(versions[0].qualified, None)
        if served is not None:
            self._core.end_watches(served.collection)
        self._rebuild()

    def _rebuild(self) -> None:
        self.revision += 1
        self.catalog = self._base.extended(resource for versions in self._custom.values() for resource in versions)
        for callback in self.on_changed:
            callback()

    def name_conflict(self, crd_name: str, group: str, names: Mapping[str, Sequence[str]], promised: Mapping[str, str]) -> str:
        """Why a definition's names can't be accepted beside those already served in its group; "" when they can.

        `names` maps the field (`kind`, `plural`, ...) to the names it claims. `promised` tells whose the names are of those
        definitions of the group that are on their way to disk.
        """
        taken = dict(promised)
        for served in self._served.values():
            for resource in served.versions.values():
                if resource.group != group or resource.qualified == crd_name:
                    continue
                for name in (resource.kind, f"{resource.kind}List", resource.list_kind, resource.plural, resource.singular):
                    taken[name] = resource.qualified
                for name in resource.short_names:
                    taken[name] = resource.qualified
        for field, claimed in names.items():
            for name in claimed:
                if name and name in taken:
                    return f'{field} "{name}" is already in use by {taken[name]}'
        return ""
