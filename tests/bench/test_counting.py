"""Bound pods are counted right however the stream is cut, and the steady rate is the one between a tenth and 95 %."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.bench.counting import Bound, JsonEvents, ProtobufEvents

KINDS = st.lists(st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]), max_size=30)


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(at % (len(stream) + 1) for at in cuts)})
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


@given(kinds=KINDS, cuts=st.lists(st.integers(0, 5000), max_size=40))
def test_json(kinds: list[str], cuts: list[int]) -> None:
    stream = b"".join(b'{"type":"%s","object":{"a":"x"}}\n' % kind.encode() for kind in kinds)
    events = JsonEvents()
    assert sum(events.feed(chunk) for chunk in cut(stream, cuts)) == kinds.count("ADDED")


@given(kinds=KINDS, cuts=st.lists(st.integers(0, 5000), max_size=40))
def test_protobuf(kinds: list[str], cuts: list[int]) -> None:
    def frame(kind: str) -> bytes:
        body = b"\x0a" + bytes([len(kind)]) + kind.encode() + b"\x12\x05ADDED"
        return len(body).to_bytes(4, "big") + body

    events = ProtobufEvents()
    assert sum(events.feed(chunk) for chunk in cut(b"".join(map(frame, kinds)), cuts)) == kinds.count("ADDED")


def test_an_absurd_frame_is_refused() -> None:
    with pytest.raises(RuntimeError, match="bytes"):
        ProtobufEvents().feed(b"\xff\xff\xff\xff....")


def test_a_slow_start_and_a_slow_tail_do_not_count() -> None:
    bound = Bound()
    for number in range(1, 1001):
        slow = 100.0 if number <= 100 else 0.0
        tail = 100.0 if number > 950 else 0.0
        bound.add(1, slow * number / 100 + (100.0 if number > 100 else 0.0) + number * 0.01 + tail)
    assert bound.total == 1000
    assert bound.steady_per_s() == pytest.approx(100.0)
