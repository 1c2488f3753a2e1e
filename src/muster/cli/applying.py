"""Bringing objects to the server as files say, and taking them away again: the work behind apply, delete and install.

Server-side apply does the merging; this decides where an object goes, in which order, and what to call the outcome. Runs on
the command's event loop, one object after another, so that what is printed is in the order of what happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

import msgspec

from muster.cli.errors import CliError, ExitCode
from muster.cli.files import Document
from muster.cli.output import qualified_name
from muster.cli.session import Session
from muster.client.errors import OutcomeUnknown
from muster.objects.meta import name_of, namespace_of, uid_of
from muster.objects.requests import EventType, Propagation, WriteOptions
from muster.objects.resources import Resource
from muster.objects.status import Conflict, Expired, NotFound, Raw

NEW_KIND_WAIT_S = 30.0
POLL_S = 0.2
Outcome = Literal["created", "configured", "unchanged"]

_FIRST = {("", "Namespace"): 0, ("apiextensions.k8s.io", "CustomResourceDefinition"): 0, ("", "ServiceAccount"): 1}
_LAST = 9


class Applied(msgspec.Struct, frozen=True):
    resource: Resource
    object: Raw
    outcome: Outcome

    @property
    def title(self) -> str:
        return qualified_name(self.resource, name_of(self.object))


def group_and_kind(obj: Mapping[str, Any]) -> tuple[str, str]:
    return str(obj.get("apiVersion", "")).rpartition("/")[0], str(obj.get("kind", ""))


def in_order(documents: Sequence[Document]) -> list[Document]:
    """What others live in or are made of comes first; apart from that the order of the files is kept."""
    return sorted(documents, key=lambda d: _FIRST.get(group_and_kind(d.object), _LAST))


def where_is(document: Document) -> str:
    """For messages: the file, the document, the object."""
    kind = document.object.get("kind")
    metadata = document.object["metadata"]
    return f"{document.where}: {kind} {metadata.get('name') or metadata.get('generateName') or '(no name)'}"


class Applier:
    """Applies documents one at a time, and waits for a kind whose CustomResourceDefinition it has just applied."""

    def __init__(self, s: Session, options: WriteOptions) -> None:
        self._session = s
        self._options = options
        self._new_kinds: set[tuple[str, str]] = set()

    async def apply(self, obj: Raw) -> Applied:
        resource = await self.resource_of(obj)
        name = name_of(obj)
        if not name:
            raise CliError("metadata.name: is missing; apply needs it to find the object again")
        namespace = target_namespace(self._session, resource, obj)
        before = await self._before(resource, name, namespace)
        wanted = _clean(obj, namespace)
        try:
            after = await self._session.client.apply(resource, wanted, namespace, self._options)
        except Conflict as e:
            raise _explained(e) from e
        if group_and_kind(obj) == ("apiextensions.k8s.io", "CustomResourceDefinition") and not self._options.dry_run:
            spec = obj.get("spec") or {}
            self._new_kinds.add((str(spec.get("group", "")), str((spec.get("names") or {}).get("kind", ""))))
        return Applied(resource, after, outcome_of(before, after, has_status="status" in obj))

    async def resource_of(self, obj: Raw) -> Resource:
        """The kind as the server has it, in the version that the object is written in."""
        api_version, (group, kind) = str(obj["apiVersion"]), group_and_kind(obj)
        deadline = asyncio.get_running_loop().time() + NEW_KIND_WAIT_S
        while True:
            for resource in await self._session.client.discovery.resources():
                if resource.kind == kind and resource.api_version == api_version:
                    return resource
            if asyncio.get_running_loop().time() > deadline or (group, kind) not in self._new_kinds:
                break
            await asyncio.sleep(POLL_S)
            self._session.client.discovery.invalidate()
        raise await self._unknown(api_version, group, kind)

    async def _unknown(self, api_version: str, group: str, kind: str) -> NotFound:
        same = sorted({r.api_version for r in await self._session.client.discovery.resources() if r.kind == kind})
        hint = f"it has this kind in {', '.join(same)}" if same else "is its CustomResourceDefinition installed?"
        return NotFound(f'the server has no kind "{kind}" in version "{api_version}"; {hint}', kind=kind, group=group)

    async def _before(self, resource: Resource, name: str, namespace: str | None) -> Raw | None:
        try:
            return await self._session.client.get(resource, name, namespace)
        except NotFound:
            return None


def target_namespace(s: Session, resource: Resource, obj: Raw) -> str | None:
    """Where a document's object belongs. A namespace that is given twice, differently, is a mistake."""
    named = namespace_of(obj)
    if not resource.namespaced:
        return None
    if named and s.is_namespace_given and named != s.namespace:
        raise CliError(
            f'metadata.namespace: is "{named}" while --namespace is "{s.namespace}"; leave one of them out, or make them agree',
            ExitCode.USAGE,
        )
    return named or s.namespace


def _clean(obj: Raw, namespace: str | None) -> Raw:
    """`obj` for an apply: its namespace filled in, and without the record of managers, which a request must not hold."""
    metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    if namespace:
        metadata["namespace"] = namespace
    return obj | {"metadata": metadata}


def outcome_of(before: Raw | None, after: Raw, *, has_status: bool = False) -> Outcome:
    """By content: a write that only renews the record of managers has changed nothing.

    Nor has one beside which a controller wrote a status that was no part of what is applied (`has_status` is False).
    """
    if before is None or uid_of(before) != uid_of(after):
        return "created"
    hidden = () if has_status else ("status",)
    return "unchanged" if _content(before, hidden) == _content(after, hidden) else "configured"


def _content(obj: Raw, hidden: Sequence[str]) -> Raw:
    bookkeeping = ("managedFields", "resourceVersion", "generation")
    metadata = {k: v for k, v in (obj.get("metadata") or {}).items() if k not in bookkeeping}
    return {k: v for k, v in obj.items() if k not in hidden} | {"metadata": metadata}


def _explained(error: Conflict) -> Conflict:
    fields = [c.field for c in error.causes if c.field]
    hint = " (take the fields over with --force-conflicts, or leave them out of the manifest)" if fields else ""
    return Conflict(f"{error.message}{hint}", kind=error.kind, group=error.group, name=error.name, causes=error.causes)


async def delete_object(
    s: Session,
    resource: Resource,
    name: str,
    namespace: str | None,
    options: WriteOptions,
    *,
    propagation: Propagation,
    grace_period_s: int | None = None,
) -> str:
    """Delete one object and return its uid, to wait for."""
    answer = await s.client.delete(resource, name, namespace, options, propagation=propagation, grace_period_s=grace_period_s)
    if answer.get("kind") == "Status":
        return str((answer.get("details") or {}).get("uid", ""))
    return uid_of(answer)


async def wait_gone(s: Session, resource: Resource, name: str, namespace: str | None, uid: str) -> None:
    """Return when the object is gone, or another of the same name has taken its place. Has no time limit of its own."""
    while True:
        try:
            page = await s.client.list(resource, namespace, field_selector=f"metadata.name={name}")
        except NotFound:
            return  # the kind itself is gone
        if not page.items or (uid and uid_of(page.items[0]) != uid):
            return
        changes = s.client.watch(
            resource,
            namespace,
            field_selector=f"metadata.name={name}",
            resource_version=page.resource_version,
            timeout_s=30.0,
        )
        try:
            async with aclosing(changes) as events:
                async for event in events:
                    if event.type is EventType.DELETED:
                        break
        except (Expired, OutcomeUnknown, NotFound):
            await asyncio.sleep(POLL_S)
