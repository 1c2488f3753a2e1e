"""Reading objects for `get`: kinds from words, tables and objects page by page, changes as they come.

Runs on the command's event loop. What was printed stays true to one snapshot: when a continuation token has expired, the
list is read again in one piece.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TypeVar

import click
import msgspec

from muster.cli.errors import CliError, ExitCode
from muster.cli.output import (
    Layout,
    Table,
    TableColumn,
    emit,
    print_objects,
    qualified_name,
    render_value,
    without_managed_fields,
)
from muster.cli.references import Reference
from muster.cli.session import Failures, Session
from muster.client.errors import OutcomeUnknown, Unreachable
from muster.objects.ages import since
from muster.objects.meta import name_of, resource_version_of
from muster.objects.requests import EventType, WatchEvent
from muster.objects.resources import Resource
from muster.objects.status import Expired, NotFound, Raw
from muster.objects.time import wall_clock

RECONNECTS_MAX = 30
RECONNECT_PAUSE_S = 1.0
SEEN_MAX = 200_000

P = TypeVar("P")
Wanted = Sequence[tuple[Resource, tuple[str, ...]]]
"""Kinds, each with the names asked for; no names means all."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What `get` was asked, apart from kinds and names."""

    output: str = "table"
    all_namespaces: bool = False
    label_selector: str = ""
    field_selector: str = ""
    chunk_size: int = 500
    headers: bool = True
    show_labels: bool = False
    show_managed: bool = False
    ignore_not_found: bool = False

    @property
    def is_table(self) -> bool:
        return self.output in ("table", "wide")

    def layout(self, resource: Resource) -> Layout:
        return Layout(
            wide=self.output == "wide",
            headers=self.headers,
            namespaces=self.all_namespaces and resource.namespaced,
            labels=self.show_labels,
        )


async def resolve_kinds(s: Session, parsed: Sequence[Reference], failures: Failures) -> Wanted:
    """The kinds that the words mean, categories spelled out. An unknown word is a failure; if all are, it is raised."""
    found: dict[Resource, tuple[str, ...]] = {}
    errors: list[NotFound] = []
    for reference in parsed:
        try:
            for resource in await _kinds_of(s, reference.word):
                found.setdefault(resource, reference.names)
        except NotFound as e:
            errors.append(e)
    if not found and len(errors) == 1:
        raise errors[0]
    for error in errors:
        failures.add(error)
    return list(found.items())


def preferred(resources: Iterable[Resource]) -> list[Resource]:
    """Each kind once, in the version that the server lists first."""
    found: dict[tuple[str, str], Resource] = {}
    for resource in resources:
        found.setdefault((resource.group, resource.kind), resource)
    return list(found.values())


async def _kinds_of(s: Session, word: str) -> list[Resource]:
    try:
        resource = await s.client.find(word)
    except NotFound:
        # A category (`all`) is no kind; it stands for several, each in its preferred version.
        offered = await s.client.discovery.resources()
        members = preferred(r for r in offered if word in r.categories and "list" in r.verbs)
        if members:
            return members
        raise
    if "list" not in resource.verbs:
        raise CliError(f"{resource.qualified} cannot be listed: the server offers only {', '.join(resource.verbs)}")
    return [resource]


# --------------------------------------------------------------------------------------------------------------- tables


def as_table(raw: Raw) -> Table:
    """The server's table, or one of names and ages from a server that makes none."""
    if raw.get("kind") == "Table":
        return Table.from_wire(raw)
    items = raw["items"] if isinstance(raw.get("items"), list) else [raw]
    metadata = [item.get("metadata") or {} for item in items]
    rows = [[m.get("name"), since(m.get("creationTimestamp"), wall_clock())] for m in metadata]
    return Table([TableColumn("Name"), TableColumn("Age")], rows, metadata)


async def print_tables(s: Session, wanted: Wanted, query: Query, failures: Failures) -> None:
    """One table per kind that has any object, with the kind before each name when several kinds were asked for."""
    is_empty = True
    for resource, names in wanted:
        prefix = qualified_name(resource, "") if len(wanted) > 1 else ""
        if names:
            table = await _named_rows(s, resource, names, query, failures)
        else:
            table, _ = await _table(s, resource, query)
        if table.rows:
            emit(("" if is_empty else "\n") + "\n".join(query.layout(resource).lines(table, prefix)))
            is_empty = False
    if is_empty and failures.exit_code is ExitCode.OK and not any(names for _, names in wanted):
        is_local = any(r.namespaced for r, _ in wanted) and not query.all_namespaces
        click.echo(f"nothing found in namespace {s.namespace}" if is_local else "nothing found", err=True)


async def _named_rows(s: Session, resource: Resource, names: Sequence[str], query: Query, failures: Failures) -> Table:
    result = Table([], [], [])
    for name in names:
        try:
            raw = await s.client.table(resource, s.namespace_for(resource), name=name)
        except NotFound as e:
            if not query.ignore_not_found:
                failures.add(e)
            continue
        failures.succeeded()
        _extend(result, as_table(raw))
    return result


async def _table(s: Session, resource: Resource, query: Query) -> tuple[Table, str]:
    """All rows, and the version of the list they are from."""
    result = Table([], [], [])
    pages = await _pages(s.client.table, _token, s, resource, query)
    for raw in pages:
        _extend(result, as_table(raw))
    return result, str((pages[-1].get("metadata") or {}).get("resourceVersion") or "")


def _token(raw: Raw) -> str:
    return str((raw.get("metadata") or {}).get("continue") or "")


def _extend(result: Table, page: Table) -> None:
    result.columns = page.columns or result.columns
    result.rows += page.rows
    result.metadata += page.metadata or [{} for _ in page.rows]


# --------------------------------------------------------------------------------------------------------------- objects


async def read_objects(s: Session, resource: Resource, query: Query) -> tuple[list[Raw], str]:
    """All objects, and the version of the list they are from."""
    pages = await _pages(s.client.list, lambda page: page.continue_token, s, resource, query)
    return [item for page in pages for item in page.items], pages[-1].resource_version


async def _pages(
    read: Callable[..., Awaitable[P]], token_of: Callable[[P], str], s: Session, resource: Resource, query: Query
) -> list[P]:
    """Every page of one snapshot, at least one; in one piece when the snapshot expires on the way."""
    pages: list[P] = []
    token, limit = "", query.chunk_size
    while True:
        try:
            page = await read(
                resource,
                s.namespace_for(resource, query.all_namespaces),
                label_selector=query.label_selector,
                field_selector=query.field_selector,
                limit=limit,
                continue_token=token,
            )
        except Expired:
            if not token:
                raise
            pages, token, limit = [], "", 0
            continue
        pages.append(page)
        token = token_of(page)
        if not token:
            return pages


async def print_data(s: Session, wanted: Wanted, query: Query, failures: Failures) -> None:
    """JSON, YAML or names of everything that was asked for, in one document."""
    found: list[tuple[Resource, Raw]] = []
    for resource, names in wanted:
        if not names:
            found += [(resource, item) for item in (await read_objects(s, resource, query))[0]]
        for name in names:
            try:
                found.append((resource, await s.client.get(resource, name, s.namespace_for(resource))))
            except NotFound as e:
                if not query.ignore_not_found:
                    failures.add(e)
                continue
            failures.succeeded()
    is_single = len(wanted) == 1 and len(wanted[0][1]) == 1
    if query.output == "name":
        if found:
            emit("\n".join(qualified_name(resource, name_of(item)) for resource, item in found))
    elif found or not is_single:
        print_objects([item for _, item in found], query.output, single=is_single, show_managed=query.show_managed)


# ----------------------------------------------------------------------------------------------------------------- watch


class Follower:
    """Prints a kind's objects, then every change, until interrupted.

    Goes on from the last version it saw when the connection ends; after an expiry it lists again and prints what it has not
    shown yet.
    """

    def __init__(self, s: Session, resource: Resource, name: str, query: Query) -> None:
        self._session = s
        self._resource = resource
        self._query = msgspec.structs.replace(query, field_selector=f"metadata.name={name}") if name else query
        self._layout = query.layout(resource)
        self._version = ""
        self._shown: dict[str, str] = {}

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                if not self._version:
                    await self._list()
                async with aclosing(self._changes()) as changes:
                    async for event in changes:
                        failures = 0
                        self._print(event)
            except Expired:
                self._version = ""
            except (Unreachable, OutcomeUnknown):
                failures += 1
                if failures > RECONNECTS_MAX or not self._version:
                    raise
                await asyncio.sleep(RECONNECT_PAUSE_S)

    async def _list(self) -> None:
        if self._query.is_table:
            table, self._version = await _table(self._session, self._resource, self._query)
            fresh = [i for i, metadata in enumerate(table.metadata) if self._is_news(metadata)]
            table.rows = [table.rows[i] for i in fresh]
            table.metadata = [table.metadata[i] for i in fresh]
            self._emit_table(table)
        else:
            items, self._version = await read_objects(self._session, self._resource, self._query)
            for item in items:
                if self._is_news(item.get("metadata") or {}):
                    self._emit_object(item)

    def _changes(self) -> AsyncGenerator[WatchEvent]:
        watch = self._session.client.watch_tables if self._query.is_table else self._session.client.watch
        changes = watch(
            self._resource,
            self._session.namespace_for(self._resource, self._query.all_namespaces),
            label_selector=self._query.label_selector,
            field_selector=self._query.field_selector,
            resource_version=self._version,
        )
        assert isinstance(changes, AsyncGenerator)
        return changes

    def _print(self, event: WatchEvent) -> None:
        if event.type is EventType.BOOKMARK:
            self._version = event.resource_version
            return
        is_table = event.object.get("kind") == "Table"
        if not is_table and not self._query.is_table:
            self._version = resource_version_of(event.object) or self._version
            self._emit_object(event.object)
            return
        table = as_table(event.object)
        for metadata in table.metadata:
            self._version = str(metadata.get("resourceVersion") or self._version)
            self._is_news(metadata)
        self._emit_table(table)

    def _is_news(self, metadata: Raw) -> bool:
        """Whether this version of the object was not printed yet. Beyond a bound it is forgotten, and printed again."""
        if len(self._shown) > SEEN_MAX:
            self._shown.clear()
        uid, version = str(metadata.get("uid", "")), str(metadata.get("resourceVersion", ""))
        is_news = not version or self._shown.get(uid) != version
        self._shown[uid] = version
        return is_news

    def _emit_table(self, table: Table) -> None:
        if table.rows:
            emit("\n".join(self._layout.lines(table)))
            sys.stdout.flush()

    def _emit_object(self, obj: Raw) -> None:
        shown = obj if self._query.show_managed else without_managed_fields(obj)
        if self._query.output == "name":
            emit(qualified_name(self._resource, name_of(obj)))
        else:
            emit(("---\n" if self._query.output == "yaml" else "") + render_value(shown, self._query.output))
        sys.stdout.flush()
