"""SPDY/3.1 frames: what a client writes is read, in whatever pieces it comes; nothing that comes breaks the reader."""

from __future__ import annotations

import contextlib
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.agent.streaming_spdy_frames import (
    CONTROL_BYTES_MAX,
    FIN,
    UNIDIRECTIONAL,
    Data,
    Event,
    FrameReader,
    FrameWriter,
    Leaving,
    Opened,
    Pinged,
    Reset,
)
from muster.agent.streaming_spdy_headers import DICTIONARY, HEADER_BYTES_MAX, HEADERS_MAX, HeaderReader, HeaderWriter, SpdyError
from tests.agent.spdy_client import SpdyClient, control, data, leave, ping, reset
from tests.counts import examples

STREAM = st.integers(1, 2**31 - 1)


def read(*pieces: bytes) -> list[Event]:
    reader = FrameReader()
    return [event for piece in pieces for event in reader.feed(piece)]


def test_the_dictionary_is_the_one_that_everybody_has() -> None:
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


def test_frames_of_a_client() -> None:
    client = SpdyClient()
    headers = {"streamtype": "data", "port": "80"}
    said = [
        client.open(1, headers),
        client.open(3, {}, flags=FIN | UNIDIRECTIONAL),
        data(1, b"bytes"),
        data(1, b"", is_last=True),
        control(4, struct.pack(">III", 1, 7, 65536)),
        control(9, struct.pack(">II", 1, 100)),
        control(77, b"what nobody knows"),
        reset(3),
        ping(5),
        leave(),
        client.open(5, headers),  # the compression goes on
    ]
    expected = [
        Opened(1, headers, False, False),
        Opened(3, {}, True, True),
        Data(1, b"bytes", False),
        Data(1, b"", True),
        Reset(3),
        Pinged(5),
        Leaving(),
        Opened(5, headers, False, False),
    ]
    whole = b"".join(said)
    assert read(whole) == expected
    in_pieces = read(*(whole[at : at + 1] for at in range(len(whole))))
    assert [one for one in in_pieces if not isinstance(one, Data)] == [one for one in expected if not isinstance(one, Data)]


def test_values_that_are_several() -> None:
    assert HeaderReader().read(HeaderWriter().write({"a": "first\x00second"})) == {"a": "first"}


def test_a_server_writes_what_a_client_reads() -> None:
    writer, client = FrameWriter(), SpdyClient()
    client.hear(writer.reply(1) + writer.reply(3) + writer.data(1, b"x") + writer.data(1, b"y", is_last=True))
    client.hear(writer.reset(3, 5) + writer.ping(7) + writer.leave(3, 1))
    assert (client.replied, client.data, client.ended) == ([1, 3], {1: b"xy"}, [1])
    assert (client.resets, client.pings, client.left) == ({3: 5}, [7], [(3, 1)])


def _block(plain: bytes) -> bytes:
    made = zlib.compressobj(zdict=DICTIONARY)
    return made.compress(plain) + made.flush(zlib.Z_SYNC_FLUSH)


def _opened(block: bytes) -> bytes:
    return control(1, struct.pack(">IIH", 1, 0, 0) + block)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        pytest.param(control(6, b"\0\0\0\1", version=2), "version 2", id="another version"),
        pytest.param(control(1, b"", flags=0)[:4] + struct.pack(">I", CONTROL_BYTES_MAX + 1), "bytes", id="too long"),
        pytest.param(control(6, b"\0"), "too short", id="too short"),
        pytest.param(control(1, bytes(9)), "too short", id="a stream without its head"),
        pytest.param(_opened(b"no zlib"), "uncompressed", id="no compression"),
        pytest.param(_opened(zlib.compress(bytes(4))), "ends in the middle", id="compression that ends"),
        pytest.param(_opened(_block(bytes(10**7))), f"more than {HEADER_BYTES_MAX}", id="a bomb"),
        pytest.param(_opened(_block(struct.pack(">II", 1, 2**32 - 1))), "too early", id="a length beyond the end"),
        pytest.param(_opened(_block(struct.pack(">I", 3))), "too early", id="a count beyond the end"),
        pytest.param(_opened(_block(struct.pack(">I", HEADERS_MAX + 1))), f"may be {HEADERS_MAX}", id="too many"),
        pytest.param(control(2, bytes(4)), "from a client", id="a reply"),
        pytest.param(control(8, bytes(4)), "from a client", id="further headers"),
        pytest.param(_opened(_block(struct.pack(">III", 1, 0, 0))), "empty", id="no name"),
        pytest.param(_opened(_block(struct.pack(">II1sI", 1, 1, b"A", 0))), "lower case", id="in capitals"),
        pytest.param(_opened(_block(struct.pack(">II1sII1sI", 2, 1, b"a", 0, 1, b"a", 0))), "already", id="twice"),
        pytest.param(_opened(_block(bytes(5))), "after the last", id="too much"),
    ],
)
def test_what_is_no_spdy(said: bytes, why: str) -> None:
    with pytest.raises(SpdyError, match=why):
        read(said)


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, bytes, bool]]]:
    sent = draw(st.lists(st.tuples(STREAM, st.binary(max_size=300), st.booleans()), max_size=12))
    return b"".join(data(stream, payload, is_last=is_last) for stream, payload, is_last in sent), sent


@given(frames(), st.lists(st.integers(1, 400), max_size=30))
@settings(max_examples=examples(200), deadline=None)
def test_data_is_whole_in_whatever_pieces_it_comes(made: tuple[bytes, list[tuple[int, bytes, bool]]], cuts: list[int]) -> None:
    whole, sent = made
    pieces, at = [], 0
    for size in [*cuts, len(whole)]:
        pieces.append(whole[at : at + size])
        at += size
    heard: list[tuple[int, bytes]] = []
    for event in read(*pieces):
        assert isinstance(event, Data)
        heard.append((event.stream, event.data))
    assert b"".join(payload for _, payload in heard) == b"".join(payload for _, payload, _ in sent)
    assert sum(one.is_last for one in read(*pieces) if isinstance(one, Data)) == sum(is_last for _, _, is_last in sent)


NOISE = st.one_of(
    st.binary(max_size=200),
    st.builds(
        control,
        st.integers(0, 12),
        st.one_of(
            st.binary(max_size=100),
            st.binary(max_size=100).map(_block),
            st.binary(max_size=60).map(lambda b: bytes(10) + _block(b)),
        ),
        flags=st.integers(0, 255),
    ),
)


@given(st.lists(NOISE, max_size=8))
@settings(max_examples=examples(500), deadline=None)
def test_nothing_breaks_the_reader(pieces: list[bytes]) -> None:
    reader = FrameReader()
    with contextlib.suppress(SpdyError):
        for piece in pieces:
            for event in reader.feed(piece):
                assert isinstance(event, Event)
            assert len(reader._rest) <= CONTROL_BYTES_MAX + 8
