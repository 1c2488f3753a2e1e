"""Create: an object gets its name, its uid and its shape, and is put down unless there is one already.

Steps inside a transaction (`writes.py`); on the loop. Who applies what is not there yet creates it here too. Whether the name
is taken is looked at last of all, after hooks, so that of two who create it at once one is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.objects.names import Entropy, generated_name, random_uid
from muster.objects.resources import Resource
from muster.objects.status import AlreadyExists, BadRequest, Cause, MethodNotAllowed, Raw
from muster.objects.time import format_time
from muster.store.contract import EventType
from muster.store.embedded import rules
from muster.store.embedded.context import WriteContext
from muster.store.embedded.core import Core
from muster.store.embedded.records import Key
from muster.store.embedded.registry import Registry, Served
from muster.store.embedded.shaping import Shaper
from muster.store.embedded.transaction import Result, Transaction

_NAME_ATTEMPTS_MAX = 8


class Creates:
    def __init__(self, core: Core, registry: Registry, shaper: Shaper, entropy: Entropy) -> None:
        self._core = core
        self._registry = registry
        self._shaper = shaper
        self._entropy = entropy

    async def create(
        self, txn: Transaction, resource: Resource, obj: Mapping[str, Any], namespace: str | None, context: WriteContext
    ) -> Result:
        served = self._registry.find(resource)
        raw = rules.conform(resource, obj)
        key = self.new_key(txn, served, resource, raw, namespace)
        now_text = format_time(self._core.clock())
        # A node reports its state when it registers; everyone else's status comes later, through the subresource.
        drop_status = resource.has_status and not (resource.kind == "Node" and resource.group == "")
        if parts := rules.dropped(raw, drop_status=drop_status):
            self._shaper.check_dropped(served, resource, key[1], parts)
        raw = await self._shaped(served, resource, raw, context, now_text=now_text, drop_status=drop_status, is_sent=True)
        await self._shaper.pause(served, context)
        raw = self._shaper.track(served, resource, raw, None, context)
        await self._shaper.pause(served, context)
        return self._put_new(txn, served, resource, key, raw)

    async def create_applied(  # noqa: PLR0917 - the order of `create`
        self, txn: Transaction, served: Served, resource: Resource, raw: Raw, key: Key, context: WriteContext, *, now: float
    ) -> Result:
        """What an apply begins with, under a key of `new_key`. Its managed fields say already who owns what."""
        managed = raw["metadata"].get("managedFields")
        raw = await self._shaped(
            served, resource, raw, context, now_text=format_time(now), drop_status=resource.has_status, is_sent=False
        )
        if managed is not None:
            raw["metadata"]["managedFields"] = managed
        return self._put_new(txn, served, resource, key, raw)

    async def _shaped(
        self,
        served: Served,
        resource: Resource,
        raw: Raw,
        context: WriteContext,
        *,
        now_text: str,
        drop_status: bool,
        is_sent: bool,
    ) -> Raw:
        """The new object but for its managed fields, in the version that the kind is shaped as."""
        shaped = served.shaped_as(resource)
        if shaped is not resource:
            raw = served.as_stored(resource, raw)
        rules.stamp_new(resource, raw, uid=random_uid(self._entropy), now_text=now_text, drop_status=drop_status)
        raw = await self._shaper.shape(served, shaped, raw, None, context, asked=resource, is_sent=is_sent)
        return self._shaper.hooked(served, raw, None, context)

    def _put_new(self, txn: Transaction, served: Served, resource: Resource, key: Key, raw: Raw) -> Result:
        shaped = served.shaped_as(resource)
        if txn.read(served.collection, key) is not None:
            raise rules.refusal(AlreadyExists, shaped, key[1], f'{shaped.qualified} "{key[1]}" already exists')
        return txn.write(shaped, served.collection, EventType.ADDED, served.as_stored(shaped, raw), was=None)

    def new_key(self, txn: Transaction, served: Served, resource: Resource, raw: Raw, namespace: str | None) -> Key:
        if served.is_terminating:
            raise MethodNotAllowed(
                f"create not allowed while custom resource definition is terminating: {resource.qualified}",
                kind=resource.plural,
            )
        where = rules.check_namespace(resource, raw, namespace)
        name = self._new_name(txn, served, resource, raw, where)
        if where:
            namespaces = self._registry.find_kind("", "Namespace")
            if namespaces is not None:
                rules.check_content_allowed(resource, name, txn.read(namespaces.collection, ("", where)), where)
        return (where, name)

    def _new_name(self, txn: Transaction, served: Served, resource: Resource, raw: Raw, namespace: str) -> str:
        meta = raw["metadata"]
        name, prefix = meta.get("name"), meta.get("generateName")
        for field, value in (("name", name), ("generateName", prefix)):
            if value is not None and not isinstance(value, str):
                raise BadRequest(f"metadata.{field} must be a string, not {type(value).__name__}")
        if name:
            return str(name)
        if not prefix:
            cause = Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
            raise rules.invalid(resource, "", [cause])
        for _ in range(_NAME_ATTEMPTS_MAX):
            name = generated_name(prefix, self._entropy)
            if txn.read(served.collection, (namespace, name)) is None:
                meta["name"] = name
                return name
        message = (
            f'{resource.qualified} "{name}" already exists, the server was not able to generate a unique name for the object '
            f"from generateName {prefix!r}"
        )
        raise rules.refusal(AlreadyExists, resource, str(name), message)
