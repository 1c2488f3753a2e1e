from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.time import format_micro_time, format_time, parse_time, time_or, wall_clock

YEAR_1_S = -62135596800
YEAR_9999_S = 253402300799


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        pytest.param("1970-01-01T00:00:00Z", 0.0, id="epoch"),
        pytest.param("2001-09-09T01:46:40Z", 1e9, id="a billion"),
        pytest.param("2001-09-09T03:46:40+02:00", 1e9, id="east"),
        pytest.param("2001-09-08T22:16:40-03:30", 1e9, id="west"),
        pytest.param("2001-09-09T01:46:40.25Z", 1e9 + 0.25, id="fraction"),
        pytest.param("2001-09-09t01:46:40z", 1e9, id="lower case"),
        pytest.param("1969-12-31T23:59:59.5Z", -0.5, id="before the epoch"),
        pytest.param("2024-02-29T00:00:00Z", 1709164800.0, id="leap day"),
        pytest.param("0001-01-01T00:00:00Z", float(YEAR_1_S), id="first moment"),
        pytest.param("0001-01-01T00:00:00+14:00", float(YEAR_1_S - 14 * 3600), id="before the first moment in UTC"),
    ],
)
def test_parse(text: str, instant: float) -> None:
    assert parse_time(text) == instant


@pytest.mark.parametrize(
    "text",
    ["", "now", "2001-09-09", "2001-09-09 01:46:40Z", "2001-09-09T01:46:40", "2001-9-9T01:46:40Z", "2001-02-30T00:00:00Z",
     "2001-13-01T00:00:00Z", "2001-01-01T24:00:00Z", "2001-01-01T00:00:60Z", "2001-01-01T00:00:00+24:00",
     "2001-01-01T00:00:00+00:60", "0000-01-01T00:00:00Z", "2001-01-01T00:00:00.Z", "٢٠٠١-01-01T00:00:00Z", "x" * 10_000],
)  # fmt: skip
def test_what_is_no_time_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"RFC 3339|calendar|offset") as caught:
        parse_time(text)
    assert len(str(caught.value)) < 200


def test_only_text_is_a_time() -> None:
    with pytest.raises(ValueError, match=r"must be a string"):
        parse_time(1e9)  # type: ignore[arg-type]


def test_format() -> None:
    assert format_time(1e9 + 0.999) == "2001-09-09T01:46:40Z"
    assert format_micro_time(1e9) == "2001-09-09T01:46:40.000000Z"
    assert format_micro_time(1e9 + 0.25) == "2001-09-09T01:46:40.250000Z"
    assert format_micro_time(0.9999999) == "1970-01-01T00:00:01.000000Z"
    assert format_time(-0.5) == "1969-12-31T23:59:59Z"
    assert format_time(YEAR_1_S) == "0001-01-01T00:00:00Z"


@pytest.mark.parametrize("instant", [math.nan, math.inf, -math.inf])
def test_what_has_no_date_is_a_value_error(instant: float) -> None:
    with pytest.raises(ValueError, match="moment"):
        format_time(instant)
    with pytest.raises(ValueError, match="moment"):
        format_micro_time(instant)


@pytest.mark.parametrize("instant", [YEAR_9999_S + 1.0, 1e18, 2.0**63, 1e300])
def test_what_never_comes_is_the_last_moment(instant: float) -> None:
    assert format_time(instant) == "9999-12-31T23:59:59Z"
    assert format_micro_time(instant).startswith("9999-12-31T23:59:59.")
    assert format_time(-instant) == "0001-01-01T00:00:00Z"


def test_the_wall_clock_tells_a_time_that_can_be_written() -> None:
    assert parse_time(format_time(wall_clock())) > 1.7e9


@given(st.integers(YEAR_1_S, YEAR_9999_S))
def test_whole_seconds_round_trip(instant: int) -> None:
    assert parse_time(format_time(instant)) == instant


@given(st.floats(min_value=0, max_value=4e9))
def test_microseconds_round_trip(instant: float) -> None:
    assert abs(parse_time(format_micro_time(instant)) - instant) < 1e-6
    assert parse_time(format_time(instant)) == math.floor(instant)


@given(st.text(max_size=40))
def test_any_text_parses_or_is_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert math.isfinite(parse_time(text))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("2001-09-09T01:46:40Z", 1_000_000_000.0, id="a time"),
        pytest.param("", None, id="nothing"),
        pytest.param("soon", None, id="no time"),
        pytest.param(7, None, id="no text"),
        pytest.param(None, None, id="none at all"),
    ],
)
def test_what_can_be_read_and_what_stands_for_the_rest(text: object, found: float | None) -> None:
    assert time_or(text, None) == found
    assert time_or(text, 5.0) == (found or 5.0)
