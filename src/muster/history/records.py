"""What a segment of the log holds, as values, and their bytes.

A segment is a `Header`, a `Checkpoint` unless the engine was empty at its beginning, then `Step`s and `Action`s in the order in
which they happened, and an `End` if whoever wrote it got that far. All are msgpack: it keeps the order of the members of an
object, and every float, so that what is replayed is exactly what was seen.

Pure. SCHEMA changes when a reader of the old one could misread the new one; a reader refuses what is newer than itself. New
members with a default do not need that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from muster.engine.decisions import AnyDecision
from muster.engine.events import AnyEvent

SCHEMA = 1


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who wrote the segment, and under what configuration it begins."""

    schema: int
    muster: str
    """The version that decided; another may decide otherwise."""
    numpy: str = ""
    holder: str = ""
    """The process that led."""
    epoch: int = 0
    """Of its leadership: grows from leader to leader; 0 where only one can be."""
    term: str = ""
    """One run of the scheduler, from the state of its caches to its end; the segments of a term are numbered from 1."""
    sequence: int = 1
    began: float = 0.0
    configuration: Mapping[str, Any] | None = None
    """Of the scheduler, as it was written; None where the engine was made by hand."""
    has_checkpoint: bool = False
    """Otherwise the engine was empty, and all that it came to know is in the steps."""
    order: str = ""
    """What ranked the waiting work, if anything did."""
    is_aside: bool = False
    """Of a process that did not lead: it has what people did there, and no steps."""
    steps_lost: int = 0
    """Steps between the end of the last segment and this one that were not recorded; `why_lost` says why."""
    why_lost: str = ""


class Step(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """One step of the engine: exactly what it was given, and what it decided."""

    now: float
    units_max: int | None
    events: Sequence[AnyEvent]
    decisions: Sequence[AnyDecision]
    factors: Mapping[str, Mapping[str, float]] | None = None
    """Of the units that it decided about: the contribution of each factor to their place, by unit."""


class Action(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """Something that somebody asked the server for, from its audit log, or from what a cluster's API server asked a webhook."""

    at: float
    user: str
    verb: str
    resource: str
    """Plural and group: `jobs.muster.dev`."""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    code: int = 0
    """0: it was let pass, and nobody said how it ended."""
    note: str = ""


Record = Step | Action


class End(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last record of a segment that was closed in order."""

    why: str
    """`rotated`, `stopped`, or `overrun`: more came than could be written, and the rest was left out."""
    steps: int
    actions: int = 0
    at: float = 0.0
    steps_lost: int = 0


_NAME = re.compile(r"([0-9]{8}T[0-9]{6}Z)-e([0-9]{10,12})-([0-9a-f]{16})-([0-9]{6,9})\.mlog")


class SegmentName(msgspec.Struct, frozen=True, order=True):
    """`20261116T090331Z-e0000000003-1f2e3d4c5b6a7988-000001.mlog`: as text they sort by their beginnings."""

    began: str
    epoch: int
    term: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.began}-e{self.epoch:010}-{self.term}-{self.sequence:06}.mlog"

    @property
    def instant(self) -> float:
        return datetime.strptime(self.began, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()

    @classmethod
    def of(cls, header: Header) -> SegmentName:
        began = datetime.fromtimestamp(max(header.began, 0.0), UTC).strftime("%Y%m%dT%H%M%SZ")
        return cls(began, header.epoch, header.term, header.sequence)

    @classmethod
    def parse(cls, text: str) -> SegmentName | None:
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        try:
            name = cls(found[1], int(found[2]), found[3], int(found[4]))
            name.instant  # noqa: B018 - a date that there is
        except ValueError:
            return None
        # What is found by this name must be there when it is opened by it.
        return name if str(name) == text else None


_encoder = msgspec.msgpack.Encoder()
_record_decoder = msgspec.msgpack.Decoder(Record)
_decisions_decoder = msgspec.msgpack.Decoder(list[AnyDecision])
_header_decoder = msgspec.msgpack.Decoder(Header)
_end_decoder = msgspec.msgpack.Decoder(End)


def encode(record: Record | Header | End) -> bytes:
    return _encoder.encode(record)


def decode_record(data: bytes | memoryview) -> Record:
    """msgspec.DecodeError, ValidationError included, for what is none."""
    found: Record = _record_decoder.decode(data)
    return found


def as_recorded(decisions: Sequence[AnyDecision]) -> list[AnyDecision]:
    """Decisions as a reader of the log would find them."""
    return _decisions_decoder.decode(_encoder.encode(decisions))


def decode_header(data: bytes) -> Header:
    return _header_decoder.decode(data)


def decode_end(data: bytes) -> End:
    return _end_decoder.decode(data)
