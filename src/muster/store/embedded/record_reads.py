"""Get, list and watch, on records: nothing is decoded or encoded on the way to a client.

`RecordStore` has these methods (record_store.py). On the loop only, and without waiting: everything is answered from memory.
Readers are shown what is committed; `latest_record` and `latest_records`, for those who decide about writes, also what is in
flight. A list that is read in pages is one snapshot: later pages undo the changes since the first (`Collection.slice_at`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from muster.objects.resources import Resource
from muster.objects.status import BadRequest, Cause, Expired, Timeout, TooManyRequests
from muster.objects.steps import Steps, done_at_once
from muster.store.embedded.collection import Collection, Slice
from muster.store.embedded.core import Core
from muster.store.embedded.paging import make_token, read_token
from muster.store.embedded.records import Key, Record
from muster.store.embedded.registry import Registry
from muster.store.embedded.rules import key_of, not_found
from muster.store.embedded.scanning import Scan
from muster.store.embedded.selection import Selection, in_version
from muster.store.embedded.watchers import Watcher

VersionMatch = Literal["", "Exact", "NotOlderThan"]
STEP_LEN: Final = 500
"""Objects that one step of a list looks at: about half a millisecond's work, with selectors."""
_CHANGED_LEN: Final = 50
"""The same of those that are decoded and encoded anew, in another version of their kind."""


class RecordPage(msgspec.Struct, frozen=True):
    """One chunk of a list, as `contract.Page`, undecoded."""

    records: Sequence[Record]
    resource_version: str
    continue_token: str = ""
    remaining: int | None = None


class RecordReads:
    _core: Core
    _registry: Registry

    def get_record(self, resource: Resource, name: str, namespace: str | None = None) -> Record:
        self._core.check_open()
        served = self._registry.find(resource)
        record = served.collection.records.get(key_of(resource, name, namespace))
        if record is None:
            raise not_found(resource, name)
        return in_version(served.collection.shown(record), resource)

    # --- list ----------------------------------------------------------------------------------------------------

    def list_records(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
        version_match: VersionMatch = "",
    ) -> RecordPage:
        """As `list` of the contract, undecoded and all at once; see `list_record_steps` for what else wants to run meanwhile.

        `resource_version` asks for a state not older than it, or with match Exact for that one.
        """
        steps = self.list_record_steps(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            continue_token=continue_token,
            resource_version=resource_version,
            version_match=version_match,
        )
        return done_at_once(steps)

    def list_record_steps(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
        version_match: VersionMatch = "",
    ) -> Steps[RecordPage]:
        """As `list_records`, as what a generator returns that stops between steps of STEP_LEN objects. It is one snapshot."""
        core = self._core
        core.check_open()
        collection = self._registry.find(resource).collection
        selection = Selection(resource, namespace, label_selector, field_selector)
        if limit < 0:
            raise BadRequest(f"limit must be 0 or more, not {limit}")
        limit_max = core.limits.list_len_max
        limit = min(limit or limit_max, limit_max) if limit_max else limit
        query = "\0".join((resource.qualified, selection.namespace or "", label_selector, field_selector))
        rv, start = core.committed_rv, None
        if continue_token:
            position = read_token(core.identity, query, continue_token)
            rv, start = position.rv, position.key
        elif resource_version not in ("", "0"):
            asked = self._reached(resource_version)
            if version_match == "Exact":
                rv = asked
        if limit and selection.is_everything:
            found = self._slice(collection, selection, rv, start, limit)
        else:
            found = yield from self._search(collection, selection, rv, start, limit)
        records: Sequence[Record] = found.records
        if collection.reshaping.until or not collection.is_as_stored(resource.api_version):
            records = yield from _in_version(collection, records, resource)
        token = make_token(core.identity, query, rv, found.next_key) if found.next_key is not None else ""
        return RecordPage(records, str(rv), token, found.remaining)

    def _slice(self, collection: Collection, selection: Selection, rv: int, start: tuple[str, str] | None, limit: int) -> Slice:
        core = self._core
        matches = None if selection.is_everything else selection.matches
        if rv == core.committed_rv:
            if selection.name is not None and start is None and selection.namespace is not None:
                # `metadata.name=x` is a get: watchers of a single object list that way.
                record = collection.records.get((selection.namespace, selection.name))
                is_found = record is not None and selection.matches(collection.shown(record))
                return Slice([record] if record is not None and is_found else [], None, None)
            return collection.slice(selection.namespace, matches, start, limit)
        self._check_kept(rv)
        return collection.slice_at(rv, selection.namespace, matches, start, limit)

    def _search(
        self, collection: Collection, selection: Selection, rv: int, start: tuple[str, str] | None, limit: int
    ) -> Steps[Slice]:
        """As `_slice`, in steps. How many follow is not counted: only a list with a limit and without selectors tells that."""
        if selection.name is not None and start is None and selection.namespace is not None and rv == self._core.committed_rv:
            return self._slice(collection, selection, rv, start, limit)
        self._check_kept(rv)
        scan = Scan(collection, rv, selection.namespace, start)
        found: list[Record] = []
        is_reshaped = bool(collection.reshaping.until) and not selection.is_everything
        while True:
            part = scan.take(_CHANGED_LEN if is_reshaped else STEP_LEN)
            if not selection.is_everything:
                matches = selection.matches
                part = [record for record in part if matches(collection.shown(record) if is_reshaped else record)]
            if limit and len(found) + len(part) > limit:
                kept = limit - len(found)
                return Slice([*found, *part[:kept]], part[kept].key, None)
            found += part
            if scan.is_done:
                return Slice(found, None, None)
            yield

    def _check_kept(self, rv: int) -> None:
        core = self._core
        if rv < core.horizon:
            raise Expired(
                f"the provided continue parameter is too old: its list was taken at resource version {rv}, and the history "
                f"now begins after {core.horizon}; list again from the start"
            )

    def _reached(self, text: str) -> int:
        """The version that is asked for, which is not one that is still to come."""
        version = _parse_version(text)
        if version > self._core.committed_rv:
            raise Timeout(
                f"Too large resource version: {version}, current: {self._core.committed_rv}; list again without one",
                causes=[Cause("", "Too large resource version", "ResourceVersionTooLarge")],
                retry_after_s=1,
            )
        return version

    # --- what writes find -----------------------------------------------------------------------------------------

    def latest_record(self, id_: str, key: Key) -> Record | None:
        """One object as the next write would find it; see `latest_records`."""
        collection = self._core.collections.get(id_)
        return None if collection is None else collection.latest(key)

    def latest_records(self, id_: str, namespace: str | None = None) -> Iterator[Record]:
        """What the next write would find of a kind (`Resource.qualified`), writes in flight included.

        For whoever decides about writes, and does not wait in between. Readers are shown what is on disk.
        """
        collection = self._core.collections.get(id_)
        return iter(()) if collection is None else collection.latest_in(namespace)

    # --- watch ---------------------------------------------------------------------------------------------------

    def watch_records(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        timeout_s: float | None = None,
        send_initial_events: bool | None = None,
    ) -> Watcher:
        """Open a watch at once: `async for batch in watcher`, each batch a list of `Event` (`type`, `record`, `line`).

        Whatever is wrong with it is raised here, not while it is read. Whoever opens it closes it: `watcher.close()`.

        `send_initial_events` True gives what exists first, then a bookmark that says so, whatever the version; False never
        does. None is what the version says: "" and "0" start with what exists. From a version that is still to come, the watch
        waits for what follows it; what exists at such a version can't be told, so that is a Timeout.
        """
        core = self._core
        core.check_open()
        collection = self._registry.find(resource).collection
        selection = Selection(resource, namespace, label_selector, field_selector)
        if len(core.watchers) >= core.limits.watchers_max:
            raise TooManyRequests(
                f"{len(core.watchers)} watches are open, which is the limit; close some, or try again in a while",
                kind=resource.plural,
                group=resource.group,
                retry_after_s=5,
            )
        initial: Scan | None = None
        position, after = collection.history.end, 0
        from_scratch = resource_version in ("", "0")
        if not from_scratch:
            version = self._reached(resource_version) if send_initial_events else _parse_version(resource_version)
            if version < core.horizon and not send_initial_events:
                raise Expired(f"too old resource version: {version} ({core.horizon}); list again and watch from there")
            if version > core.committed_rv:
                after = version
            elif not send_initial_events:
                position = collection.history.after(version)
        if send_initial_events or (from_scratch and send_initial_events is not False):
            initial = Scan(collection, core.committed_rv, selection.namespace)
        watcher = Watcher(
            core,
            collection,
            selection,
            resource.kind,
            position=position,
            after=after,
            initial=initial,
            announce_initial=bool(send_initial_events) and bookmarks,
            bookmark_interval_s=core.limits.bookmark_interval_s if bookmarks else 0.0,
            timeout_s=timeout_s,
            batch_len_max=core.limits.watch_batch_len_max,
            batch_bytes_max=core.limits.watch_batch_bytes_max,
        )
        core.watchers[watcher] = None
        return watcher


def _parse_version(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise BadRequest(f"resourceVersion: Invalid value: {text[:80]!r}: it must be one that this server gave out")
    return int(text)


def _in_version(collection: Collection, records: Sequence[Record], resource: Resource) -> Steps[list[Record]]:
    """In another version, and in the shape that the kind has now."""
    changed: list[Record] = []
    show = collection.shown
    for first in range(0, len(records), _CHANGED_LEN):
        changed += [in_version(show(record), resource) for record in records[first : first + _CHANGED_LEN]]
        yield
    return changed
