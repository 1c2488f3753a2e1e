"""How a write comes about: its steps are taken inside a transaction, which is submitted in one turn of the loop.

The steps: `creates.py`, `updates.py`, `patches.py`, `deletes.py`, `binding.py`, `eviction.py`, `scale.py`.

On the loop. A step reads through its transaction, may wait for admission hooks, and puts its change down. `run` submits when
nothing that was read has changed meanwhile, nor the kinds that are served, and otherwise builds the transaction anew: so an
update that names a version fails with Conflict, and one that does not is applied to what is there now.

Invariant: no answer, good or bad, rests on something that is not on disk. A refusal that came from a pending write waits for
that write's end, and is thought over again when it failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from muster.objects.status import AlreadyExists, ApiError, BadRequest, ServiceUnavailable
from muster.store.embedded.admission import Accounts, Actor, Charge
from muster.store.embedded.core import Core, encoded
from muster.store.embedded.custom import CRD_ID
from muster.store.embedded.records import Record
from muster.store.embedded.registry import Registry
from muster.store.embedded.transaction import Result, Transaction
from muster.store.embedded.updates import Updates

Build = Callable[[Transaction], Awaitable[Sequence[Result]]]

_ATTEMPTS_MAX = 10


class Writes:
    def __init__(self, core: Core, registry: Registry, updates: Updates) -> None:
        self._core = core
        self._registry = registry
        self._updates = updates
        self._definitions = core.collection(CRD_ID)
        self.accounts: tuple[Accounts, ...] = ()
        """All are asked about every transaction."""

    async def run(self, build: Build, *, dry_run: bool = False, actor: Actor | None = None) -> list[Record]:
        """Build, submit, wait for the disk. One record per result, in the stored version."""
        core = self._core
        core.check_open()
        for _ in range(_ATTEMPTS_MAX):
            transaction, kinds = Transaction(core), self._registry.revision
            try:
                results = await build(transaction)
            except ApiError as error:
                if isinstance(error, AlreadyExists) and transaction.is_stale:
                    continue  # not when it was first looked for: an apply is merged with it, a generated name is drawn again
                if not await transaction.is_founded():
                    continue
                raise
            except RecursionError:
                raise BadRequest("the object is nested too deeply; flatten it") from None
            if transaction.is_stale or self._registry.revision != kinds:
                continue
            changes = transaction.changes
            charges: list[Charge] = []
            pending = self._definitions.pending
            if pending and not dry_run and any(("", one.collection.id) in pending for one in changes):
                await core.settle()  # what it has to look like is being changed: it is shaped by that then
                continue
            if changes:
                try:
                    charges = [one for accounts in self.accounts if (one := accounts.charge(changes, actor)) is not None]
                except ApiError:
                    if not await core.settle():
                        continue
                    raise
            if dry_run or not changes:
                if not await transaction.is_founded():
                    continue
                return [self._unstored(result) for result in results]
            for charge in charges:
                for resource, key, change in charge.notes:
                    self._updates.modify(transaction, resource, key, change)
            records, committed = core.submit(changes, [charge.staged for charge in charges])
            if committed.done():
                # Committed on the loop itself. A write is a place where others get to run, whichever way it is done.
                await asyncio.sleep(0)
            await committed
            by_change = dict(zip(map(id, changes), records, strict=True))
            return [_stored(result, by_change) for result in results]
        raise ServiceUnavailable(
            f"gave up after {_ATTEMPTS_MAX} attempts: the objects of this write change faster than its admission hooks answer; "
            "send it again",
            retry_after_s=1,
        )

    def _unstored(self, result: Result) -> Record:
        if result.record is not None:
            return result.record
        change = result.change
        assert change is not None
        record = encoded(change, 0)
        self._core.check_size(change.resource, record)
        return record


def _stored(result: Result, by_change: Mapping[int, Record]) -> Record:
    if result.change is not None:
        return by_change[id(result.change)]
    assert result.record is not None
    return result.record
