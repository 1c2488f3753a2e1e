"""What a server offers: its groups, versions and resources, and which of them a word or a kind means.

Both forms are understood: one aggregated document (1.26 and newer) and one document per group version. A single kind is
looked up by asking for its group alone; a word needs everything. Answers are kept; what is not found is asked for again, so
a CRD that was installed a moment ago is there.

One `Discovery` belongs to one client on one event loop; concurrent callers share one load.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Iterable, Iterator

from muster.client.discovery_documents import (
    Aggregated,
    AggregatedGroup,
    CoreVersions,
    Group,
    GroupList,
    ResourceList,
    Served,
    decode,
    flattened,
    served,
    versions_of,
)
from muster.objects.resources import Resource
from muster.objects.status import ApiError, NotFound

AGGREGATED = ",".join(
    f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList" for version in ("v2", "v2beta1")
)
PLAIN = "application/json"
Fetch = Callable[[str, str], Awaitable[bytes]]
"""(path, Accept header) -> body."""

GroupVersion = tuple[str, str]


class Discovery:
    """`failed` holds the group versions that could not be asked the last time (an extension server that is down)."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._lock = asyncio.Lock()
        self._versions: dict[str, tuple[str, ...]] = {}
        """Group -> its versions, the preferred one first; groups in the server's order, core first."""
        self._served: dict[GroupVersion, Served] = {}
        self._is_complete = False
        self.failed: dict[GroupVersion, ApiError] = {}

    def invalidate(self) -> None:
        """Forget everything: the next question goes to the server."""
        self._versions.clear()
        self._served.clear()
        self._is_complete = False

    async def resource(self, group: str, kind: str) -> Resource:
        """The preferred served version of a kind. NotFound when the server does not have it."""
        found = self._by_kind(group, kind)
        if found is None:
            async with self._lock:
                found = self._by_kind(group, kind)  # another caller may have fetched it meanwhile
                if found is None:
                    await self._load_group(group)
                    found = self._by_kind(group, kind)
        if found is None:
            for version in self._versions.get(group, ()):
                if (group, version) in self.failed:
                    raise self.failed[group, version]
            raise NotFound(
                f'the server has no kind "{kind}" in group "{group or "core"}"; is its CustomResourceDefinition installed?',
                kind=kind,
                group=group,
            )
        return found

    async def find(self, word: str) -> Resource:
        """The resource that a user means: plural, singular, kind or short name, or those with `.group` or `.version.group`."""
        for is_second in (False, True):
            known = await self.resources(refresh=is_second)
            found = find_word(known, word)
            if found is not None:
                return found
        words = {name for r in known for name in (r.plural, r.singular, *r.short_names) if name}
        close = difflib.get_close_matches(word.lower(), sorted(words), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise NotFound(f'the server has no resource type "{word}"{hint}', name=word)

    async def resources(self, *, refresh: bool = False) -> list[Resource]:
        """Everything that is served, all versions; of each group the preferred version first."""
        async with self._lock:
            if refresh or not self._is_complete:
                await self._load_all()
        return [r for group, versions in self._versions.items() for v in versions for r in self._resources(group, v)]

    async def body_version(self, group: str, version: str, subresource: str, default: str) -> str:
        """The apiVersion of what is posted to `pods/eviction` and the like."""
        if (group, version) not in self._served:
            async with self._lock:
                if (group, version) not in self._served:
                    await self._load_group(group)
        known = self._served.get((group, version))
        return known.bodies.get(subresource, default) if known else default

    def _resources(self, group: str, version: str) -> tuple[Resource, ...]:
        known = self._served.get((group, version))
        return known.resources if known else ()

    def _by_kind(self, group: str, kind: str) -> Resource | None:
        for version in self._versions.get(group, ()):
            for resource in self._resources(group, version):
                if resource.kind == kind:
                    return resource
        return None

    async def _load_group(self, group: str) -> None:
        if not group:
            versions = tuple(decode(await self._fetch("/api", PLAIN), CoreVersions, "/api").versions)
        else:
            path = f"/apis/{group}"
            try:
                versions = versions_of(decode(await self._fetch(path, PLAIN), Group, path))
            except NotFound:
                self._versions.pop(group, None)
                return
        self._versions[group] = versions
        await self._load_versions((group, version) for version in versions)

    async def _load_all(self) -> None:
        core, rest = await asyncio.gather(
            self._fetch("/api", f"{AGGREGATED},{PLAIN}"), self._fetch("/apis", f"{AGGREGATED},{PLAIN}")
        )
        self.failed.clear()
        documents = [decode(body, Aggregated, path) for body, path in ((core, "/api"), (rest, "/apis"))]
        if all(document.kind == "APIGroupDiscoveryList" for document in documents):
            self._versions.clear()
            self._served.clear()
            for group in (group for document in documents for group in document.items or []):
                self._take_aggregated(group)
        else:
            groups = decode(rest, GroupList, "/apis").groups or []
            self._versions = {"": tuple(decode(core, CoreVersions, "/api").versions)}
            self._versions |= {group.name: versions_of(group) for group in groups}
            await self._load_versions((group, version) for group, all_of in self._versions.items() for version in all_of)
        self._is_complete = True

    async def _load_versions(self, wanted: Iterable[GroupVersion]) -> None:
        async def load(group: str, version: str) -> None:
            path = f"/apis/{group}/{version}" if group else f"/api/{version}"
            try:
                listed = decode(await self._fetch(path, PLAIN), ResourceList, path).resources or []
            except ApiError as error:
                # One broken extension server must not hide all the others.
                self.failed[group, version] = error
                self._served.pop((group, version), None)
            else:
                self.failed.pop((group, version), None)
                self._served[group, version] = served(group, version, listed)

        await asyncio.gather(*(load(group, version) for group, version in wanted))

    def _take_aggregated(self, group: AggregatedGroup) -> None:
        name = group.metadata.name
        self._versions[name] = tuple(version.version for version in group.versions)
        for version in group.versions:
            self._served[name, version.version] = served(name, version.version, flattened(version))


def find_word(known: list[Resource], word: str) -> Resource | None:
    """The first of `known` (in order of preference) that `word` names."""
    text, _, rest = word.lower().partition(".")
    if not text:
        return None
    matching = [r for r in known if "list" in r.verbs or "create" in r.verbs or "get" in r.verbs]
    if rest:
        version, _, group = rest.partition(".")
        exact = [r for r in matching if r.group == rest] or [r for r in matching if (r.version, r.group) == (version, group)]
        matching = exact or [r for r in matching if r.group.startswith(rest)]
    # Plurals win over kinds and kinds over short names, so that no short name can hide a kind.
    for names in (_plurals, _singulars, _shorts):
        for resource in matching:
            if text in names(resource):
                return resource
    return None


def _plurals(resource: Resource) -> Iterator[str]:
    yield resource.plural


def _singulars(resource: Resource) -> Iterator[str]:
    yield resource.singular
    yield resource.kind.lower()


def _shorts(resource: Resource) -> Iterator[str]:
    yield from resource.short_names
