"""A snapshot of what a store holds and how near its limits it is. Plain values.

Any thread: what changes on the loop is copied in one act of the interpreter (`list` of a dict) before it is walked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from muster.store.embedded.core import Core
from muster.store.embedded.database import Database
from muster.store.embedded.limits import Limits

Reading = tuple[str, str, float]
"""Name, meaning, value."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    limits: Limits
    objects: Mapping[str, int]
    resource_version: int
    horizon: int
    file_bytes: int
    wal_bytes: int
    free_pages: int
    compacted_at: float
    is_writable: bool
    in_flight_len: int
    in_flight_bytes: int
    watchers_len: int
    watch_lag_len: int
    history_len: int
    history_bytes: int
    compaction_backlog_len: int
    garbage_queue_len: int
    writes: int
    batches: int
    commit_failures: int
    refused_writes: int
    compacted: int
    expired_watches: int
    checkpoints: int
    compaction_slices: int

    def gauges(self) -> Iterator[Reading]:
        limits = self.limits
        yield "resource_version", "Version of the last committed change", self.resource_version
        yield "compacted_version", "Version up to which history is gone", self.horizon
        yield "file_bytes", "Size of the file and its write-ahead log", self.file_bytes
        yield "wal_bytes", "Size of the write-ahead log", self.wal_bytes
        yield "free_pages", "Pages of the file that hold nothing, when compaction last counted them", self.free_pages
        yield "last_compaction_timestamp_seconds", "When history was last dropped; 0 before the first time", self.compacted_at
        yield "writable", "1 unless the last commit failed and nothing could be written since", int(self.is_writable)
        yield "writes_in_flight", "Writes accepted and not yet on disk", self.in_flight_len
        yield "writes_in_flight_max", "Writes that may be in flight before others are refused", limits.writes_in_flight_max
        yield "writes_in_flight_bytes", "Size of the writes in flight", self.in_flight_bytes
        yield "writes_in_flight_bytes_max", "Size of writes that may be in flight", limits.writes_in_flight_bytes_max
        yield "watchers", "Open watches", self.watchers_len
        yield "watchers_max", "Watches that may be open", limits.watchers_max
        yield "watch_lag_events", "Events that the slowest watch has not read yet", self.watch_lag_len
        yield "history_events", "Events kept for watches that resume and lists that continue", self.history_len
        yield "history_events_max", "Events that are kept at most", limits.history_len_max
        yield "history_bytes", "Size of the events that are kept", self.history_bytes
        yield "history_bytes_max", "Size of events that are kept at most", limits.history_bytes_max
        yield "history_age_seconds_max", "Age after which events are dropped", limits.history_age_s
        yield "compaction_backlog_rows", "Rows that compaction has yet to remove from the file", self.compaction_backlog_len
        yield "garbage_queue", "Objects, namespaces and kinds that wait to be cleaned up", self.garbage_queue_len
        yield "object_bytes_max", "Size that one object may have", limits.object_bytes_max
        yield "transaction_operations_max", "Operations that one transaction may have", limits.transaction_len_max
        yield "batch_rows_max", "Objects that one commit may have", limits.batch_len_max

    def counters(self) -> Iterator[Reading]:
        yield "writes", "Changes committed to disk", self.writes
        yield "commits", "Commits to disk; writes divided by commits is the size of a batch", self.batches
        yield "commit_failures", "Commits that failed; nothing of them was kept", self.commit_failures
        yield "writes_refused", "Writes refused because too many were in flight", self.refused_writes
        yield "events_compacted", "Events dropped from the history", self.compacted
        yield "watches_expired", "Watches ended because they fell behind the history", self.expired_watches
        yield "checkpoints", "Times the write-ahead log was copied into the file", self.checkpoints
        yield "compaction_slices", "Slices in which compaction removed rows from the file", self.compaction_slices


def measure(core: Core, database: Database | None, *, garbage_queue_len: int) -> Usage:
    counters = core.counters
    return Usage(
        limits=core.limits,
        objects={c.id: len(c.records) for c in list(core.collections.values()) if c.records},
        resource_version=core.committed_rv,
        horizon=core.horizon,
        file_bytes=database.size_bytes() if database is not None else 0,
        wal_bytes=database.wal_bytes() if database is not None else 0,
        free_pages=database.free_pages if database is not None else 0,
        compacted_at=core.compacted_at,
        is_writable=not core.write_problem,
        in_flight_len=core.in_flight_len,
        in_flight_bytes=core.in_flight_bytes,
        watchers_len=len(core.watchers),
        watch_lag_len=max((watcher.lag for watcher in list(core.watchers)), default=0),
        history_len=core.history_len,
        history_bytes=core.history_bytes,
        compaction_backlog_len=database.doomed_len if database is not None else 0,
        garbage_queue_len=garbage_queue_len,
        writes=counters.writes,
        batches=counters.batches,
        commit_failures=counters.commit_failures,
        refused_writes=counters.refused_writes,
        compacted=counters.compacted,
        expired_watches=counters.expired_watches,
        checkpoints=database.checkpoints if database is not None else 0,
        compaction_slices=database.compactions if database is not None else 0,
    )
