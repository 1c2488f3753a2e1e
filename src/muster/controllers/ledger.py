"""ledger: notes what every user, group and queue has used, for good, and shows it on them.

It follows pods of users and queues. Each such pod carries a finalizer from when it is made (the server puts it on; elsewhere
this controller does as soon as it sees the pod), so that it can't vanish unnoted. When its run is over:

    1. the run is written on a new page (UsageRecord), together with others that ended meanwhile;
    2. the pod is marked as accounted and let go.

A crash between any two writes is harmless: before 1 the pod is still there to be noted; after 1 the page says that it was, and
2 is done again. Pages that are a day old are folded into sums (`ledger_pages`). From pages and running pods follow the status
of Users, UserGroups and Queues (`ledger_status`), warnings about budgets, and who may start nothing new: the scheduler reads
`status.standing`.

Concurrency: one loop, one task. A new leader first catches up with what the last one wrote. Writes that fail are tried again;
what they were about stays in `Books` until they succeed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence, Sized
from typing import Final

import msgspec
from prometheus_client import Counter, Gauge

from muster.controllers.actions import Create, Delete, Emit, Executor, Patch, PatchStatus, Target, Together
from muster.controllers.ledger_books import Account, Books
from muster.controllers.ledger_informers import ACCOUNTS, GROUP, Informers, open_informers
from muster.controllers.ledger_pages import FOLD_PAGES_MIN, runs_page
from muster.controllers.ledger_runs import PodRun, RunPod, record_of
from muster.controllers.ledger_status import Look, look
from muster.controllers.scheduler_feed import catch_up
from muster.controllers.work_sizes import WorkReader, submitted_work, work_key
from muster.engine.facts import PolicyFacts
from muster.objects.kinds.muster_usage import RUNS_MAX, UsageRecord
from muster.objects.labels import Muster
from muster.objects.meta import generation_of, name_of, uid_of
from muster.objects.reasons import Reason
from muster.objects.status import AlreadyExists, ApiError, Conflict, Raw
from muster.objects.time import Clock
from muster.objects.view import merge_patch, view_of
from muster.quota.limits import NodeKey, NodeKind
from muster.store.backoff import Backoff
from muster.store.cache import Cached, ObjectKey
from muster.store.contract import Store
from muster.store.events import EventRecorder
from muster.store.hub import InformerHub
from muster.store.informer import Change, ChangeType, Informer
from muster.store.leases import Fence

log = logging.getLogger(__name__)

NOTED = Counter("muster_ledger_runs_noted", "Runs written on a page of the ledger.")
PAGES = Gauge("muster_ledger_pages", "Pages of the ledger (UsageRecords).")
PENDING = Gauge("muster_ledger_runs_pending", "Runs that are over and not on a page yet.")
STATUSES = Counter("muster_ledger_statuses_written", "Writes of status.usage and status.standing.", ["kind"])

BATCH_S: Final = 0.2
"""How long to wait for more once something has changed: runs that end together are noted together."""
PATCHES_MAX: Final = 256
"""Pods patched in one go; then the rest of the work has its turn."""
FOLD_EVERY_MS: Final = 60_000
_BACKOFF: Final = Backoff(base_s=0.2, max_s=30.0)
_KEY: Final = ObjectKey("", "ledger")


class LedgerKeeper:
    """See the module."""

    name = "ledger"

    def runner(self, hub: InformerHub, *, clock: Clock, recorder: EventRecorder | None = None) -> LedgerRunner:
        return LedgerRunner(hub, clock=clock, recorder=recorder)


class LedgerRunner:
    def __init__(self, hub: InformerHub, *, clock: Clock, recorder: EventRecorder | None = None) -> None:
        self.name = LedgerKeeper.name
        self.state = "not started"
        self.failing: dict[ObjectKey, str] = {}
        self.term: _Term | None = None
        self._hub = hub
        self._clock = clock
        self._recorder = recorder
        self._has_run = False

    @property
    def queue(self) -> Sized | None:
        return self.term.books.ended if self.term is not None else None

    @property
    def is_idle(self) -> bool:
        return self.state == "running" and self.term is not None and self.term.is_idle

    async def prepare(self) -> Informers:
        return await open_informers(self._hub, self._waits)

    def _waits(self, why: str) -> None:
        self.state = why

    async def run(self, store: Store, fence: Fence | None = None) -> None:
        informers = await self.prepare()
        self.state = "syncing"
        for informer in informers.all():
            await informer.wait_synced()
        if fence is not None or self._has_run:
            # What the last leader noted must show before anything is noted again.
            self.state = "catching up"
            await catch_up(store, [informers.pages, informers.pods])
        self._has_run = True
        self.term = _Term(self, store, informers, self._clock, Executor(store, self.name, self._recorder))
        try:
            await self.term.run()
        finally:
            self.state = "stopped"


class _Term:
    """One term: from filled caches until it is cancelled."""

    def __init__(self, runner: LedgerRunner, store: Store, informers: Informers, clock: Clock, executor: Executor) -> None:
        self.books = Books()
        self._runner = runner
        self._store = store
        self._informers = informers
        self._clock = clock
        self._executor = executor
        self._changed = asyncio.Event()
        self._written_ms: dict[NodeKey, int] = {}
        self._looks: dict[NodeKey, int] = {}
        self._half_lives: dict[str, int] = {}
        """Of policies that go by fair share."""
        self._is_busy = False
        self._fold_ms = 0
        self._works = WorkReader(self._image)

    @property
    def is_idle(self) -> bool:
        books = self.books
        is_quiet = not self._is_busy and not self._changed.is_set()
        return is_quiet and not (books.ended or books.settled or books.unprotected or books.touched)

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)

    async def run(self) -> None:
        with contextlib.ExitStack() as handlers:
            for informer, handler in self._handlers():
                handlers.callback(informer.add_handler(self._guarded(handler)))
            self.books.loaded(self._now_ms())
            self._runner.state = "running"
            self._changed.set()
            attempt = 0
            while True:
                await self._wait()
                self._is_busy = True
                try:
                    await self._round()
                except ApiError as error:
                    self._runner.failing[_KEY] = str(error)
                    log.info("the ledger tries again: %s", error)
                    self._changed.set()
                    await asyncio.sleep(_BACKOFF.delay_s(attempt, self._runner.name))
                    attempt += 1
                else:
                    self._runner.failing.clear()
                    attempt = 0
                finally:
                    self._is_busy = False

    async def _wait(self) -> None:
        """Until something changed, and a moment longer for more of it; or until it is time to look at somebody again."""
        next_ms = min(self._looks.values(), default=None)
        timeout_s = None if next_ms is None else max(next_ms / 1000 - self._clock(), 0.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
                await asyncio.sleep(BATCH_S)
        self._changed.clear()

    # -- what is seen --------------------------------------------------------------------------------------------------------

    def _handlers(self) -> list[tuple[Informer, Callable[[Change], None]]]:
        found: list[tuple[Informer, Callable[[Change], None]]] = []
        if self._informers.policies is not None:
            found.append((self._informers.policies, self._on_policy))
        for kind, informer in self._informers.accounts.items():
            found.append((informer, lambda change, kind=kind: self._on_account(kind, change)))  # type: ignore[misc]
        found.append((self._informers.pages, self._on_page))
        for name, informer in self._informers.works.items():
            found.append((informer, lambda change, name=name: self._on_work(name, change)))  # type: ignore[misc]
        found.append((self._informers.pods, self._on_pod))
        return found

    def _guarded(self, handler: Callable[[Change], None]) -> Callable[[Change], None]:
        def handle(change: Change) -> None:
            if change.type is not ChangeType.RESYNCED:
                handler(change)
                self._changed.set()

        return handle

    def _on_account(self, kind: NodeKind, change: Change) -> None:
        name = change.newest.key.name
        if change.new is None:
            self.books.drop_account((kind, name))
            self._looks.pop((kind, name), None)
            self._written_ms.pop((kind, name), None)
            return
        try:
            raw = change.new.raw
            view = view_of(ACCOUNTS[kind], raw)
        except msgspec.ValidationError as error:
            log.warning("%s %s can't be read, and counts as it was before: %s", kind, name, error)
            return
        self.books.put_account(Account(view, name, uid_of(raw), generation_of(raw)))

    def _on_policy(self, change: Change) -> None:
        name, policy = change.newest.key.name, change.new.view(PolicyFacts) if change.new is not None else None
        if policy is not None and any(factor.source == "FairShare" for factor in policy.spec.factors):
            self._half_lives[name] = policy.spec.fair_share.half_life_seconds
        else:
            self._half_lives.pop(name, None)
        self.books.set_half_lives(set(self._half_lives.values()))

    def _on_page(self, change: Change) -> None:
        name = change.newest.key.name
        if change.new is None:
            self.books.drop_page(name)
            return
        try:
            self.books.put_page(name, view_of(UsageRecord, change.new.raw))
        except msgspec.ValidationError as error:
            log.error("UsageRecord %s can't be read, and does not count: %s", name, error)

    def _on_work(self, kind: str, change: Change) -> None:
        key = work_key(kind, *change.newest.key)
        work = self._works.read(kind, change.new.raw) if change.new is not None else None
        if work is None:
            self.books.drop_work(key)
            self._works.forget(key)
        else:
            self.books.put_work(work)

    def _image(self, name: str) -> Raw | None:
        found = self._informers.images.cache.get(ObjectKey("", name)) if self._informers.images is not None else None
        return None if found is None else found.raw

    def _on_pod(self, change: Change) -> None:
        old, new = change.old, change.new
        if old is not None and (new is None or new.uid != old.uid):
            self.books.drop_pod(old.uid, self._now_ms())
        if new is not None:
            self.books.put_pod(new.view(RunPod), new.resource_version, self._now_ms())
        self._on_plain_pod(change.newest, is_gone=new is None)

    def _on_plain_pod(self, pod: Cached, *, is_gone: bool) -> None:
        """A pod that nobody made but a user is a submission of its own."""
        if pod.controller_uid:
            return
        key = work_key("Pod", *pod.key)
        if is_gone:
            self.books.drop_work(key)
            return
        seen = self.books.pods.get(pod.uid)
        if seen is not None:
            work = submitted_work("Pod", pod.raw)
            if work is not None:
                self.books.put_work(work)

    # -- what is done --------------------------------------------------------------------------------------------------------

    async def _round(self) -> None:
        await self._protect()
        await self._note_ended()
        await self._let_go()
        await self._fold()
        await self._show()
        PENDING.set(len(self.books.ended))
        PAGES.set(len(self.books.pages.specs))

    async def _protect(self) -> None:
        """Finalizers for pods that came without."""
        chosen = list(self.books.unprotected.values())[:PATCHES_MAX]
        await self._patch_pods(
            [(pod, {"finalizers": [*pod.finalizers, Muster.LEDGER_FINALIZER]}) for pod in chosen], self.books.unprotected
        )

    async def _note_ended(self) -> None:
        """Write runs that are over on a new page; from then on they are noted for good."""
        pages = self._informers.pages.resource
        while self.books.ended:
            batch = list(self.books.ended.values())[:RUNS_MAX]
            page = runs_page([record_of(run, pod.key) for pod, run in batch])
            try:
                stored = await self._store.create(pages, page)
            except AlreadyExists:
                # Written before, by somebody who could not tell; what it does not hold goes on the next page.
                stored = await self._store.get(pages, name_of(page))
            before = len(self.books.ended)
            self.books.put_page(name_of(stored), view_of(UsageRecord, stored))
            NOTED.inc(before - len(self.books.ended))

    async def _let_go(self) -> None:
        """Mark pods whose run is noted, so that they are never asked about again, and take the finalizer away."""
        chosen = list(self.books.settled.values())[:PATCHES_MAX]
        patches: list[tuple[PodRun, Raw]] = []
        for pod in chosen:
            left = [one for one in pod.finalizers if one != Muster.LEDGER_FINALIZER]
            patches.append((pod, {"annotations": {Muster.ACCOUNTED: "true"}, "finalizers": left}))
        await self._patch_pods(patches, self.books.settled)

    async def _patch_pods(self, patches: Sequence[tuple[PodRun, Raw]], book: dict[str, PodRun]) -> None:
        """Each on the version that was seen: one that has moved is seen again, and comes again."""
        if not patches:
            return
        actions = [
            Patch(Target("", "Pod", pod.name, pod.namespace, pod.uid, pod.version), {"metadata": meta}) for pod, meta in patches
        ]
        for pod, _ in patches:
            # Whatever becomes of it, the pod's next version says whether it is still to be done.
            book.pop(pod.uid, None)
        try:
            await self._executor.apply([Together(tuple(actions))])
        except ApiError as error:
            for pod, _ in patches:
                now = self.books.pods.get(pod.uid)
                if now is not None and now.version == pod.version:
                    book[pod.uid] = now
            if not isinstance(error, Conflict):
                raise
        if book:
            self._changed.set()

    async def _fold(self) -> None:
        """Now and then, when there are many pages, and at once when a fold was begun and not finished."""
        now_ms = self._now_ms()
        pages = self.books.pages
        if len(pages.specs) >= FOLD_PAGES_MIN and now_ms >= self._fold_ms:
            self._fold_ms = now_ms + FOLD_EVERY_MS
            page = pages.fold(now_ms, {uid for uid, pod in self.books.pods.items() if not pod.is_noted})
            if page is not None:
                await self._executor.apply([Create(page)])
                self.books.put_page(name_of(page), view_of(UsageRecord, page))
        await self._executor.apply([Delete(Target(GROUP, "UsageRecord", name)) for name in sorted(pages.disposable)])

    async def _show(self) -> None:
        """Bring the status of everyone concerned up to date, as far as it is worth a write."""
        now_ms = self._now_ms()
        due = {key for key, at in self._looks.items() if at <= now_ms} | self.books.touched
        self.books.touched = set()
        looks: list[tuple[NodeKey, Look]] = []
        for key in sorted(due):
            self._looks.pop(key, None)
            if key in self.books.accounts:
                found = look(self.books, key, now_ms, self._written_ms.get(key))
                if found.again_ms is not None:
                    self._looks[key] = found.again_ms
                looks.append((key, found))
        try:
            for key, found in looks:
                await self._write(key, found, now_ms)
        except ApiError:
            self.books.touched.update(due)
            raise

    async def _write(self, key: NodeKey, found: Look, now_ms: int) -> None:
        if found.status is None:
            return
        account = self.books.accounts.get(key)
        if account is None:
            return
        cached = self._informers.accounts[key[0]].cache.get(ObjectKey("", key[1]))
        if cached is None or cached.uid != account.uid:
            return
        raw = cached.raw
        status = raw.get("status")
        patch = merge_patch(status if isinstance(status, dict) else {}, account.view.status, found.status)
        if not patch:
            return
        target = Target(GROUP, key[0], key[1], uid=account.uid)
        await self._executor.apply([PatchStatus(target, patch)])
        self._written_ms[key] = now_ms
        STATUSES.labels(key[0]).inc()
        for warned in found.warnings:
            reason = Reason.BUDGET_SPENT if warned.percent >= 100 else Reason.BUDGET_RUNNING_OUT
            await self._executor.apply([Emit(raw, "Warning", reason.value, warned.message)])
