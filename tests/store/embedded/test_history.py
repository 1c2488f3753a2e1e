"""Positions stay valid while old events go; a reader that was too slow can tell."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from muster.store.embedded.history import History
from tests.store.embedded.support import change, record


def filled(count: int, first: int = 1) -> History:
    history = History()
    for rv in range(first, first + count):
        history.append(change("ADDED", record(f"n{rv}", rv)))
    return history


def test_empty() -> None:
    history = History()
    assert (len(history), history.first, history.end) == (0, 0, 0)
    assert history.after(5) == 0
    assert history.read(0, 10) == []


def test_reading_by_position() -> None:
    history = filled(10, first=100)
    assert history.after(99) == 0
    assert history.after(104) == 5
    assert history.after(109) == history.end == 10
    assert [e.rv for e in history.read(history.after(104), 3)] == [105, 106, 107]
    assert [e.rv for e in history.backwards(106)] == [109, 108, 107]


@given(steps=st.lists(st.one_of(st.just("drop"), st.integers(1, 400)), max_size=60))
def test_positions_mean_the_same_however_much_is_dropped(steps: list[str | int]) -> None:
    history, appended, dropped = History(), 0, 0
    for step in steps:
        if step == "drop":
            for _ in range(min(300, appended - dropped)):
                history.drop_first()
                dropped += 1
        else:
            for _ in range(int(step)):
                appended += 1
                history.append(change("ADDED", record("x", appended)))
        assert (history.first, history.end, len(history)) == (dropped, appended, appended - dropped)
        middle = (dropped + appended) // 2
        assert [e.rv for e in history.read(middle, 2)] == list(range(middle + 1, min(middle + 3, appended + 1)))
        assert history.after(middle) == middle


def test_what_is_dropped_is_let_go_of_at_once() -> None:
    history = filled(10)
    events = history.read(0, 10)
    held = [sys.getrefcount(event) for event in events]
    for _ in range(4):
        history.drop_first()
    left = [sys.getrefcount(event) for event in events]
    assert [was - now for was, now in zip(held, left, strict=True)] == [1] * 4 + [0] * 6


def test_lines_are_encoded_once_and_given_back() -> None:
    history = filled(1)
    event = history.read(0, 1)[0]
    assert event.line.startswith(b'{"type":"ADDED","object":{"apiVersion":"v1"')
    assert event.line.endswith(b"}\n")
    assert event.line is event.line
    line = event.line
    for rv in range(2, 2000):
        history.append(change("ADDED", record("n", rv)))
    assert event.line is not line
    assert event.line == line
