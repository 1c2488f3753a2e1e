"""From the loop to the disk and back: units of writes are gathered, committed in batches, and reported in order.

A unit is what must be on disk together: one write, or a transaction. While one batch is being committed the next gathers,
so a slow disk makes larger batches (group commit) and nobody waits for more than two flushes. Where several write at a time and
the loop has little time to spare, a batch also begins some milliseconds after the one before it at the earliest; who writes
alone never waits for company.

Concurrency: `submit`, `close` and the two callbacks run on the loop. With `ThreadCommitter` one thread of its own talks to
the database; at most one batch is with it at any time, so a failure finds every later unit still on the loop.
`InlineCommitter` does the same on the loop itself, at once: for simulations, where threads would make runs differ.

Housekeeping is done in bounded slices while nobody writes, and in small pieces in the pause that follows a batch of several
writers on a quick disk. Only where that is not enough does the next batch wait for it, for one slice at most. When nobody has
written for a while, the write-ahead log is emptied. After a failure for want of room the thread tries now and then whether
there is room again, so that readiness recovers without anyone's write.

Invariants: units are reported in the order they were submitted; after a failure everything submitted before it was reported
has failed too, because it was checked against state that never came to be.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from muster.store.embedded.database import CommitFailed, Database, Row


class Unit(Protocol):
    @property
    def rows(self) -> Sequence[Row]: ...


REST_AFTER_S = 5.0
"""Without a write for so long, the write-ahead log is emptied."""
PROBE_EVERY_S = 2.0
TIDY_AFTER_S = 0.05
"""Without a write for so long, housekeeping is done."""
SLICE_LEN = 512
"""Superfluous rows that are worth a slice of housekeeping between two batches, and what it removes, beside those that the batch
before it has made superfluous. A slice is half a dozen calls into SQLite however long it is, so there are to be few."""

PIECE_LEN = 128
"""Superfluous rows that are worth the pause before the next batch."""
GATHER_MAX_S = 0.008
"""While several write, batches begin no more often than this where the loop is busy all the time; where it is not, more often
(`loop_load.py`). Each wakes readers and watchers and passes the interpreter's lock back and forth, whatever its length: on a
quick disk many small ones would take the loop's time from the writes themselves."""
QUICK_S = 0.002
"""After a flush that took less there is room for a piece of housekeeping: the next batch is still gathering, or the loop has
time to spare. Without it the log would grow until a batch had to wait for all of it to be copied."""

U = TypeVar("U", bound=Unit)
Done = Callable[[Sequence[U]], None]
Failed = Callable[[Sequence[U], CommitFailed], None]
U_contra = TypeVar("U_contra", bound=Unit, contravariant=True)


class Committer(Protocol[U_contra]):
    def submit(self, unit: U_contra) -> None: ...

    def doom(self, versions: Sequence[int], horizon: int) -> None:
        """Hand superfluous rows over; they go some time after the next batch."""
        ...

    async def close(self) -> None:
        """Commit what was submitted, then close the database."""
        ...


class InlineCommitter(Generic[U]):
    """Commits in `submit`. Without a database it only reports, which is what a store in memory wants."""

    def __init__(self, database: Database | None, done: Done[U], failed: Failed[U], *, compact_len_max: int) -> None:
        self._database = database
        self._done = done
        self._failed = failed
        self._compact_len_max = compact_len_max

    def submit(self, unit: U) -> None:
        if self._database is not None:
            try:
                self._database.commit(unit.rows)
            except CommitFailed as failure:
                self._failed((unit,), failure)
                return
        self._done((unit,))
        if self._database is not None:
            self._database.maintain(self._compact_len_max)

    def doom(self, versions: Sequence[int], horizon: int) -> None:
        if self._database is not None:
            self._database.doom(versions, horizon)

    async def close(self) -> None:
        if self._database is not None:
            self._database.close(rows_max=self._compact_len_max)


class _Job(Generic[U]):
    """What the thread is asked to do: commit `units`, note `doomed`, and then perhaps stop. The next one comes `gather_s` after
    it was asked at the earliest, where several write."""

    __slots__ = ("doomed", "failure", "gather_s", "horizon", "is_last", "units")

    def __init__(
        self, units: Sequence[U], doomed: Sequence[int], horizon: int, *, gather_s: float = 0.0, is_last: bool = False
    ) -> None:
        self.units = units
        self.doomed = doomed
        self.horizon = horizon
        self.gather_s = gather_s
        self.is_last = is_last
        self.failure: CommitFailed | None = None


class ThreadCommitter(Generic[U]):
    def __init__(
        self,
        database: Database,
        done: Done[U],
        failed: Failed[U],
        *,
        batch_len_max: int,
        compact_len_max: int,
        gather_s: Callable[[], float] = lambda: 0.0,
        healed: Callable[[], None] = lambda: None,
    ) -> None:
        """`gather_s` says how long to gather now what several write. `healed` is called, on the loop, when there is room again
        after a commit that failed."""
        self._database = database
        self._done = done
        self._failed = failed
        self._gather_s = gather_s
        self._healed = healed
        self._batch_len_max = batch_len_max
        self._compact_len_max = compact_len_max
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[U] = deque()
        self._doomed: list[int] = []
        self._horizon = 0
        self._is_busy = False
        self._started = 0.0
        self._closing: asyncio.Future[None] | None = None
        self._jobs: queue.SimpleQueue[_Job[U]] = queue.SimpleQueue()
        # A daemon: a process that ends without closing its store ends as if killed, which the file survives.
        self._thread = threading.Thread(target=self._run, name="muster-store-writer", daemon=True)
        self._thread.start()

    def submit(self, unit: U) -> None:
        self._waiting.append(unit)
        if not self._is_busy:
            # Not at once: whatever else this turn of the loop submits shall go with it.
            self._is_busy = True
            self._loop.call_soon(self._start)

    def doom(self, versions: Sequence[int], horizon: int) -> None:
        self._doomed += versions
        self._horizon = horizon

    def _start(self) -> None:
        units: list[U] = []
        length = 0
        while self._waiting and length < self._batch_len_max:
            unit = self._waiting.popleft()
            units.append(unit)
            length += len(unit.rows)
        if not units:
            self._is_busy = False
            if self._closing is not None and not self._closing.done():
                self._closing.set_result(None)
            return
        self._started = self._loop.time()
        doomed, self._doomed = self._doomed, []
        self._jobs.put(_Job(units, doomed, self._horizon, gather_s=self._gather_s()))

    def _run(self) -> None:
        """The thread. It ends with the last job, or when the loop is gone and nobody can be told anything any more."""
        is_ill = False
        while True:
            job = self._next(is_ill)
            if job is None:
                is_ill = False
                if not self._tell(self._healed):
                    return
                continue
            self._database.doom(job.doomed, job.horizon)
            began_s = time.monotonic()
            self._work(job)
            took_s = time.monotonic() - began_s
            if not self._tell(self._report, job) or job.is_last:
                return
            is_ill = job.failure is not None
            if self._database.is_due(SLICE_LEN):
                self._database.maintain(self._slice_len(sum(len(unit.rows) for unit in job.units)))
            elif len(job.units) > 1 and took_s < QUICK_S:
                self._database.maintain_a_little(PIECE_LEN)

    def _slice_len(self, rows: int) -> int:
        """Each row of a batch makes at most two superfluous; a little more than that, so that a backlog shrinks meanwhile."""
        return min(self._compact_len_max, SLICE_LEN + 2 * rows)

    def _tell(self, callback: Callable[..., None], *values: _Job[U]) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback, *values)
        except RuntimeError:
            return False
        return True

    def _next(self, is_ill: bool) -> _Job[U] | None:
        """The next job, with housekeeping while nobody writes; None when the disk can be written again."""
        can_tidy = not is_ill
        after_s = TIDY_AFTER_S
        while True:
            is_untidy = can_tidy and self._database.has_housekeeping
            try:
                return self._jobs.get(timeout=PROBE_EVERY_S if is_ill else after_s if is_untidy else REST_AFTER_S)
            except queue.Empty:
                if is_untidy:
                    can_tidy = self._database.maintain(self._slice_len(0))  # otherwise the next batch tries again
                    after_s = 0.0
                elif not is_ill:
                    self._database.rest()
                    return self._jobs.get()
                elif self._database.probe():
                    return None

    def _work(self, job: _Job[U]) -> None:
        try:
            if job.is_last:
                self._database.close(rows_max=self._compact_len_max)
            else:
                self._database.commit([row for unit in job.units for row in unit.rows])
        except CommitFailed as failure:
            job.failure = failure
        except Exception as error:  # noqa: BLE001 - the root of a thread: those who wait must hear of anything at all
            job.failure = CommitFailed(f"{type(error).__name__}: {error}", full=False)

    def _report(self, job: _Job[U]) -> None:
        if job.is_last:
            assert self._closing is not None
            self._closing.set_result(None)
        elif job.failure is None:
            # The disk first: the next batch is flushed while this one is told to readers and watchers.
            if len(job.units) > 1 or self._waiting:
                self._loop.call_at(self._started + job.gather_s, self._start)  # at once, if that has passed
            else:
                self._start()
            self._done(job.units)
        else:
            doomed_units = [*job.units, *self._waiting]
            self._waiting.clear()
            self._failed(doomed_units, job.failure)
            self._start()

    async def close(self) -> None:
        if self._is_busy:
            self._closing = self._loop.create_future()
            await self._closing
        self._closing = self._loop.create_future()
        self._jobs.put(_Job((), self._doomed, self._horizon, is_last=True))
        await self._closing
        self._thread.join()
