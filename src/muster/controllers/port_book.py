"""Who in a party has which port, for the controllers that give out ports: tasks and deployments, each with a book of its own.

A number is found in three places, and is free only when it is in none of them:

- the caches of KusciaTasks and KusciaDeployments, by `PORT_INDEX`, so that asking about one number looks at no other;
- the ledger (`task_ports.PortLedger`) of what this process has given out and the caches do not show yet, one for all books of
  the process;
- what the store held when this process became leader, for each kind until its cache has come as far: the caches of a new leader
  may lag behind what the last one gave out.

Concurrency: one event loop. `is_taken` and `note` are plain calls, so that numbers are given out one plan after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from muster.controllers.kuscia_task_end import RELEASED
from muster.controllers.runtime import Caches, Context, Watch
from muster.controllers.task_ports import PortLedger, deployment_ports, port_key, port_keys
from muster.objects.kinds.kuscia_base import GROUP, TASK_ENDED
from muster.objects.kinds.kuscia_tasks import KusciaTask, PartyAllocatedPorts
from muster.objects.meta import uid_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import Raw
from muster.objects.view import view_of
from muster.store.cache import Cached, ObjectKey
from muster.store.informer import is_newer

PORT_INDEX: Final = "ports"
_PAGE_LEN: Final = 500


def ports_of_task(task: Cached) -> Iterable[str]:
    """For `PORT_INDEX`."""
    return tuple(_task_ports(task.view(KusciaTask)))


def ports_of_deployment(deployment: Cached) -> Iterable[str]:
    """For `PORT_INDEX`."""
    return tuple(port_keys(deployment_ports(deployment.raw)))


def _task_ports(task: KusciaTask) -> Iterable[str]:
    """A task that has ended keeps its numbers until what still ran of it is gone."""
    status = task.status
    if status.phase in TASK_ENDED:
        created = next((one for one in status.conditions if one.type == "ResourceCreated"), None)
        if created is None or created.reason == RELEASED:
            return ()
    return port_keys(status.allocated_ports)


def _stored_ports(kind: str, raw: Raw) -> Iterable[str]:
    if kind == "KusciaDeployment":
        return port_keys(deployment_ports(raw))
    try:
        return _task_ports(view_of(KusciaTask, raw))
    except msgspec.ValidationError:
        return ()  # the informer says so


class _AtStart(msgspec.Struct, frozen=True):
    """Of one kind, what the store held when the term began: its version, and who (uid) had which number (`port_key`)."""

    version: str
    holders: dict[str, str]


class PortBook:
    """`tasks` and `deployments` are the controller's own watches; both have the index `PORT_INDEX`."""

    def __init__(self, ledger: PortLedger, tasks: Watch, deployments: Watch) -> None:
        self._ledger = ledger
        self._watches = (tasks, deployments)
        self._uids: dict[ObjectKey, str] = {}
        """Of objects that have something in the ledger."""
        self._at_start: dict[str, _AtStart] = {}
        """By kind; of those whose cache has not come as far yet."""
        self._term: Context | None = None
        self._reading: asyncio.Lock | None = None

    async def begin(self, context: Context) -> None:
        """Call this before anything else; once in a term it reads from the store who has what."""
        if self._term is context:
            return
        if self._reading is None:
            self._reading = asyncio.Lock()
        async with self._reading:
            if self._term is context:
                return
            for uid in self._uids.values():
                self._ledger.drop(uid)
            self._uids.clear()
            self._at_start = {watch.kind: await _read(watch.kind, context) for watch in self._watches}
            self._term = context

    def is_taken(self, domain_id: str, number: int, by_others_than: str, caches: Caches) -> bool:
        """Whether anybody but the object with that uid has the number."""
        if self._ledger.is_taken(domain_id, number, by_others_than):
            return True
        key = port_key(domain_id, number)
        for watch in self._watches:
            if any(one.uid != by_others_than for one in caches[watch].by_index(PORT_INDEX, key)):
                return True
            if self._was_taken(watch, key, by_others_than, caches):
                return True
        return False

    def _was_taken(self, watch: Watch, key: str, by_others_than: str, caches: Caches) -> bool:
        """Whether somebody had it when the term began whom the cache does not show yet."""
        known = self._at_start.get(watch.kind)
        holder = known.holders.get(key) if known is not None else None
        if known is None or holder is None or holder == by_others_than:
            return False
        if is_newer(known.version, caches.version(watch)):
            return True
        del self._at_start[watch.kind]  # the cache shows all that there was
        return False

    def note(self, obj: Cached, allocated: Sequence[PartyAllocatedPorts] | None, *, is_shown: bool) -> None:
        """After each plan. `allocated` is about to be written; `is_shown`: the cache has the numbers, or there are none."""
        if allocated is not None:
            self._ledger.give(obj.uid, allocated)
            self._uids[obj.key] = obj.uid
        elif is_shown:
            self._ledger.drop(obj.uid)
            self._uids.pop(obj.key, None)

    def forget(self, key: ObjectKey) -> None:
        """It is gone."""
        uid = self._uids.pop(key, "")
        if uid:
            self._ledger.drop(uid)


async def _read(kind: str, context: Context) -> _AtStart:
    resource, token = await context.store.resource(GROUP, kind), ""
    holders: dict[str, str] = {}
    while True:
        page = await context.store.list(resource, NAMESPACE_CROSS_DOMAIN, limit=_PAGE_LEN, continue_token=token)
        version = page.resource_version
        for raw in page.items:
            holders.update(dict.fromkeys(_stored_ports(kind, raw), uid_of(raw)))
        token = page.continue_token
        if not token:
            return _AtStart(version, holders)
