"""Writes the log while the scheduler works: the scheduler hands over each step, a thread packs and writes.

Concurrency: `begin`, `step`, `action`, `rotate`, `finish` are called from the scheduler's thread and never wait for a disk;
what they do is encode and append to a buffer. One thread of the recorder's own compresses, writes, syncs, opens and retires
segments. `flush` and `close` wait for it.

A process that does not lead has no steps, but what people do may be seen there all the same (every replica answers webhooks).
After `stand_by` that is kept too: in segments of its own (`Header.is_aside`), which end when its term begins.

Invariants:
- at most `buffer_bytes_max` encoded bytes wait, and one checkpoint. When more comes than can be written, or the store fails,
  the segment ends there, the steps that follow are counted as lost, and as soon as the store has caught up a new segment begins
  with a checkpoint: its header says how many steps are missing before it. There is never a gap inside a segment;
- the scheduler never fails, and never waits, because of its log;
- a killed process loses what was decided in the last `flush_s`; a machine without power what was written in the last
  `SegmentStore.sync_s`. What is lost is the tail; the next leader's log begins with what that leader found.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from prometheus_client import Counter, Gauge

from muster import __version__
from muster.engine import checkpoint as checkpoints
from muster.engine.checkpoint import Checkpoint
from muster.engine.decisions import AnyDecision
from muster.engine.events import AnyEvent
from muster.history import records
from muster.history.records import SCHEMA, Action, End, Header, SegmentName, Step
from muster.history.retention import retire
from muster.history.segments import SegmentWriter
from muster.history.stores import SegmentStore
from muster.objects.time import Clock

log = logging.getLogger(__name__)

STEPS = Counter("muster_history_steps", "Steps of the engine that were handed to the decision log.")
BYTES = Counter("muster_history_written_bytes", "Bytes of the decision log that were written, compressed.")
LOST = Counter("muster_history_lost_steps", "Steps that are not in the decision log: it was behind, or its store failed.")
BUFFERED = Gauge("muster_history_buffered_bytes", "Encoded bytes of the decision log that wait to be written.")
RECORDING = Gauge("muster_history_recording", "1 while decisions are recorded.")
SEGMENTS = Counter("muster_history_segments", "Segments of the decision log, begun and retired.", ["what"])

_PRESSING = 1.25
"""A segment may become so many times as large or old as its limit, while there is work that would wait for the change."""
_NOT_ENCODED = (TypeError, ValueError, OverflowError, RecursionError)
_ACTIONS_WAITING_MAX = 10_000
"""Actions that wait for a segment to begin; of more, the oldest are left out."""


class HistoryLimits(msgspec.Struct, frozen=True, kw_only=True):
    segment_bytes_max: int = 64 * 1024 * 1024
    segment_s_max: float = 86_400.0
    """A segment ends by size or age, whichever comes first."""
    keep_bytes_max: int = 2 * 1024**3
    keep_s_max: float = 90 * 86_400.0
    keep_segments_max: int = 10_000
    """The oldest segments go beyond any of these."""
    buffer_bytes_max: int = 64 * 1024 * 1024
    block_bytes: int = 4 * 1024 * 1024
    """So much is compressed together: few and large, as each takes the interpreter from the scheduler for a moment."""
    flush_s: float = 1.0
    retry_s: float = 10.0
    """After the store failed; doubled each time, up to `retry_s_max`."""
    retry_s_max: float = 600.0


class _Open(msgspec.Struct):
    header: Header
    checkpoint: bytes | None


class _Block(msgspec.Struct):
    parts: list[bytes]
    size: int
    steps: int


class _Close(msgspec.Struct):
    end: End


class Recorder:
    """One for each process that may lead; terms come one after the other."""

    def __init__(self, store: SegmentStore, *, clock: Clock, limits: HistoryLimits | None = None) -> None:
        self.store = store
        self.limits = limits or HistoryLimits()
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[_Open | _Block | _Close] = deque()
        self._part: list[bytes] = []
        self._part_bytes = self._part_steps = 0
        self._waiting_actions: deque[bytes] = deque(maxlen=_ACTIONS_WAITING_MAX)
        self._buffered = 0
        self._header: Header | None = None
        """Of the segment that is written; None between terms."""
        self._is_open = False
        """Steps go into it; otherwise they are lost, until `rotate`."""
        self._steps = self._actions = 0
        self._lost = 0
        self._why_lost = ""
        self._failures = 0
        self._gave_up_at = self._retry_at = 0.0
        self._failed = ""
        """Set by the thread: why it could not write."""
        self._begun = ("", 0)
        """Term and number of the last segment that was really begun, by the thread."""
        self._written = 0
        """Bytes of the segment, by the thread."""
        self._begun_bytes = 0
        """So many of them are its beginning: header and checkpoint."""
        self._is_busy = self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._bystander: str | None = None
        """Who keeps actions outside of terms as well; None: they wait for the next term."""

    # -- the scheduler's side ----------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        """Why nothing is recorded, while that is so."""
        return "" if self._header is None or self._is_open else self._why_lost

    @property
    def is_recording(self) -> bool:
        """Whether the segment that steps go into is there: not only hoped for, as right after a failure."""
        header = self._header
        return header is not None and self._is_open and self._begun == (header.term, header.sequence)

    def begin(
        self, *, epoch: int = 0, holder: str = "", configuration: Mapping[str, Any] | None = None, order: str = ""
    ) -> None:
        """A term begins, with an empty engine."""
        self.finish()
        header = self._first(holder, epoch)
        self._failures, self._lost, self._why_lost = 0, 0, ""
        self._open(msgspec.structs.replace(header, configuration=configuration, order=order), None)

    def _first(self, holder: str, epoch: int) -> Header:
        began = self._clock()
        digest = hashlib.blake2b(f"{holder} {epoch} {began!r} {id(self)}".encode(), digest_size=8).hexdigest()
        return Header(
            schema=SCHEMA, muster=__version__, numpy=np.__version__, holder=holder, epoch=epoch, term=digest, began=began
        )

    def stand_by(self, holder: str) -> None:
        """Keep actions also while this process does not lead."""
        self._bystander = holder

    def step(
        self,
        now: float,
        units_max: int | None,
        events: Sequence[AnyEvent],
        decisions: Sequence[AnyDecision],
        factors: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """A step that was just made."""
        if self._failed:
            self._give_up("")
        if not self._is_open:
            if self._header is not None:
                self._lose(1)
            return
        try:
            data = records.encode(Step(now, units_max, events, decisions, factors))
        except _NOT_ENCODED as error:
            self._give_up(f"a step could not be encoded: {error}")
            self._lose(1)
            return
        if self._buffered + len(data) > self.limits.buffer_bytes_max:
            self._give_up("overrun")
            self._lose(1)
            return
        STEPS.inc()
        self._steps += 1
        self._add(data, 1)

    def action(self, action: Action) -> None:
        """Something that somebody did; of a time without a segment it waits for the next one."""
        data = records.encode(action)
        if self._bystander is not None and (self._header is None or self._header.is_aside):
            self._keep_aside(self._bystander, self._header)
        if not self._is_open or self._buffered + len(data) > self.limits.buffer_bytes_max:
            self._waiting_actions.append(data)
            return
        self._actions += 1
        self._add(data, 0)

    def _keep_aside(self, holder: str, header: Header | None) -> None:
        """Have a segment for actions alone, unless its store has just failed."""
        if self._failed:
            self._give_up("")
        if header is None:
            self._open(msgspec.structs.replace(self._first(holder, 0), is_aside=True), None)
        elif self._is_beyond(header, 1.0) if self._is_open else self._clock() >= self._retry_at:
            if self._is_open:
                self._seal("rotated")
            self._open(msgspec.structs.replace(header, sequence=header.sequence + 1, began=self._clock()), None)

    @property
    def is_due(self) -> bool:
        """Whether the caller is to take a checkpoint, go on with the engine of it, and call `rotate`: the segment is long or
        old enough, or a new one can begin after steps were lost."""
        if self._header is None:
            return False
        if self._failed:
            self._give_up("")
        if self._is_open:
            return self._is_beyond(self._header, 1.0)
        # A clock that was set back would have it wait for the time that was.
        now = self._clock()
        return self._buffered == 0 and not self._queue and not self._gave_up_at <= now < self._retry_at

    @property
    def is_pressing(self) -> bool:
        """Whether what is due is not to wait for a quiet moment any longer."""
        return self._header is not None and (not self._is_open or self._is_beyond(self._header, _PRESSING))

    def _is_beyond(self, header: Header, share: float) -> bool:
        age_s, limits = self._clock() - header.began, self.limits
        # A segment is never mostly its checkpoint, however little is to be kept: beginning anew has its price.
        size_bytes = max(limits.segment_bytes_max, self._begun_bytes)
        return self._written - self._begun_bytes >= share * size_bytes or age_s >= share * limits.segment_s_max

    def rotate(self, checkpoint: Checkpoint) -> None:
        """The next segment, which begins with `checkpoint`."""
        if self._header is None:
            return
        try:
            data = checkpoints.encode(checkpoint)
        except _NOT_ENCODED as error:
            self._give_up(f"a checkpoint could not be encoded: {error}")
            return
        is_begun = self._is_open
        if is_begun:
            self._seal("rotated")
            self._failures = 0
        header = msgspec.structs.replace(
            self._header,
            # One that could not be begun is none: its number goes to the next.
            sequence=self._header.sequence + (is_begun or self._begun == (self._header.term, self._header.sequence)),
            # By their names segments sort by their beginnings, also while the clock is set back.
            began=max(self._clock(), self._header.began),
            configuration=checkpoint.configuration,
            has_checkpoint=True,
            steps_lost=self._lost,
            why_lost=self._why_lost,
        )
        self._lost, self._why_lost = 0, ""
        self._open(header, data)

    def finish(self) -> None:
        """The term is over."""
        if self._is_open:
            self._seal("stopped")
        self._header = None
        RECORDING.set(0)

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until all that was handed over is written; False when it took longer."""
        with self._changed:
            self._push_part()
            return self._changed.wait_for(lambda: not self._queue and not self._is_busy, timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what waits, and stop; blocks."""
        self.finish()
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None

    # -- inside, the scheduler's side ----------------------------------------------------------------------------------------

    def _open(self, header: Header, checkpoint: bytes | None) -> None:
        if self._thread is None:
            self._is_stopping = False
            self._thread = threading.Thread(target=self._run, name="decision log", daemon=True)
            self._thread.start()
        waiting, self._waiting_actions = list(self._waiting_actions), deque(maxlen=_ACTIONS_WAITING_MAX)
        self._header, self._is_open = header, True
        self._steps, self._actions = 0, len(waiting)
        with self._changed:
            self._failed, self._written, self._begun_bytes = "", 0, 0
            self._queue.append(_Open(header, checkpoint))
            self._changed.notify_all()
        for data in waiting:
            self._add(data, 0)
        RECORDING.set(1)

    def _add(self, data: bytes, steps: int) -> None:
        with self._changed:
            self._part.append(data)
            self._part_bytes += len(data)
            self._part_steps += steps
            self._buffered += len(data)
            if self._part_bytes >= self.limits.block_bytes:
                self._push_part()

    def _push_part(self) -> None:
        """Called with the lock."""
        if self._part:
            self._queue.append(_Block(self._part, self._part_bytes, self._part_steps))
            self._part, self._part_bytes, self._part_steps = [], 0, 0
            self._changed.notify_all()

    def _seal(self, why: str) -> None:
        self._is_open = False
        end = End(why=why, steps=self._steps, actions=self._actions, at=self._clock())
        with self._changed:
            self._push_part()
            self._queue.append(_Close(end))
            self._changed.notify_all()

    def _give_up(self, why: str) -> None:
        """End the segment here; steps are lost until the next one."""
        with self._changed:
            failed, self._failed = self._failed, ""
        self._why_lost = why or failed
        if self._is_open:
            self._seal("overrun" if why == "overrun" else f"failed: {self._why_lost}")
        self._failures += 1
        wait_s = min(self.limits.retry_s * 2 ** min(self._failures - 1, 20), self.limits.retry_s_max)
        self._gave_up_at = self._clock()
        self._retry_at = self._gave_up_at + (0.0 if why == "overrun" else wait_s)
        RECORDING.set(0)
        log.warning("decisions are not recorded until the log at %s begins anew: %s", self.store.where, self._why_lost)

    def _lose(self, steps: int) -> None:
        """By either side."""
        with self._changed:
            self._lost += steps
        LOST.inc(steps)

    # -- the thread ----------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        writer: SegmentWriter | None = None
        synced_at = time.monotonic()
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                if not self._queue and not self._is_stopping:
                    self._changed.wait(self.limits.flush_s)
                    if not self._queue:
                        self._push_part()
                if not self._queue and self._is_stopping:
                    break
                command = self._queue.popleft() if self._queue else None
                self._is_busy = command is not None
            try:
                if command is not None:
                    writer = self._carry_out(command, writer)
                if writer is not None and time.monotonic() - synced_at >= self.store.sync_s:
                    writer.sync()
                    synced_at = time.monotonic()
            except Exception as error:  # noqa: BLE001 - a store may raise anything, and the scheduler is to be told, not stopped
                self._fail(writer, command, error)
                writer = None
            BUFFERED.set(self._buffered)

    def _carry_out(self, command: _Open | _Block | _Close, writer: SegmentWriter | None) -> SegmentWriter | None:
        before = writer.size_bytes if writer is not None else 0
        match command:
            case _Open(header=header, checkpoint=checkpoint):
                if writer is not None:
                    writer.abandon()
                retired = retire(self.store, self.limits, self._clock())
                SEGMENTS.labels("retired").inc(retired)
                writer, before = self._begin(header, checkpoint), 0
                SEGMENTS.labels("begun").inc()
                self._begun = (header.term, header.sequence)
                self._begun_bytes = writer.size_bytes
            case _Block(parts=parts, size=size, steps=steps):
                if writer is None:
                    self._lose(steps)
                else:
                    writer.write(parts)
                    writer.steps += steps
                self._done(size)
            case _Close(end=end):
                if writer is not None:
                    writer.end(end)
                    BYTES.inc(writer.size_bytes - before)
                return None
        if writer is not None:
            BYTES.inc(writer.size_bytes - before)
            self._written = writer.size_bytes
        return writer

    def _begin(self, header: Header, checkpoint: bytes | None) -> SegmentWriter:
        """What can't be begun leaves nothing behind: a disk that is full is tried again and again."""
        name = SegmentName.of(header)
        sink = self.store.create(name)
        try:
            return SegmentWriter(sink, header, checkpoint)
        except BaseException:
            for undo in (sink.close, lambda: self.store.remove(name)):
                try:
                    undo()
                except Exception as second:  # noqa: BLE001 - it failed already
                    log.debug("the segment %s could not be taken back: %s", name, second)
            raise

    def _done(self, size: int) -> None:
        with self._changed:
            self._buffered -= size

    def _fail(self, writer: SegmentWriter | None, command: _Open | _Block | _Close | None, error: Exception) -> None:
        """The segment is left as it is, and what waits for it is dropped and counted."""
        if writer is not None:
            try:
                writer.abandon()
            except Exception as second:  # noqa: BLE001 - it failed already
                log.debug("the segment could not be closed either: %s", second)
        with self._changed:
            match command:
                case _Block(size=size, steps=steps):
                    self._buffered -= size
                    self._lose(steps)
                case _Open(header=header):
                    self._lost += header.steps_lost  # nobody will read there that they are
                case _:
                    pass
            self._failed = f"{type(error).__name__}: {error}"
