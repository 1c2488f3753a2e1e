"""A watch: the changes of one kind from a version on, in batches, as they are committed.

A watcher is a position in its kind's history (`history.py`) and a future while it waits. It has no buffer: one that reads
slowly falls behind in the shared history, and when what it has not read is compacted it gets Expired and must list again.
One that is about a single value of a field (`spec.nodeName=n1`) and has read everything sleeps until something of that value
changes, and goes on from there: it neither reads nor misses what lies between.
One from a version that is still to come reads what leads up to it and shows nothing of that, no bookmark either: a bookmark
would send the client back.

On the loop only. One task reads one watcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from muster.objects.status import Expired
from muster.store.contract import EventType
from muster.store.embedded.collection import Collection, Waiter
from muster.store.embedded.records import Event, Record, encode
from muster.store.embedded.reshaping import event_shown
from muster.store.embedded.scanning import Scan
from muster.store.embedded.selection import Selection, in_version


class Source(Protocol):
    """What a watcher needs to know of its store."""

    @property
    def committed_rv(self) -> int: ...

    def forget_watcher(self, watcher: Watcher, *, is_expired: bool) -> None: ...


class Watcher:
    """An async iterator over batches of events. Ends at its timeout, on `close`, and when the store closes."""

    def __init__(
        self,
        source: Source,
        collection: Collection,
        selection: Selection,
        kind: str,
        *,
        position: int,
        after: int,
        initial: Scan | None,
        announce_initial: bool,
        bookmark_interval_s: float,
        timeout_s: float | None,
        batch_len_max: int,
        batch_bytes_max: int,
    ) -> None:
        self._source = source
        self.collection = collection
        self._selection = selection
        self._kind = kind
        self._position = position
        self._after = after
        """A version still to come: nothing up to it is shown. 0 once it has come."""
        self._found: Sequence[int] = ()
        """Positions before it that are still to be read: what woke it."""
        self._initial = initial
        self._initial_rv = source.committed_rv
        """Which version the initial events show."""
        self._initial_read: list[Record] = []
        """Of them, what is read and not sent."""
        self._announce_initial = announce_initial
        self._bookmark_interval_s = bookmark_interval_s
        self._batch_len_max = batch_len_max
        self._batch_bytes_max = batch_bytes_max
        self._loop = asyncio.get_running_loop()
        self._deadline = None if timeout_s is None else self._loop.time() + timeout_s
        self._next_bookmark = self._loop.time() + bookmark_interval_s if bookmark_interval_s else None
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: Waiter | None = None
        self._has_waited = True
        self._is_open = True
        self.pace: Callable[[], Awaitable[None]] | None = None
        """Awaited before each batch is taken, by whoever has many readers to serve beside other work."""
        self.gather_s: Callable[[], float] = lambda: 0.0
        """For so long after a batch, what comes is gathered for the next one: so there are so many batches at the most, however
        often the store commits. What comes later than that is taken at once."""
        self._gather_until = 0.0

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def lag(self) -> int:
        """Events of its kind that it has not read yet. One that sleeps until something concerns it has read all."""
        is_asleep = self._waiter is not None and not self._waiter.done() and self._selection.topic is not None
        return 0 if is_asleep else len(self._found) + max(0, self.collection.history.end - self._position)

    def __aiter__(self) -> Watcher:
        return self

    async def __anext__(self) -> Sequence[Event]:
        """The next events, at least one. Raises Expired when some that it has not read are gone."""
        while self._is_open:
            if self.pace is not None:
                if not self._has_read_all:
                    await self.pace()
            elif not self._has_waited:
                # Whoever always finds something to read must still let the others run.
                await asyncio.sleep(0)
            if not self.is_open:
                break  # closed meanwhile, and nobody would wake it any more
            self._has_waited = False
            now = self._loop.time()
            is_due = self._deadline is not None and now >= self._deadline
            batch = self._take()
            if is_due:
                # What is still unread belongs to the next watch; only one that has read everything may say so.
                self.close()
                if self._bookmark_interval_s and self._has_read_all and self._is_reached:
                    batch.append(self._bookmark(self._source.committed_rv))
                if not batch:
                    break
            if batch:
                self._gather_until = now + self.gather_s()
                return batch
            if not self._has_read_all:
                continue  # nothing for it was in that part
            if self._next_bookmark is not None and now >= self._next_bookmark:
                self._next_bookmark = now + self._bookmark_interval_s
                if self._is_reached:
                    return [self._bookmark(self._source.committed_rv)]
            await self._wait()
            self._has_waited = True
            if self._is_open and (left := self._gather_until - self._loop.time()) > 0:
                await asyncio.sleep(left)
        raise StopAsyncIteration

    def _take(self) -> list[Event]:
        if self._initial is not None or self._initial_read:
            return self._take_initial()
        if self._announce_initial:
            self._announce_initial = False
            # Of the version that they show: what has happened since is still to be sent, and who comes back after that bookmark
            # is sent what follows it.
            return [self._bookmark(self._initial_rv, {"k8s.io/initial-events-end": "true"})]
        history = self.collection.history
        if self._found or self._position < history.end:
            if (self._found[0] if self._found else self._position) < history.first:
                self._close(is_expired=True)
                raise Expired(
                    f"too old resource version: this watch of {self.collection.id} fell behind the history that is kept; "
                    "list again and watch from there"
                )
            if self._found:
                events = [history.at(position) for position in self._found[: self._batch_len_max]]
                events = events[: self._fitting([event.record for event in events])]
                self._found = self._found[len(events) :]
            else:
                events = history.read(self._position, self._batch_len_max)
                if len(events) > 1:
                    events = events[: self._fitting([event.record for event in events])]
                self._position += len(events)
            if self._after:
                events = self._beyond(events)
            if events and events[0].rv <= self.collection.reshaping.until:
                events = [event_shown(event, self.collection.shown) for event in events]
            if self._is_plain:
                return events
            return [seen for event in events if (seen := self._selection.select(event)) is not None]
        return []

    def _beyond(self, events: list[Event]) -> list[Event]:
        """Of `events` those after the version to begin from. From the first of them on, it is a watch like any other."""
        beyond = [event for event in events if event.rv > self._after]
        if beyond:
            self._after = 0
        return beyond

    def _take_initial(self) -> list[Event]:
        if not self._initial_read:
            assert self._initial is not None
            try:
                found = self._initial.take(self._batch_len_max)
            except Expired:
                self._close(is_expired=True)
                raise
            if self._initial.is_done:
                self._initial = None
            if self.collection.reshaping.until:
                found = list(map(self.collection.shown, found))
            selection = self._selection
            self._initial_read = found if selection.is_everything else [one for one in found if selection.matches(one)]
        part = self._initial_read[: self._fitting(self._initial_read)]
        self._initial_read = self._initial_read[len(part) :]
        wanted = self._selection.resource
        return [Event(EventType.ADDED, in_version(record, wanted), None) for record in part]

    def _fitting(self, records: Sequence[Record]) -> int:
        """How many of them make a batch: at least one, and no more bytes than the bound beside that."""
        size = 0
        for index, record in enumerate(records):
            size += len(record.value)
            if size > self._batch_bytes_max and index:
                return index
        return len(records)

    @property
    def _has_read_all(self) -> bool:
        is_begun = self._initial is not None or self._initial_read or self._announce_initial
        return not is_begun and not self._found and self._position == self.collection.history.end

    @property
    def _is_reached(self) -> bool:
        """Whether the store has come to the version that the watch begins from."""
        return self._after <= self._source.committed_rv

    @property
    def _is_plain(self) -> bool:
        """Whether every event goes out as it is."""
        selection = self._selection
        return selection.is_everything and selection.namespace is None and self.collection.is_as_stored(selection.api_version)

    def _bookmark(self, rv: int, annotations: dict[str, str] | None = None) -> Event:
        """Says: everything up to `rv` has been sent."""
        meta: dict[str, object] = {"resourceVersion": str(rv), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        api_version = self._selection.api_version
        value = encode({"kind": self._kind, "apiVersion": api_version, "metadata": meta})
        record = Record(key=("", ""), rv=rv, uid="", api_version=api_version, value=value, labels={}, fields={})
        return Event(EventType.BOOKMARK, record, None)

    async def _wait(self) -> None:
        """Until the history grows by something that may concern it, the timer fires, or the watcher is closed. Everything up
        to the end of the history has been read."""
        self._arm()
        topic = self._selection.topic
        waiter: Waiter = self._loop.create_future()
        self._waiter = waiter
        self.collection.add_waiter(waiter, topic)
        try:
            found, until = await waiter
            self._found = [position for position in found if position >= self._position]
            self._position = max(self._position, until)
        finally:
            self._waiter = None
            self.collection.remove_waiter(waiter, topic)

    def _arm(self) -> None:
        """One timer for the earlier of deadline and bookmark; it stays armed over any number of waits."""
        if self._timer is not None:
            return
        due = [instant for instant in (self._deadline, self._next_bookmark) if instant is not None]
        if due:
            self._timer = self._loop.call_at(min(due), self._on_timer)

    def _on_timer(self) -> None:
        """Nothing has concerned it up to now: whatever does takes it out of those who wait, and wakes it then or soon."""
        self._timer = None
        if self._waiter is not None and self.collection.is_waiting(self._waiter, self._selection.topic):
            self._release()

    def _release(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(((), self.collection.history.end))

    def close(self) -> None:
        """End the watch; a reader that waits gets the end of the iteration."""
        self._close(is_expired=False)

    def _close(self, *, is_expired: bool) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._release()
        self._source.forget_watcher(self, is_expired=is_expired)
