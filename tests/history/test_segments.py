"""Segments: what was written is read; whatever else the bytes are, the reader says so, and never makes anything up."""

from __future__ import annotations

import io
import os
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.history import records, segments
from muster.history.reader import Segment
from muster.history.records import Action, End, Header, SegmentName, Step
from muster.history.segments import HEADER_LEN, MAGIC, SegmentDamaged, SegmentReader, SegmentWriter
from tests.engine.building import node, pod
from tests.history.recording import MemorySink

FUZZED = 4_000 if os.environ.get("MUSTER_SOAK") else 150
HEADER = Header(schema=records.SCHEMA, muster="0", term="0123456789abcdef", began=1_700_000_000.0)


def steps(count: int) -> list[Step]:
    return [
        Step(float(n), n or None, [ev.NodeSeen(node(f"n{n}")), ev.PodSeen(pod(f"p{n}", cpu="1"))], []) for n in range(count)
    ]


def written(*, checkpoint: bytes | None = None, count: int = 6, is_ended: bool = True) -> bytes:
    sink = MemorySink()
    header = Header(schema=records.SCHEMA, muster="0", term="0123456789abcdef", has_checkpoint=checkpoint is not None)
    writer = SegmentWriter(sink, header, checkpoint)
    encoded = [records.encode(step) for step in steps(count)]
    for at in range(0, count, 2):
        writer.write(encoded[at : at + 2])
    if is_ended:
        writer.end(End(why="stopped", steps=count))
    return sink.data


def read(data: bytes) -> tuple[list[records.Record], SegmentReader]:
    reader = SegmentReader(io.BytesIO(data), "a.mlog")
    return list(reader.records()), reader


WHOLE = written(count=6)
KEPT = written(checkpoint=b"kept" * 50, count=6)


def test_what_was_written_is_read() -> None:
    found, reader = read(WHOLE)
    assert found == steps(6)
    assert reader.torn is None
    assert reader.end == End(why="stopped", steps=6)


def test_the_checkpoint_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "CHECKPOINT_PIECE_BYTES", 7)
    data = written(checkpoint=bytes(range(100)))
    reader = SegmentReader(io.BytesIO(data), "a.mlog")
    assert reader.checkpoint() == bytes(range(100))
    assert list(reader.records()) == steps(6)


@pytest.mark.parametrize("data", [WHOLE, KEPT], ids=["empty beginning", "with a checkpoint"])
def test_every_cut_is_a_prefix_that_says_so(data: bytes) -> None:
    """Cut at any byte: what is read is what was written first, and it is reported as torn."""
    expected = steps(6)
    for length in range(len(data)):
        found, reader = read(data[:length])
        assert reader.has_begun == (length >= len(MAGIC) + len(_frames(data)[0]))
        assert found == expected[: len(found)]
        assert reader.end is None
        assert reader.torn is not None
        assert reader.torn.at + reader.torn.bytes_cut == length


@pytest.mark.parametrize("data", [WHOLE, KEPT], ids=["empty beginning", "with a checkpoint"])
def test_every_flipped_bit_is_found(data: bytes) -> None:
    """Any single bit, anywhere: an error that names the file, or, at worst, a tail that is reported as torn off."""
    expected = steps(6)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << (at % 8)
        with pytest.raises(SegmentDamaged, match=r"a\.mlog") as caught:
            read(bytes(broken))
        assert str(caught.value)
    assert read(data)[0] == expected


def test_zeros_at_the_end_are_a_torn_tail() -> None:
    """What a file system may leave after a power cut."""
    data = written(is_ended=False)
    found, reader = read(data + bytes(5_000))
    assert found == steps(6)
    assert reader.torn is not None
    assert (reader.torn.at, reader.torn.bytes_cut) == (len(data), 5_000)


def test_zeros_before_the_end_are_damage() -> None:
    *first, last = _frames(WHOLE)
    with pytest.raises(SegmentDamaged, match="checksum of its head"):
        read(MAGIC + b"".join(first) + bytes(100) + last)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        pytest.param(b"PK\x03\x04 something else", "not a decision log", id="another file"),
        pytest.param(WHOLE + b"x", "bytes follow the end", id="more than the end"),
        pytest.param(WHOLE + WHOLE, "bytes follow the end", id="twice"),
    ],
)
def test_what_is_no_segment(data: bytes, what: str) -> None:
    with pytest.raises(SegmentDamaged, match=what):
        read(data)


def _frames(data: bytes) -> list[bytes]:
    found, at = [], len(MAGIC)
    while at < len(data):
        length = int.from_bytes(data[at + 9 : at + 13], "little")
        found.append(data[at : at + HEADER_LEN + length])
        at += HEADER_LEN + length
    return found


@pytest.mark.parametrize("change", ["drop", "repeat", "swap"])
def test_frames_that_are_moved_are_found(change: str) -> None:
    frames = _frames(WHOLE)
    for i in range(1, len(frames) - 1):
        moved = list(frames)
        match change:
            case "drop":
                del moved[i]
            case "repeat":
                moved.insert(i, moved[i])
            case _:
                moved[i], moved[i + 1] = moved[i + 1], moved[i]
        with pytest.raises(SegmentDamaged, match="number"):
            read(MAGIC + b"".join(moved))


def test_a_newer_schema_is_refused() -> None:
    sink = MemorySink()
    SegmentWriter(sink, Header(schema=records.SCHEMA + 1, muster="9"))
    with pytest.raises(SegmentDamaged, match=f"schema version {records.SCHEMA + 1}"):
        read(sink.data)


def test_a_frame_never_unpacks_to_more_than_it_says() -> None:
    """Its checksums are right; it claims 10 bytes and would give a hundred million."""
    sink = MemorySink()
    writer = SegmentWriter(sink, HEADER)
    bomb = zlib.compress(bytes(100_000_000), 9)
    sink.write(writer._frame(segments.BLOCK, b"0123456789", bomb))
    with pytest.raises(SegmentDamaged, match="another length"):
        read(sink.data)


def test_a_checkpoint_never_unpacks_to_more_than_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is as it should be, and there is no end to them."""
    sink = MemorySink()
    writer = SegmentWriter(sink, Header(schema=records.SCHEMA, muster="0", has_checkpoint=True))
    piece = bytes(segments.CHECKPOINT_PIECE_BYTES)
    for _ in range(3):
        sink.write(writer._frame(segments.PIECE, piece, zlib.compress(piece, 9)))
    monkeypatch.setattr(segments, "CHECKPOINT_BYTES_MAX", 2 * len(piece))
    with pytest.raises(SegmentDamaged, match=r"a\.mlog: frame 3 at byte .* more than 8,388,608 bytes"):
        read(sink.data)
    with pytest.raises(ValueError, match="checkpoint of 8,388,609 bytes"):
        SegmentWriter(MemorySink(), HEADER, bytes(2 * len(piece) + 1))


def test_a_frame_that_claims_too_much_is_not_unpacked() -> None:
    sink = MemorySink()
    writer = SegmentWriter(sink, HEADER)
    head = segments._FRAME.pack(segments.BLOCK, writer._number, segments.FRAME_BYTES_MAX + 1, 5, zlib.crc32(b"12345"))
    sink.write(head + zlib.crc32(head).to_bytes(4, "little") + b"12345")
    with pytest.raises(SegmentDamaged, match="frame 1 at byte"):
        read(sink.data)


@settings(max_examples=FUZZED, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([WHOLE, KEPT]))
def test_no_bytes_crash_the_reader(chance: random.Random, data: bytes) -> None:
    """Bytes replaced, cut out, put in, anywhere: an error with a message, or a prefix of what was written."""
    broken = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randrange(len(broken)), chance.choice([1, 1, 2, 8, 100])
        match chance.randrange(4):
            case 0:
                broken[at : at + length] = chance.randbytes(length)
            case 1:
                del broken[at : at + length]
            case 2:
                broken[at:at] = chance.randbytes(length)
            case _:
                del broken[at:]
        if not broken:
            break
    try:
        found, reader = read(bytes(broken))
    except SegmentDamaged:
        return
    assert found == steps(6)[: len(found)]
    assert reader.torn is not None or bytes(broken) == data


@settings(max_examples=FUZZED, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_random_payloads_with_right_checksums(payload: bytes, is_header: bool) -> None:
    """What a malicious or a future writer might put into a frame: an error, never a crash."""
    sink = MemorySink()
    if is_header:
        sink.data = MAGIC
        writer = SegmentWriter.__new__(SegmentWriter)
        writer._number = 0
        sink.data += writer._frame(segments.HEADER, payload, payload)
    else:
        writer = SegmentWriter(sink, HEADER)
        sink.write(writer._frame(segments.BLOCK, payload, zlib.compress(payload, 1)))
    try:
        found, _ = read(sink.data)
    except SegmentDamaged:
        return
    assert all(isinstance(one, Step | Action) for one in found)


@settings(max_examples=FUZZED, deadline=None)
@given(st.binary(min_size=1, max_size=300))
def test_random_checkpoints_with_right_checksums(payload: bytes) -> None:
    sink = MemorySink()
    SegmentWriter(sink, Header(schema=records.SCHEMA, muster="0", has_checkpoint=True), payload)
    segment = Segment(SegmentReader(sink.file(), "a.mlog"))
    with pytest.raises(SegmentDamaged, match="the checkpoint can't be read"):
        segment.checkpoint()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x.mlog",
        "20261116T090331Z-e0000000001-0123456789abcdef-000001",
        "20261399T090331Z-e0000000001-0123456789abcdef-000001.mlog",
        "20261116T090331Z-e1-0123456789abcdef-000001.mlog",
        "20261116T090331Z-e000000000\u0661-0123456789abcdef-000001.mlog",
        "20261116T090331Z-e000000000001-0123456789abcdef-000001.mlog",
        "20261116T090331Z-e0000000001-0123456789abcdef-0000001.mlog",
    ],
)
def test_names_that_are_none(text: str) -> None:
    assert SegmentName.parse(text) is None


@given(st.floats(0, 4e9), st.integers(0, 10**10), st.integers(1, 10**8))
def test_names_round_trip(began: float, epoch: int, sequence: int) -> None:
    name = SegmentName.of(Header(schema=1, muster="", epoch=epoch, term="00000000000000ff", sequence=sequence, began=began))
    assert SegmentName.parse(str(name)) == name
    assert abs(name.instant - began) < 1
