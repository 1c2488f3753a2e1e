"""What controllers do, as values: a pure `plan` returns a list of these, and `Executor.apply` carries them out.

Plans are made from caches that lag behind the store, and a controller may crash between any two writes and plan again. So
each action is safe to repeat, and finding its work already done is success:

| action | already done means | refused (Conflict) means |
|---|---|---|
| Create | it is there, with the same controller | it is there and belongs to somebody else |
| Patch, PatchStatus | it is gone, or replaced by a namesake (`uid`) | `resource_version` is set and has moved |
| Apply | no difference | another manager owns a field, and no `force` |
| Delete | it is gone, or replaced by a namesake (`uid`) | `resource_version` is set and has moved |
| Emit | | never: events are best effort |
| Expect | | it is not in the very state that was seen, or gone; it writes nothing |

Actions are carried out in order. The first that fails ends the list and its error is raised, so that the key is tried again
from the new state. `Together` is for writes that do not depend on each other.

Concurrency: `apply` runs in the caller's task on the store's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client import Counter

from muster.objects.meta import (
    controller_of,
    describe,
    finalizers_of,
    metadata_of,
    name_of,
    namespace_of,
    resource_version_of,
    uid_of,
)
from muster.objects.resources import Resource
from muster.objects.status import AlreadyExists, Conflict, Invalid, NotFound, Raw
from muster.store.contract import PatchType, Preconditions, Propagation, Store, WriteOptions
from muster.store.events import EventKind, EventRecorder

ACTIONS = Counter("muster_controller_actions", "Actions carried out.", ["controller", "action", "result"])

_TOGETHER_MAX = 32
"""Writes of one `Together` under way at once."""


class Target(msgspec.Struct, frozen=True):
    """An object to act on. With `uid`, only that very object; with `resource_version`, only in that very state."""

    group: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def target_of(raw: Mapping[str, Any], *, at_version: bool = False) -> Target:
    """The target that `raw` is; with `at_version`, only as long as nobody has changed it."""
    return Target(
        group=_group_of(raw),
        kind=str(raw.get("kind", "")),
        name=name_of(raw),
        namespace=namespace_of(raw),
        uid=uid_of(raw),
        resource_version=resource_version_of(raw) if at_version else "",
    )


def with_finalizer(raw: Mapping[str, Any], name: str) -> Patch:
    """Keep `raw` from going before `name` is taken away; only if nobody has changed it."""
    return Patch(target_of(raw, at_version=True), {"metadata": {"finalizers": [*finalizers_of(raw), name]}})


def without_finalizer(raw: Mapping[str, Any], name: str) -> Patch:
    """Let `raw` go, as far as `name` is concerned; only if nobody has changed it."""
    left = [one for one in finalizers_of(raw) if one != name]
    return Patch(target_of(raw, at_version=True), {"metadata": {"finalizers": left}})


class Create(msgspec.Struct, frozen=True):
    """`object` has apiVersion, kind, and a name that follows from its purpose: a second try must find the first one's work."""

    object: Raw


class Patch(msgspec.Struct, frozen=True):
    """A merge patch on everything but status. Members to take away are given as None."""

    target: Target
    patch: Raw


class PatchStatus(msgspec.Struct, frozen=True):
    """A merge patch on `status`, through the status subresource. Members to take away are given as None. An empty text is taken
    away as well: there are API servers that take it for a null, and refuse it."""

    target: Target
    status: Raw


class Apply(msgspec.Struct, frozen=True):
    """Server-side apply: this controller owns exactly the fields in `object`."""

    object: Raw
    force: bool = False


class Delete(msgspec.Struct, frozen=True):
    target: Target
    propagation: Propagation = "Background"
    grace_period_s: int | None = None


class Emit(msgspec.Struct, frozen=True):
    """Record an Event about `regarding`, an object or a reference to one."""

    regarding: Raw
    type: EventKind
    reason: str
    message: str


class Expect(msgspec.Struct, frozen=True):
    """Go on only if the object in the store, not in a cache, is `target` in its very state. A read, where a write would do."""

    target: Target


class Together(msgspec.Struct, frozen=True):
    """Carry these out at the same time. All are tried; then the first failure, in their order, is raised."""

    actions: tuple[Create | Patch | PatchStatus | Apply | Delete, ...]


Action = Create | Patch | PatchStatus | Apply | Delete | Emit | Expect | Together


class Executor:
    """Carries out the actions of one controller, which is also the field manager of what it writes."""

    def __init__(self, store: Store, controller: str, recorder: EventRecorder | None = None) -> None:
        self._store = store
        self._controller = controller
        self._recorder = recorder
        self._options = WriteOptions(field_manager=f"muster-{controller}")
        self._resources: dict[tuple[str, str], Resource] = {}
        self._counters: dict[tuple[str, str], Counter] = {}

    async def apply(self, actions: Iterable[Action]) -> None:
        """Raises ApiError of the first action that failed; those before it are done, those after it are not tried."""
        for action in actions:
            if isinstance(action, Together):
                await self._apply_together(action.actions)
            elif isinstance(action, Emit):
                if self._recorder is not None:
                    self._recorder.event(action.regarding, action.type, action.reason, action.message)
            elif isinstance(action, Expect):
                await self._expect(action.target)
            else:
                await self._apply_one(action)

    async def _apply_together(self, actions: Sequence[Create | Patch | PatchStatus | Apply | Delete]) -> None:
        room = asyncio.Semaphore(_TOGETHER_MAX)

        async def one(action: Create | Patch | PatchStatus | Apply | Delete) -> None:
            async with room:
                await self._apply_one(action)

        results = await asyncio.gather(*(one(action) for action in actions), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _apply_one(self, action: Create | Patch | PatchStatus | Apply | Delete) -> None:
        name = type(action).__name__
        try:
            did = await self._write(action)
        except Exception:
            self._count(name, "failed")
            raise
        self._count(name, "done" if did else "nothing to do")

    def _count(self, action: str, result: str) -> None:
        """Looking a counter up by its labels takes longer than counting."""
        counter = self._counters.get((action, result))
        if counter is None:
            counter = self._counters[action, result] = ACTIONS.labels(self._controller, action, result)
        counter.inc()

    async def _expect(self, target: Target) -> None:
        resource = await self._resource(target.group, target.kind)
        found = "gone"
        with contextlib.suppress(NotFound):
            live = await self._store.get(resource, target.name, target.namespace or None)
            if uid_of(live) == target.uid and resource_version_of(live) == target.resource_version:
                return
            found = f"at version {resource_version_of(live)}"
        raise Conflict(
            f"{target} was seen at version {target.resource_version} and is {found}; what was planned for it is planned anew",
            kind=resource.plural,
            group=resource.group,
            name=target.name,
        )

    async def _write(self, action: Create | Patch | PatchStatus | Apply | Delete) -> bool:
        """False when the work was done already."""
        match action:
            case Create(object=obj):
                return await self._create(obj)
            case Patch(target=target, patch=patch):
                return await self._patch(target, patch, "")
            case PatchStatus(target=target, status=status):
                return await self._patch(target, {"status": _without_empty(status)}, "status")
            case Apply(object=obj, force=force):
                resource = await self._resource(_group_of(obj), str(obj.get("kind", "")))
                options = msgspec.structs.replace(self._options, force=force)
                namespace = namespace_of(obj) or None
                await self._store.patch(resource, name_of(obj), obj, namespace, options, patch_type=PatchType.APPLY)
                return True
            case Delete():
                return await self._delete(action)

    async def _create(self, obj: Raw) -> bool:
        resource = await self._resource(_group_of(obj), str(obj.get("kind", "")))
        namespace = namespace_of(obj) or None
        try:
            await self._store.create(resource, obj, namespace, self._options)
            return True
        except AlreadyExists:
            if not name_of(obj):
                raise
            live = await self._store.get(resource, name_of(obj), namespace)
        wanted, found = controller_of(obj), controller_of(live)
        if (wanted or {}).get("uid") != (found or {}).get("uid"):
            owner = f"{found.get('kind')} {found.get('name')}" if found else "no controller"
            raise Conflict(
                f"{describe(obj)} exists and belongs to {owner}, so {self._controller} can't create it; delete or rename it",
                kind=resource.plural,
                group=resource.group,
                name=name_of(obj),
            )
        return False

    async def _patch(self, target: Target, patch: Raw, subresource: str) -> bool:
        resource = await self._resource(target.group, target.kind)
        body = _with_preconditions(patch, target)
        namespace = target.namespace or None
        try:
            await self._store.patch(resource, target.name, body, namespace, self._options, subresource=subresource)
            return True
        except NotFound:
            return False
        except (Conflict, Invalid):
            # The embedded store takes another uid for a conflict, kube-apiserver for an attempt to change it.
            if await self._is_replaced(resource, target):
                return False
            raise

    async def _delete(self, action: Delete) -> bool:
        target = action.target
        resource = await self._resource(target.group, target.kind)
        preconditions = Preconditions(uid=target.uid or None, resource_version=target.resource_version or None)
        try:
            await self._store.delete(
                resource,
                target.name,
                target.namespace or None,
                self._options,
                propagation=action.propagation,
                grace_period_s=action.grace_period_s,
                preconditions=preconditions if target.uid or target.resource_version else None,
            )
            return True
        except NotFound:
            return False
        except Conflict:
            if await self._is_replaced(resource, target):
                return False
            raise

    async def _is_replaced(self, resource: Resource, target: Target) -> bool:
        """Whether the object that was meant is gone, and a namesake perhaps in its place."""
        if not target.uid:
            return False
        try:
            live = await self._store.get(resource, target.name, target.namespace or None)
        except NotFound:
            return True
        return uid_of(live) != target.uid

    async def _resource(self, group: str, kind: str) -> Resource:
        resource = self._resources.get((group, kind))
        if resource is None:
            resource = self._resources[group, kind] = await self._store.resource(group, kind)
        return resource


def _group_of(raw: Mapping[str, Any]) -> str:
    api_version = str(raw.get("apiVersion", ""))
    return api_version.rpartition("/")[0]


def _without_empty(status: Raw) -> Raw:
    """What is in lists is left as it is: members of theirs may have to be there."""
    return {
        key: _without_empty(value) if isinstance(value, dict) else None if value == "" else value
        for key, value in status.items()
    }


def _with_preconditions(patch: Raw, target: Target) -> Raw:
    """A merge patch that names another uid or resourceVersion than the live object has is refused."""
    named = {k: v for k, v in (("uid", target.uid), ("resourceVersion", target.resource_version)) if v}
    return {**patch, "metadata": {**metadata_of(patch), **named}} if named else patch
