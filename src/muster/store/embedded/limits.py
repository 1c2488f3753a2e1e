"""The bounds of an embedded store, in one value. Each is a metric too: see `metrics.py`."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    object_bytes_max: int = 1_572_864
    """Size of one object as JSON. Kubernetes' own bound (etcd's 1.5 MiB)."""

    transaction_len_max: int = 1000
    """Operations in one `transaction`."""

    writes_in_flight_max: int = 4096
    """Writes accepted and not yet on disk; beyond it the answer is 429."""

    writes_in_flight_bytes_max: int = 64 << 20

    batch_len_max: int = 1024
    """Objects per commit to disk."""

    watchers_max: int = 10_000

    watch_batch_len_max: int = 1000
    """Events handed to a watcher at once."""

    watch_batch_bytes_max: int = 128 << 10
    """Their objects together, unless a single one is larger: what a watcher that reads slowly makes the server hold for it."""

    history_len_max: int = 65_536
    """Events kept for watchers that resume and for lists that continue. Older ones are compacted."""

    history_bytes_max: int = 128 << 20

    history_age_s: float = 300.0

    list_len_max: int = 0
    """Objects in one page of a list even if the caller sets no limit; 0 means all."""

    bookmark_interval_s: float = 60.0

    wal_pages_max: int = 1024
    """Pages (of 4 KiB) in the write-ahead log before it is copied into the file, between two batches: who writes meanwhile
    waits for it, so it is not much. Where there is a pause before the next batch, a quarter of it is enough."""

    compact_len_max: int = 2048
    """Rows that one compaction step removes from the file at most, and events that are dropped from the history in one go."""
