"""The bytes of a segment: a magic line, then frames. Each frame says its kind, number, lengths and checksums.

    frame = kind u8, number u32, raw length u32, payload length u32, CRC of payload u32, CRC of the 17 bytes before u32, payload

| kind | payload |
|---|---|
| H | the header, msgpack; always the first frame |
| C | a piece of the checkpoint, zlib; several in a row, the last with kind D |
| B | records, zlib: for each its length (u32) and its bytes |
| E | the end, msgpack; always the last frame |

Written once, from front to back, and never changed. So a process that is killed leaves a segment that is whole up to some frame
and torn in the next one: that is cut, and said (`Torn`). One that was killed before its header was written, or whose disk was
full by then, leaves a segment that is torn before it began (`has_begun`). Everything else that does not fit is damage
(`SegmentDamaged`), named with file, frame and place, and nothing behind it is believed.

Blocking. A `SegmentWriter` belongs to one thread. Bounded: a frame is at most FRAME_BYTES_MAX, a checkpoint at most
CHECKPOINT_BYTES_MAX, and neither is unpacked beyond what it says of itself.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Protocol

import msgspec

from muster.history import records
from muster.history.records import End, Header, Record

MAGIC = b"muster decision log 1\n"
_FRAME = struct.Struct("<BIIII")
_CRC = struct.Struct("<I")
HEADER_LEN = _FRAME.size + _CRC.size
_LENGTH = struct.Struct("<I")
FRAME_BYTES_MAX = 128 * 1024 * 1024
"""A frame that claims more, packed or unpacked, is damaged. More than the recorder ever holds back (`buffer_bytes_max`)."""
CHECKPOINT_PIECE_BYTES = 4 * 1024 * 1024
CHECKPOINT_BYTES_MAX = 1024 * 1024 * 1024
"""All its pieces together."""
LEVEL = 1
"""Of zlib: what comes out is a fifth larger than at the default level, in a third of the time."""
HEADER, PIECE, LAST_PIECE, BLOCK, END = (ord(letter) for letter in "HCDBE")
_KINDS = frozenset({HEADER, PIECE, LAST_PIECE, BLOCK, END})


class SegmentDamaged(Exception):
    """A segment has bytes that nobody wrote. The message names file, frame and place."""


class Sink(Protocol):
    """Where bytes go; see `stores`."""

    def write(self, data: bytes) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class SegmentWriter:
    """Writes one segment. OSError when the sink can't; the segment is then as a killed process would leave it."""

    def __init__(self, sink: Sink, header: Header, checkpoint: bytes | None = None) -> None:
        self._sink = sink
        self._number = 0
        self.size_bytes = 0
        self.steps = self.actions = 0
        self._put(MAGIC + self._frame(HEADER, data := records.encode(header), data))
        if checkpoint is not None:
            if len(checkpoint) > CHECKPOINT_BYTES_MAX:
                raise ValueError(f"a checkpoint of {len(checkpoint):,} bytes; the most is {CHECKPOINT_BYTES_MAX:,}")
            pieces = [checkpoint[i : i + CHECKPOINT_PIECE_BYTES] for i in range(0, len(checkpoint), CHECKPOINT_PIECE_BYTES)]
            for piece in pieces[:-1]:
                self._put(self._frame(PIECE, piece, zlib.compress(piece, LEVEL)))
            self._put(self._frame(LAST_PIECE, pieces[-1], zlib.compress(pieces[-1], LEVEL)))

    def write(self, encoded: Sequence[bytes]) -> None:
        """One frame of these records, as `records.encode` gave them."""
        raw = b"".join([part for one in encoded for part in (_LENGTH.pack(len(one)), one)])
        self._put(self._frame(BLOCK, raw, zlib.compress(raw, LEVEL)))

    def sync(self) -> None:
        self._sink.sync()

    def end(self, end: End) -> None:
        data = records.encode(end)
        self._put(self._frame(END, data, data))
        self._sink.sync()
        self._sink.close()

    def abandon(self) -> None:
        """Close without an end."""
        self._sink.close()

    def _frame(self, kind: int, raw: bytes, payload: bytes) -> bytes:
        if max(len(raw), len(payload)) > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {len(raw):,} bytes; the most is {FRAME_BYTES_MAX:,}")
        head = _FRAME.pack(kind, self._number, len(raw), len(payload), zlib.crc32(payload))
        self._number += 1
        return b"".join((head, _CRC.pack(zlib.crc32(head)), payload))

    def _put(self, data: bytes) -> None:
        self._sink.write(data)
        self.size_bytes += len(data)


class Torn(msgspec.Struct, frozen=True):
    """A segment that ends in the middle of a frame, or without an end: its writer was killed, or still writes."""

    at: int
    """So many bytes of it are whole."""
    bytes_cut: int


class Frame(msgspec.Struct, frozen=True):
    kind: int
    number: int
    at: int
    raw: bytes


class SegmentReader:
    """Reads one segment from front to back; `torn` and `end` are known when all of it was read."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self.name = file, name
        self.torn: Torn | None = None
        self.end: End | None = None
        self._at = 0
        self._next: Frame | None = None
        self._frames = self._read_frames()
        self._checkpoint: bytes | None = None
        self._has_read_checkpoint = False
        first = next(self._frames, None)
        self.has_begun = first is not None
        """False when its writer got no further than its name: there is no header, and nothing else."""
        if first is None:
            self.header = Header(schema=records.SCHEMA, muster="", has_checkpoint=True)
            return
        if first.kind != HEADER:
            raise self._damaged(first.number, first.at, f"the first frame is of kind {chr(first.kind)}, not a header")
        self._check_schema(first)
        try:
            self.header = records.decode_header(first.raw)
        except (msgspec.DecodeError, ValueError) as error:
            raise self._damaged(first.number, first.at, f"the header can't be read: {error}") from None

    def checkpoint(self) -> bytes | None:
        """The checkpoint's bytes; None when the segment has none, or it was never written whole (`torn` says so)."""
        if not self._has_read_checkpoint:
            self._has_read_checkpoint = True
            pieces: list[bytes] = []
            size_bytes = 0
            for frame in self._frames:
                if frame.kind not in (PIECE, LAST_PIECE):
                    self._next = frame
                    break
                pieces.append(frame.raw)
                size_bytes += len(frame.raw)
                if size_bytes > CHECKPOINT_BYTES_MAX:
                    what = f"the checkpoint has more than {CHECKPOINT_BYTES_MAX:,} bytes up to here"
                    raise self._damaged(frame.number, frame.at, what)
                if frame.kind == LAST_PIECE:
                    self._checkpoint = b"".join(pieces)
                    break
            if self.header.has_checkpoint and self._checkpoint is None and self._next is not None:
                raise self._damaged(self._next.number, self._next.at, "the checkpoint that the header announces is not there")
        return self._checkpoint

    def records(self) -> Iterator[Record]:
        self.checkpoint()
        if self.header.has_checkpoint and self._checkpoint is None:
            return
        while True:
            frame = self._next or next(self._frames, None)
            self._next = None
            if frame is None:
                return
            if frame.kind == BLOCK:
                yield from self._unpack(frame)
            elif frame.kind == END:
                self._finish(frame)
                return
            else:
                raise self._damaged(frame.number, frame.at, f"a frame of kind {chr(frame.kind)} where records are expected")

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _check_schema(self, first: Frame) -> None:
        try:
            schema = msgspec.msgpack.decode(first.raw).get("schema")
        except (msgspec.DecodeError, ValueError, AttributeError, RecursionError) as error:
            raise self._damaged(first.number, first.at, f"the header can't be read: {error}") from None
        if schema != records.SCHEMA:
            raise SegmentDamaged(
                f"{self.name}: schema version {schema!r}; this release reads {records.SCHEMA}; use the release that wrote it"
            )

    def _unpack(self, frame: Frame) -> Iterator[Record]:
        view = memoryview(frame.raw)
        at = 0
        while at < len(view):
            if at + _LENGTH.size > len(view):
                raise self._damaged(frame.number, frame.at, "a record without a length")
            (length,) = _LENGTH.unpack_from(view, at)
            at += _LENGTH.size
            if at + length > len(view):
                raise self._damaged(frame.number, frame.at, f"a record of {length} bytes beyond the end of its frame")
            try:
                yield records.decode_record(view[at : at + length])
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise self._damaged(frame.number, frame.at, f"a record can't be read: {error}") from None
            at += length

    def _finish(self, frame: Frame) -> None:
        try:
            self.end = records.decode_end(frame.raw)
        except (msgspec.DecodeError, ValueError) as error:
            raise self._damaged(frame.number, frame.at, f"the end can't be read: {error}") from None
        if self._file.read(1):
            raise self._damaged(frame.number, frame.at, "bytes follow the end")

    def _read_frames(self) -> Iterator[Frame]:
        magic = self._file.read(len(MAGIC))
        if magic != MAGIC:
            if len(magic) < len(MAGIC) and MAGIC.startswith(magic):
                self.torn = Torn(0, len(magic))
                return
            raise SegmentDamaged(f"{self.name}: not a decision log: it begins with {magic[:30]!r}")
        self._at = len(MAGIC)
        number = 0
        while True:
            head = self._file.read(HEADER_LEN)
            if len(head) < HEADER_LEN:
                self.torn = Torn(self._at, len(head))
                return
            if zlib.crc32(head[: _FRAME.size]) != _CRC.unpack_from(head, _FRAME.size)[0]:
                if not any(head) and (zeros := self._zeros_left()) is not None:
                    # A file system that lost power may have made the file longer and not written to it yet.
                    self.torn = Torn(self._at, len(head) + zeros)
                    return
                raise self._damaged(number, self._at, "the checksum of its head is wrong")
            kind, found, raw_len, length, crc = _FRAME.unpack_from(head)
            if kind not in _KINDS or found != number or max(raw_len, length) > FRAME_BYTES_MAX:
                raise self._damaged(number, self._at, f"it says kind {kind}, number {found}, {length} bytes")
            payload = self._file.read(length)
            if len(payload) < length:
                self.torn = Torn(self._at, len(head) + len(payload))
                return
            if zlib.crc32(payload) != crc:
                raise self._damaged(number, self._at, "the checksum of its payload is wrong")
            raw = payload if kind in (HEADER, END) else self._inflate(payload, raw_len, number)
            yield Frame(kind, number, self._at, raw)
            self._at += HEADER_LEN + length
            number += 1

    def _inflate(self, payload: bytes, raw_len: int, number: int) -> bytes:
        inflater = zlib.decompressobj()
        try:
            raw = inflater.decompress(payload, raw_len + 1)
        except zlib.error as error:
            raise self._damaged(number, self._at, f"it can't be unpacked: {error}") from None
        if len(raw) != raw_len or not inflater.eof:
            raise self._damaged(number, self._at, f"it unpacks to another length than the {raw_len} bytes that it says")
        return raw

    def _zeros_left(self) -> int | None:
        """How many zeros are left, if nothing else is."""
        count = 0
        while chunk := self._file.read(1 << 20):
            if chunk.count(0) != len(chunk):
                return None
            count += len(chunk)
        return count

    def _damaged(self, number: int, at: int, what: str) -> SegmentDamaged:
        return SegmentDamaged(
            f"{self.name}: frame {number} at byte {at:,} is damaged: {what}; what stands before it can be used"
        )
