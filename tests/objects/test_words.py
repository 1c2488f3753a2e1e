from __future__ import annotations

import pytest

from muster.objects.words import short_list, whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("7", 7, id="a number"),
        pytest.param("007", 7, id="with zeros before it"),
        pytest.param("", -1, id="nothing"),
        pytest.param("-3", -1, id="negative"),
        pytest.param("1.0", -1, id="a fraction"),
        pytest.param("\u0663", -1, id="a digit of another script"),
        pytest.param("\u00b2", -1, id="a digit that is no decimal"),
        pytest.param("9" * 9, 999_999_999, id="as long as it may be"),
        pytest.param("9" * 10, -1, id="longer"),
        pytest.param("9" * 10_000, -1, id="so long that reading it would fail"),
    ],
)
def test_whole_number(text: str, number: int) -> None:
    assert whole_number(text, -1) == number


@pytest.mark.parametrize(
    ("names", "said"),
    [
        pytest.param([], "", id="none"),
        pytest.param(["a", "b", "c"], "a, b, c", id="as many as are shown"),
        pytest.param(["a", "b", "c", "d", "e"], "a, b, c and 2 more", id="more"),
    ],
)
def test_short_list(names: list[str], said: str) -> None:
    assert short_list(names) == said
