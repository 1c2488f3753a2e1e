"""The kinds that Muster knows, in one place: look them up by plural, by kind, or by the word a user typed.

Pure values, built once at import. Each module under `muster.objects.kinds` exports `RESOURCES`; this one names them all, so
what is served can be read here top to bottom. Kinds that users add at run time as CustomResourceDefinitions are not here:
the store joins them with `Catalog.extended`.

Invariants: (group, version, plural) is unique; (group, kind) has one preferred version, the first listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from muster.objects.kinds import (
    admissionregistration,
    apiextensions,
    apps,
    authentication,
    authorization,
    autoscalers,
    autoscalers_v1,
    batch,
    coordination,
    core,
    discovery,
    events,
    koordinator_scheduling,
    koordinator_slo,
    kuscia_data,
    kuscia_domains,
    kuscia_jobs,
    kuscia_routes,
    muster,
    networking,
    node,
    policy,
    rbac,
    scheduling,
    sigs,
    storage,
)
from muster.objects.resources import Resource
from muster.objects.status import NotFound


class Catalog:
    """An immutable set of resources with the look-ups that everyone needs."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self.all: tuple[Resource, ...] = tuple(resources)
        self._by_plural: dict[tuple[str, str, str], Resource] = {}
        self._by_kind: dict[tuple[str, str], Resource] = {}
        self._by_word: dict[str, Resource] = {}
        for resource in self.all:
            key = (resource.group, resource.version, resource.plural)
            if key in self._by_plural:
                raise ValueError(f"{resource.qualified} {resource.version} is listed twice in the catalog")
            self._by_plural[key] = resource
            self._by_kind.setdefault((resource.group, resource.kind), resource)
        # Plurals win over kinds, kinds over short names, so that no short name can hide a kind; within each, first come.
        for words in (_plural_words, _kind_words, _short_words):
            for resource in self.all:
                for word in words(resource):
                    self._by_word.setdefault(word, resource)

    def __iter__(self) -> Iterator[Resource]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    @property
    def custom(self) -> tuple[Resource, ...]:
        """The kinds that a real cluster knows only through the CRDs which Muster ships."""
        return tuple(r for r in self.all if r.is_custom)

    def by_plural(self, group: str, version: str, plural: str) -> Resource | None:
        """As a URL names it: `/apis/{group}/{version}/{plural}`."""
        return self._by_plural.get((group, version, plural))

    def by_kind(self, group: str, kind: str) -> Resource:
        """The preferred version of a kind. Raises NotFound."""
        found = self._by_kind.get((group, kind))
        if found is None:
            raise NotFound(
                f'no kind "{kind}" in API group "{group or "core"}"; see `muster api-resources`', kind=kind, group=group
            )
        return found

    def find(self, word: str) -> Resource | None:
        """By what a user types: plural, singular, kind, short name, each also as `word.group` and `word.version.group`."""
        return self._by_word.get(word.lower())

    def extended(self, resources: Iterable[Resource]) -> Catalog:
        """This catalog and `resources` after it; what is already here keeps its place and its words."""
        known = self._by_plural
        return Catalog((*self.all, *(r for r in resources if (r.group, r.version, r.plural) not in known)))


def _plural_words(resource: Resource) -> Iterator[str]:
    return _qualified(resource, resource.plural)


def _kind_words(resource: Resource) -> Iterator[str]:
    yield from _qualified(resource, resource.kind.lower())
    if resource.singular:
        yield from _qualified(resource, resource.singular)


def _short_words(resource: Resource) -> Iterator[str]:
    for name in resource.short_names:
        yield from _qualified(resource, name)


def _qualified(resource: Resource, word: str) -> Iterator[str]:
    yield word
    if resource.group:
        yield f"{word}.{resource.group}"
        yield f"{word}.{resource.version}.{resource.group}"


CATALOG = Catalog(
    (
        *core.RESOURCES,
        *apps.RESOURCES,
        *autoscalers.RESOURCES,
        *autoscalers_v1.RESOURCES,
        *batch.RESOURCES,
        *policy.RESOURCES,
        *scheduling.RESOURCES,
        *coordination.RESOURCES,
        *rbac.RESOURCES,
        *storage.RESOURCES,
        *networking.RESOURCES,
        *node.RESOURCES,
        *discovery.RESOURCES,
        *events.RESOURCES,
        *apiextensions.RESOURCES,
        *admissionregistration.RESOURCES,
        *authorization.RESOURCES,
        *authentication.RESOURCES,
        *kuscia_domains.RESOURCES,
        *kuscia_jobs.RESOURCES,
        *kuscia_routes.RESOURCES,
        *kuscia_data.RESOURCES,
        *sigs.RESOURCES,
        *koordinator_scheduling.RESOURCES,
        *koordinator_slo.RESOURCES,
        *muster.RESOURCES,
    )
)
