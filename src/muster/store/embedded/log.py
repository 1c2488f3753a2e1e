"""The recent changes of all kinds in one order, within bounds: what compaction drops, and what that makes superfluous on disk.

On the loop only; `Core` has the one there is. Invariant: the log holds the events that the histories of all collections hold
together, so whoever drops one here drops it there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from muster.store.contract import EventType
from muster.store.embedded.collection import Collection
from muster.store.embedded.limits import Limits
from muster.store.embedded.records import Event


class Dropped(NamedTuple):
    number: int
    horizon: int
    """The version of the last event that was dropped; 0 when none was."""
    doomed: Sequence[int]
    """Versions that nobody can ask for any more, to be removed from disk."""


_NOTHING = Dropped(0, 0, ())


class Log:
    def __init__(self) -> None:
        self._entries: deque[tuple[Event, Collection, float]] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, event: Event, collection: Collection, at: float) -> None:
        """A change that is in its collection's history already, or goes there in the same turn of the loop."""
        self._entries.append((event, collection, at))
        self.size_bytes += len(event.record.value)

    def drop_beyond(self, limits: Limits, now: float) -> Dropped:
        """What is too old, or too much, from the oldest on; at most `compact_len_max` of it at a time."""
        entries, oldest = self._entries, now - limits.history_age_s
        number = horizon = 0
        doomed: list[int] = []
        while entries and number < limits.compact_len_max:
            is_within = len(entries) <= limits.history_len_max and self.size_bytes <= limits.history_bytes_max
            if is_within and entries[0][2] >= oldest:
                break
            horizon = self._drop_first(doomed)
            number += 1
        return Dropped(number, horizon, doomed) if number else _NOTHING

    def drop_to(self, rv: int) -> Dropped:
        """All up to `rv`, however much it is."""
        entries = self._entries
        number = horizon = 0
        doomed: list[int] = []
        while entries and entries[0][0].rv <= rv:
            horizon = self._drop_first(doomed)
            number += 1
        return Dropped(number, horizon, doomed) if number else _NOTHING

    def _drop_first(self, doomed: list[int]) -> int:
        """Its version. What it replaced is in nobody's past any more, nor is what it deleted."""
        event, collection, _ = self._entries.popleft()
        self.size_bytes -= len(event.record.value)
        collection.history.drop_first()
        if event.previous is not None:
            doomed.append(event.previous.rv)
        if event.type is EventType.DELETED:
            doomed.append(event.rv)
        return event.rv
