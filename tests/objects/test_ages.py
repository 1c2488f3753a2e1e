from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.ages import human_duration, since


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-0.5, "0s"),
        (0, "0s"),
        (59, "59s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (599, "9m59s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (11_100, "3h5m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (50 * 3600, "2d2h"),
        (8 * 86400, "8d"),
        (729 * 86400, "729d"),
        (730 * 86400, "2y"),
        (740 * 86400, "2y10d"),
        (3000 * 86400, "8y"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


@given(st.integers(0, 10**9))
def test_durations_are_short(seconds: int) -> None:
    assert len(human_duration(seconds)) <= 6


@pytest.mark.parametrize(
    ("stamp", "text"),
    [
        pytest.param("2026-11-15T20:00:00Z", "60m", id="a time"),
        pytest.param("2026-11-15T21:00:10Z", "<invalid>", id="not yet"),
        pytest.param("yesterday", "<invalid>", id="no time"),
        pytest.param("", "<unknown>", id="empty"),
        pytest.param(None, "<unknown>", id="absent"),
        pytest.param(5, "<unknown>", id="number"),
    ],
)
def test_since(stamp: object, text: str) -> None:
    assert since(stamp, 1_794_776_400.0) == text
