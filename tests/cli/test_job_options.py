from __future__ import annotations

import click
import pytest

from muster.cli.job_options import DURATION


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("90", 90.0),
        ("1.5", 1.5),
        ("90s", 90.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("7d", 604_800.0),
        ("2w", 1_209_600.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "-1", "soon", "5 m", "1y", "m5", "1e3", "nan", "9" * 30, "99999w", "1m" * 6, "５m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.UsageError, match=r"is no duration|longer than 10 years"):
        DURATION.convert(text, None, None)
