"""The ledger's picture of the world: objects in, what is to be noted out. No I/O; time is an argument.

`Books` follows pods (runs), UsageRecords (what is noted), Users, UserGroups, Queues (who they are for) and what was submitted.
It knows at any moment what every run, user, group and queue has used, and which pods' ends are not noted yet.

One caller at a time. Invariants: a pod that ran and is over is in `ended` until its run is on a page, and in `settled` from
then on until the pod itself says so or is gone; whatever is told again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

import msgspec

from muster.controllers.ledger_pages import Pages
from muster.controllers.ledger_runs import NO_DEFAULT, DefaultQueue, PodRun, RunPod, pod_run, run_of
from muster.controllers.work_sizes import Work
from muster.objects.kinds.muster import User, UserGroup
from muster.objects.kinds.muster_queues import FairShare, Queue
from muster.objects.kinds.muster_usage import UsageRecord
from muster.objects.labels import Muster
from muster.quota.fading import Faded
from muster.quota.ledger import Ledger, Row, Run, Totals, nodes_of
from muster.quota.limits import NodeKey
from muster.quota.periods import DAY_MS
from muster.quota.reading import node_of
from muster.quota.tree import QuotaTree

HALF_LIVES_MAX: Final = 16
"""So many are kept apart, the shortest first: as many as the scheduler keeps."""
DEFAULT_HALF_LIFE_S: Final = FairShare().half_life_seconds
"""While no policy asks for any, so that one that does later finds what was used before."""


class Account(msgspec.Struct, frozen=True):
    """A User, UserGroup or Queue as it is stored."""

    view: User | UserGroup | Queue
    name: str
    uid: str
    generation: int


class Books:
    """See the module."""

    def __init__(self) -> None:
        self.tree = QuotaTree()
        self.pages = Pages()
        self.ledger = Ledger()
        self.accounts: dict[NodeKey, Account] = {}
        self.pods: dict[str, PodRun] = {}
        self.ended: dict[str, tuple[PodRun, Run]] = {}
        """By uid: over, and not noted on any page yet."""
        self.settled: dict[str, PodRun] = {}
        """Noted, or without anything to note: the pod may go."""
        self.unprotected: dict[str, PodRun] = {}
        """Pods that could vanish before their end is noted."""
        self.touched: set[NodeKey] = set()
        """Whose use, limits or place may have changed since the last look."""
        self._units: dict[str, dict[str, PodRun]] = {}
        """What holds resources now, by unit and uid."""
        self._totals: dict[str, dict[str, int]] = {}
        self.half_lives: tuple[int, ...] = (DEFAULT_HALF_LIFE_S,)
        self._faded: dict[NodeKey, tuple[Faded, ...]] = {}
        """By half-life, in their order."""
        self._default = NO_DEFAULT
        self._defaults: set[str] = set()
        self._is_loading = True

    # -- objects -------------------------------------------------------------------------------------------------------------

    def put_account(self, account: Account) -> None:
        node = node_of(account.view, account.name)
        before = self.tree.find(*node.key)
        self.touched.update(self._around(node.key))
        self.accounts[node.key] = account
        self.touched.update(self.tree.put(node))
        self.touched.update(self._around(node.key))
        if isinstance(account.view, Queue):
            (self._defaults.add if account.view.spec.is_default else self._defaults.discard)(node.name)
            self._default = self._find_default()
        elif node.kind == "User" and (before is None or before.parent != node.parent):
            self._move_runs(node.name, node.parent)

    def drop_account(self, key: NodeKey) -> None:
        self.touched.update(self._around(key))
        self.accounts.pop(key, None)
        self.touched.update(self.tree.drop(*key))
        if key[0] == "Queue":
            self._defaults.discard(key[1])
            self._default = self._find_default()

    def _find_default(self) -> DefaultQueue:
        """Of several, the first by name."""
        if not self._defaults:
            return NO_DEFAULT
        name = min(self._defaults)
        return DefaultQueue(name, any(spec.limits.consumption for spec in self.tree.ancestors("Queue", name)))

    def filled_in(self, run: Run) -> Run:
        """A run that is known from elsewhere, for the group of its user and with its queue as they are now."""
        user = self.tree.find("User", run.user) if run.user else None
        queue = run.queue or (self._default.name if run.user or run.group else "")
        return msgspec.structs.replace(run, group=user.parent if user is not None else run.group, queue=queue)

    def _move_runs(self, user: str, group: str) -> None:
        """What runs counts for the group that its user is in now, from its beginning: it is noted so when it ends."""
        for run in self.ledger.running("User", user):
            if run.key not in self.ended and run.group != group:
                self._touch(run.user, run.group, run.queue)
                self.ledger.open(msgspec.structs.replace(run, group=group))

    def put_work(self, work: Work) -> None:
        """A job as it was submitted; it counts until it has ended."""
        if work.is_over or not work.is_accounted:
            self.drop_work(work.key)
            return
        self.touched.update(self.tree.submit(work.key, work.user, work.queue, work.request, group=work.group))
        self._touch(work.user, work.group, work.queue)

    def drop_work(self, key: str) -> None:
        self.touched.update(self.tree.withdraw(key))

    def put_pod(self, pod: RunPod, version: str, now_ms: int) -> None:
        seen = pod_run(pod, version, self._default)
        before = self.pods.get(pod.metadata.uid)
        if seen is None:
            if before is not None:  # whose it is does not change by taking a label away
                seen = _as_before(before, pod, version)
            else:
                return
        elif before is not None and before.start_ms is not None and before.work != seen.work:
            seen = msgspec.structs.replace(seen, work=before.work)
        if before is not None and before.unit != seen.unit:
            self._release(before)
        self.pods[seen.uid] = seen
        self._hold(seen)
        if seen.is_noted:
            self._settle(seen, is_done=True)
        elif seen.is_over:
            self._end(seen, now_ms)
        else:
            run = seen.run(self._group_of(seen), now_ms)
            if run is not None:
                self.ledger.open(run)
            if not seen.has_finalizer and not seen.is_deleting:
                self.unprotected[seen.uid] = seen
            else:
                self.unprotected.pop(seen.uid, None)

    def drop_pod(self, uid: str, now_ms: int) -> None:
        """The pod is gone from the store."""
        seen = self.pods.pop(uid, None)
        if seen is None:
            return
        self._release(seen)
        self.unprotected.pop(uid, None)
        self.settled.pop(uid, None)
        if not seen.is_noted and not self.ledger.has(uid):
            over = seen if seen.is_over else msgspec.structs.replace(seen, is_over=True)
            self._end(over, now_ms)
            self.settled.pop(uid, None)

    def _end(self, seen: PodRun, now_ms: int) -> None:
        """It holds nothing any more: note it, unless that was done or there is nothing to note."""
        self.unprotected.pop(seen.uid, None)
        run = seen.run(self._group_of(seen), now_ms)
        if run is None or self.ledger.has(seen.uid):
            self._settle(seen, is_done=False)
        elif seen.uid not in self.ended:  # the first word about an end stands
            self.ended[seen.uid] = (seen, run)
            # Until it is noted it counts as it was: up to its end.
            self.ledger.open(run)
            self._touch(run.user, run.group, run.queue)

    def _settle(self, seen: PodRun, *, is_done: bool) -> None:
        self.ended.pop(seen.uid, None)
        self.unprotected.pop(seen.uid, None)
        if is_done and not seen.has_finalizer:
            self.settled.pop(seen.uid, None)
        else:
            self.settled[seen.uid] = seen

    # -- pages ---------------------------------------------------------------------------------------------------------------

    def put_page(self, name: str, page: UsageRecord) -> None:
        if self.pages.specs.get(name) == page.spec:
            return
        is_known = set(page.spec.replaces) <= self.pages.specs.keys()
        self.pages.put(name, page)
        if self._is_loading:
            return
        if page.spec.sums and (not page.spec.replaces or not is_known):
            self.rebuild()  # somebody brought use of which nothing is known here
            return
        for record in page.spec.runs:
            self._note(run_of(record))
        if page.spec.replaces:
            there = [self.pages.specs[other] for other in page.spec.replaces if other in self.pages.specs]
            gone = {one.uid for spec in there for one in spec.runs}
            self.ledger.forget(gone - {one.uid for spec in self.pages.counting().values() for one in spec.runs})

    def drop_page(self, name: str) -> None:
        is_replaced = name in self.pages.replaced
        has_been = self.pages.specs.get(name)
        self.pages.drop(name)
        if has_been is not None and not is_replaced and not self._is_loading:
            self.rebuild()

    def _note(self, run: Run) -> None:
        if self.ledger.add(run):
            self._fade(run)
        self.ended.pop(run.key, None)
        if run.key in self.pods:
            seen = self.pods[run.key]
            self._settle(seen, is_done=seen.is_noted)
        self._touch(run.user, run.group, run.queue)

    def loaded(self, now_ms: int) -> None:
        """Everything that was there has been told."""
        self._is_loading = False
        self.rebuild()
        self.touched.update(self.accounts)

    def rebuild(self) -> None:
        """The ledger anew from its pages and from what runs."""
        going = self.ledger.open_runs()
        self.ledger = self.pages.ledger()
        self._faded.clear()
        for spec in self.pages.counting().values():
            for record in spec.runs:
                self._fade(run_of(record))
        for row, totals in self._sums():
            rates = {resource: amount / DAY_MS for resource, amount in totals.items()}
            day_s = row.day * DAY_MS / 1000
            for node in nodes_of(row.user, row.group, row.queue):
                for faded in self._faded_of(node):
                    faded.add(rates, day_s, day_s + DAY_MS / 1000)
        for run in going:
            self.ledger.open(run)
        for uid in [uid for uid in self.ended if self.ledger.has(uid)]:
            del self.ended[uid]
            if uid in self.pods:
                self._settle(self.pods[uid], is_done=self.pods[uid].is_noted)
        self.touched.update(self.accounts)

    def _sums(self) -> Iterable[tuple[Row, Totals]]:
        for name, spec in self.pages.counting().items():
            yield from self.pages.sums_of(name, spec)

    # -- fading --------------------------------------------------------------------------------------------------------------

    def set_half_lives(self, half_lives_s: Set[int]) -> None:
        """Those of all policies that go by fair share."""
        wanted = tuple(sorted(half_lives_s))[:HALF_LIVES_MAX] or (DEFAULT_HALF_LIFE_S,)
        if wanted != self.half_lives:
            self.half_lives = wanted
            if not self._is_loading:
                self.rebuild()

    def _faded_of(self, node: NodeKey) -> tuple[Faded, ...]:
        found = self._faded.get(node)
        if found is None:
            found = self._faded[node] = tuple(Faded(half_life_s) for half_life_s in self.half_lives)
        return found

    def _fade(self, run: Run) -> None:
        assert run.end_ms is not None
        for node in nodes_of(run.user, run.group, run.queue):
            for faded in self._faded_of(node):
                faded.add_run(run, run.end_ms)

    def faded(self, key: NodeKey, now_ms: int) -> dict[int, dict[str, float]]:
        """By half-life: faded use of the node and all below it, in resource-seconds."""
        found: dict[int, dict[str, float]] = {half_life_s: {} for half_life_s in self.half_lives}
        for name in self.names_below(key):
            running = self.ledger.running(key[0], name)
            for sums, faded in zip(found.values(), self._faded_of((key[0], name)), strict=True):
                for resource, amount in faded.at(now_ms / 1000, running).items():
                    sums[resource] = sums.get(resource, 0.0) + amount
        return found

    # -- who is concerned ----------------------------------------------------------------------------------------------------

    def names_below(self, key: NodeKey) -> list[str]:
        """The node and all of its kind below it: whose runs count for it."""
        if key[0] == "User":
            return [key[1]]
        found, waiting = [], [key]
        while waiting:
            at = waiting.pop()
            found.append(at[1])
            waiting += [child.key for child in self.tree.children(*at) if child.kind == key[0]]
        return sorted(found)

    def _group_of(self, seen: PodRun) -> str:
        """Of its user, whatever the work says: nobody gets away from a group's limits by naming another. Of a user who is not
        known any more, the last that was known."""
        spec = self.tree.find("User", seen.work.user) if seen.work.user else None
        if spec is not None:
            return spec.parent
        known = self.ledger.going(seen.uid)
        return known.group if known is not None else seen.work.group

    def _around(self, key: NodeKey) -> set[NodeKey]:
        return {spec.key for spec in self.tree.ancestors(*key)} | {key}

    def _touch(self, user: str, group: str, queue: str) -> None:
        for key in nodes_of(user, group, queue):
            if key[1]:
                self.touched |= self._around(key)

    # -- what is held --------------------------------------------------------------------------------------------------------

    def _hold(self, seen: PodRun) -> None:
        """Count what a pod on a node holds, for its unit."""
        if not seen.node or seen.is_over:
            self._release(seen)
            return
        pods = self._units.setdefault(seen.unit, {})
        before = pods.get(seen.uid)
        if before is not None and before.amounts == seen.amounts and before.work == seen.work:
            pods[seen.uid] = seen
            return
        totals = self._totals.setdefault(seen.unit, {})
        if before is not None:
            _add(totals, before.amounts, -1)
        pods[seen.uid] = seen
        _add(totals, seen.amounts, 1)
        work = seen.work
        self.touched.update(self.tree.start(seen.unit, work.user, work.queue, dict(totals), group=work.group))
        self._touch(work.user, work.group, work.queue)

    def _release(self, seen: PodRun) -> None:
        pods = self._units.get(seen.unit)
        before = pods.pop(seen.uid, None) if pods is not None else None
        if pods is None or before is None:
            return
        totals = self._totals[seen.unit]
        _add(totals, before.amounts, -1)
        if pods:
            work = before.work
            self.touched.update(self.tree.start(seen.unit, work.user, work.queue, dict(totals), group=work.group))
        else:
            del self._units[seen.unit], self._totals[seen.unit]
            self.touched.update(self.tree.stop(seen.unit))


def _as_before(before: PodRun, pod: RunPod, version: str) -> PodRun:
    """The pod's present state, for whom it was first seen: whoever takes a label away does not get away from the ledger."""
    labelled = msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, labels={**pod.metadata.labels, Muster.QUEUE: before.work.queue or "-"}),
    )
    seen = pod_run(labelled, version)
    assert seen is not None
    return msgspec.structs.replace(seen, work=before.work)


def _add(totals: dict[str, int], amounts: dict[str, int], sign: int) -> None:
    for name, amount in amounts.items():
        totals[name] = totals.get(name, 0) + sign * amount
