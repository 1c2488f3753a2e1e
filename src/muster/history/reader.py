"""Reads a log: the segments of a store, or one file, in order, with what is wrong about them said.

Blocking, one reader per thread. Nothing is ever changed or repaired on disk: a torn tail is cut in reading only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from muster.engine import checkpoint as checkpoints
from muster.engine.checkpoint import Checkpoint
from muster.history.records import Action, Header, Record, SegmentName, Step
from muster.history.segments import SegmentDamaged, SegmentReader
from muster.history.stores import DirectoryStore, SegmentStore, open_store


class Finding(msgspec.Struct, frozen=True):
    """Something to know about a segment. `is_loss`: decisions were made that are not in the log."""

    segment: str
    text: str
    is_loss: bool = True
    is_open: bool = False
    """It may be that its writer still writes, and all is well."""


class Segment:
    """One segment that is being read. `findings` is complete when `records` has come to its end."""

    def __init__(self, reader: SegmentReader) -> None:
        self._reader = reader
        self.name = reader.name
        self.header: Header = reader.header
        self.findings: list[Finding] = []
        if self.header.steps_lost:
            text = f"{self.header.steps_lost} steps before it were not recorded: {self.header.why_lost or 'the log was behind'}"
            self.findings.append(Finding(self.name, text))

    def checkpoint(self) -> Checkpoint | None:
        """SegmentDamaged when it can't be read; None where the engine began empty, or it was never written whole."""
        data = self._reader.checkpoint()
        if data is None:
            return None
        try:
            return checkpoints.decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise SegmentDamaged(f"{self.name}: the checkpoint can't be read: {error}") from None

    @property
    def is_usable(self) -> bool:
        """False when its writer was killed before the checkpoint was whole: then there is nothing in it."""
        return not self.header.has_checkpoint or self._reader.checkpoint() is not None

    @property
    def nothing_in_it(self) -> str:
        """Why, while it is not `is_usable`."""
        torn = self._reader.torn
        if self._reader.has_begun or torn is None:
            return "its writer was killed before it had a beginning: it has no steps"
        return f"there is no whole header ({torn.bytes_cut} bytes): its writer was killed, or its disk was full, as it began"

    def records(self) -> Iterator[Record]:
        steps = 0
        for record in self._reader.records():
            steps += isinstance(record, Step)
            yield record
        torn, end = self._reader.torn, self._reader.end
        if torn is not None:
            text = "ends without an end: its writer was killed, or still writes"
            if torn.bytes_cut:
                text += f"; the last {torn.bytes_cut} bytes are half a frame and are left out"
            self.findings.append(Finding(self.name, text, is_open=True))
        elif end is not None and end.steps != steps:
            raise SegmentDamaged(f"{self.name}: its end says {end.steps} steps, and it has {steps}")
        elif end is not None and end.why not in ("rotated", "stopped"):
            self.findings.append(Finding(self.name, f"was ended early: {end.why}"))

    def steps(self) -> Iterator[Step]:
        return (record for record in self.records() if isinstance(record, Step))

    def actions(self) -> Iterator[Action]:
        return (record for record in self.records() if isinstance(record, Action))


class Log:
    """All segments of a store, or one of them."""

    def __init__(self, store: SegmentStore, only: SegmentName | None = None) -> None:
        self.store = store
        self._only = only

    @classmethod
    def at(cls, place: str | Path) -> Log:
        """`place` is a directory, a segment's file, or a URL. FileNotFoundError, with what to do, when there is nothing."""
        path = Path(place)
        name = SegmentName.parse(path.name)
        if "://" not in str(place) and name is not None and path.is_file():
            return cls(DirectoryStore(path.parent), name)
        if "://" not in str(place) and not path.is_dir():
            what = "is no segment of a decision log (*.mlog)" if path.exists() else "there is no such file or directory"
            raise FileNotFoundError(f"{place}: {what}; give the directory of a log, one of its segments, or a URL")
        return cls(open_store(place))

    @property
    def names(self) -> list[SegmentName]:
        return [self._only] if self._only is not None else [one.name for one in self.store.segments()]

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.store.segments() if self._only in (None, one.name))

    @contextmanager
    def open(self, name: SegmentName) -> Iterator[Segment]:
        file: BinaryIO
        with self.store.open(name) as file:
            yield Segment(SegmentReader(file, str(name)))

    def between(self, begin: float | None = None, end: float | None = None) -> list[SegmentName]:
        """Names of segments that may have something between two instants."""
        names = self.names
        last_of: dict[str, SegmentName] = {name.term: name for name in names}
        found = []
        for i, name in enumerate(names):
            if end is not None and name.instant > end:
                continue
            later = next((other for other in names[i + 1 :] if other.term == name.term), None)
            if begin is not None and later is not None and later.instant + 1 < begin and last_of[name.term] != name:
                continue
            found.append(name)
        return found

    def gaps(self) -> list[Finding]:
        """Segments that are missing between those that are there, by term. Those before the first were retired."""
        found: list[Finding] = []
        last: dict[str, SegmentName] = {}
        for name in self.names:
            before = last.get(name.term)
            if before is not None and name.sequence != before.sequence + 1:
                missing = f"segments {before.sequence + 1} to {name.sequence - 1} of its term are missing before it"
                found.append(Finding(str(name), missing))
            last[name.term] = name
        return found
