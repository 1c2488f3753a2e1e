"""Who writes, and who may have a say in it: the hooks between a request and the store.

A hook sees every write before it is stored: `mutate` may change the object, `validate` may only refuse it, by raising
ApiError. Both run on the loop and may wait; the store checks afterwards that the object did not change meanwhile and starts
over if it did, so a hook may be called more than once for one request and must not act on the world by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from muster.objects.resources import Resource
from muster.objects.status import Raw
from muster.store.embedded.records import Key

if TYPE_CHECKING:
    from muster.store.embedded.core import Change

AdmissionOperation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


class Actor(msgspec.Struct, frozen=True):
    """The authenticated author of a write."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


GARBAGE_COLLECTOR = Actor(
    user="system:serviceaccount:kube-system:generic-garbage-collector",
    groups=("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"),
)
NAMESPACE_CONTROLLER = Actor(
    user="system:serviceaccount:kube-system:namespace-controller",
    groups=("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"),
)


def _as_it_is(raw: Raw) -> Raw:
    return raw


class AdmissionRequest(msgspec.Struct, kw_only=True):
    """One write as hooks see it. `old` and `object` are for reading; `mutate` returns a new object instead."""

    operation: AdmissionOperation
    resource: Resource
    """The version that `old` and `object` are in."""
    namespace: str
    name: str
    old: Raw | None
    object: Raw | None
    subresource: str = ""
    actor: Actor | None = None
    """None for Muster itself, in the same process."""
    dry_run: bool = False
    warn: Callable[[str], None]
    """Say something to the client that is no refusal: it arrives as a Warning header."""
    refill: Callable[[Raw], Raw] = _as_it_is
    """What a changed object comes to: with defaults, and without changes where this write may make none. For hooks that show
    the result of one step to the next. Raises what the client is to hear."""
    asked: Resource | None = None
    """The version that the client has written in, where that is another."""
    is_judged: bool = False
    """Follows from a Binding, an Eviction or a Scale that a `BodyAdmission` was asked about."""


class Admission(Protocol):
    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        """The object to store instead, or None to leave it as it is. Not asked on DELETE and CONNECT."""
        ...

    async def validate(self, request: AdmissionRequest) -> None: ...


class BodyAdmission(Protocol):
    """Is asked about what clients send to a subresource that has a kind of its own: a Binding, an Eviction, a Scale.

    Hooks are not: they see the write that follows from it, on the object itself.
    """

    def concerns(self, operation: AdmissionOperation, resource: Resource, subresource: str) -> bool:
        """Whether `admit` has to be asked. At once, from memory."""
        ...

    async def admit(self, request: AdmissionRequest) -> Raw:
        """`request.object`, perhaps changed. Raises ApiError to refuse it."""
        ...


Note = tuple[Resource, Key, Callable[[Raw], Raw | None]]
"""An object, and what becomes of it; None to leave it as it is."""


class Charge(msgspec.Struct, frozen=True):
    """What follows from changes that were let pass."""

    staged: Callable[[], None]
    """Called when the changes have their versions, before anybody else runs. Must not raise."""
    notes: Sequence[Note] = ()
    """Changes of other objects that go to disk with them, past hooks and schemas."""


class Accounts(Protocol):
    """Knows what is there, writes in flight included, and refuses what would be too much, or somebody else's already.

    Asked about all changes of a transaction together, after hooks, and in the same turn of the loop in which they are
    submitted: between `charge` and `Charge.staged` nothing else changes, so two writes can't both take the last place.
    """

    def charge(self, changes: Sequence[Change], actor: Actor | None) -> Charge | None:
        """None where nothing counts. Raises ApiError to refuse all of them. What is tried only (dry run) is never staged.

        `actor` is whose write it is; None for Muster itself, in the same process.
        """
        ...

    def dropped(self, changed: Sequence[tuple[str, Key]]) -> None:
        """Everything in flight has failed: these objects (kind and key) are what they were before. Must not raise."""
        ...


class Admissions:
    """Several hooks as one, in order: each mutates what the one before it returned, then all validate the result."""

    def __init__(self, hooks: Sequence[Admission] = ()) -> None:
        self.hooks: list[Admission] = list(hooks)

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        changed: Raw | None = None
        for hook in self.hooks:
            result = await hook.mutate(request)
            if result is not None:
                changed = result
                request = msgspec.structs.replace(request, object=result)
        return changed

    async def validate(self, request: AdmissionRequest) -> None:
        for hook in self.hooks:
            await hook.validate(request)
