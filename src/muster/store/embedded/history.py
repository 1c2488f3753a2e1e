"""The recent changes of one kind, in order. Watchers read it by position; lists that continue undo it.

On the loop only. Positions are absolute: they stay valid while older events are dropped, and a reader whose position was
dropped learns that it is too late. So a watcher costs one number, however slowly it reads, and what slow watchers can cost
together is the history itself, which is bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, cast

from muster.store.embedded.records import Event

_LINES_KEPT = 1024
"""Events whose encoded line stays cached: enough for watchers that keep up, without holding every object twice."""
_TRIM_AT = 512
_GONE: Final = cast(Event, None)
"""In the place of an event that was dropped, where nobody looks."""


class History:
    __slots__ = ("_base", "_events", "_start")

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._start = 0  # index of the first event that still counts; what is before it is cut off now and then
        self._base = 0  # position of _events[0]

    def __len__(self) -> int:
        return len(self._events) - self._start

    @property
    def first(self) -> int:
        """Position of the oldest event."""
        return self._base + self._start

    @property
    def end(self) -> int:
        """Position that the next event will get."""
        return self._base + len(self._events)

    def append(self, event: Event) -> None:
        assert not len(self) or event.rv > self._events[-1].rv
        self._events.append(event)
        if len(self) > _LINES_KEPT:
            self._events[-_LINES_KEPT - 1].forget_line()

    def drop_first(self) -> None:
        # Let go of each by itself: with its object it is some microseconds, and of half a history that is a long halt.
        self._events[self._start] = _GONE
        self._start += 1
        if self._start >= _TRIM_AT and self._start * 2 >= len(self._events):
            del self._events[: self._start]
            self._base += self._start
            self._start = 0

    def after(self, rv: int) -> int:
        """Position of the first event later than `rv`. The caller has made sure that `rv` is not compacted."""
        return self._base + bisect_right(self._events, rv, lo=self._start, key=attrgetter("rv"))

    def read(self, position: int, len_max: int) -> list[Event]:
        """Events from `position` on. The caller has checked `position >= first`."""
        index = position - self._base
        return self._events[index : index + len_max]

    def at(self, position: int) -> Event:
        """The event at `position`, which is from `first` on and before `end`."""
        return self._events[position - self._base]

    def backwards(self, rv: int) -> Iterator[Event]:
        """Events later than `rv`, the newest first."""
        events = self._events
        for index in range(len(events) - 1, self.after(rv) - self._base - 1, -1):
            yield events[index]
