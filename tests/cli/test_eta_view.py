"""When work will start, in words."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from muster.cli.eta_view import eta_lines, half_of, is_sooner, moment, span_text

NOW = 1_800_000_000.0  # 2027-01-15 08:00 UTC
START = {"likely": NOW + 7_200, "earliest": NOW + 3_600, "latest": NOW + 9_000, "confidence": 0.9, "grounds": "5 of 6 held"}


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        pytest.param(3_600, 9_000, "today 09:00-10:30", id="one day"),
        pytest.param(3_600, 90_000, "today 09:00 to tomorrow 09:00", id="two days"),
        pytest.param(200_000, 300_000, "2027-01-17 15:33 to 2027-01-18 19:20", id="later"),
    ],
)
def test_span(first: float, last: float, text: str) -> None:
    assert span_text(NOW + first, NOW + last, NOW, UTC) == text


def test_moment_is_in_the_zone_of_who_reads() -> None:
    assert moment(NOW, NOW, UTC) == "today 08:00"


def lines(**answer: Any) -> list[str]:
    return list(eta_lines("Job ns/train", {"state": "waiting", "items": [], **answer}, NOW, UTC))


def test_a_job_that_waits() -> None:
    other = {"gpus": 4, "start": {**START, "likely": NOW, "earliest": NOW, "latest": NOW + 600}}
    assert lines(
        items=[{"gpus": 8, "start": START}, other],
        position=3,
        of=9,
        queue="q",
        runS=600.0,
        runHighS=1_200.0,
        grounds="4 runs of user ann",
    ) == [
        "Job ns/train: waits, place 3 of 9 in queue q",
        "  Start: today 09:00-10:30 (90% sure), most likely today 10:00",
        "  At 4 GPUs instead of 8: today 08:00-08:10 (90% sure), most likely today 08:00",
        "  Expected to run: 10m, nine in ten at most 20m (4 runs of user ann)",
        "  Grounds: 5 of 6 held",
    ]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param({"items": [{"gpus": 0, "start": None}], "refused": "held: x"}, "nothing can be said", id="nothing"),
        pytest.param({"items": [{"gpus": 0, "start": None}], "refused": "held: x"}, "may not be tried: held: x", id="refused"),
        pytest.param(
            {"items": [{"gpus": 0, "start": {"likely": NOW + 60}}]}, "about today 08:01, and how sure", id="not measured"
        ),
        pytest.param(
            {"items": [{"gpus": 8, "start": START}], "refused": "x", "limit": "limit 4, in use 4"},
            "At a limit: limit 4, in use 4",
            id="a limit",
        ),
        pytest.param(
            {"items": [{"gpus": 8, "start": START}, {"gpus": 9, "start": None, "refused": "limit 8"}]},
            "At 9 GPUs instead of 8: nothing can be said: limit 8",
            id="another size that is refused",
        ),
        pytest.param({"items": [{"gpus": 0, "start": {"likely": NOW}}]}, "Start: at once, and how sure", id="at once"),
        pytest.param({"items": [], "never": "no node has x"}, "Start: never as it is: no node has x", id="never"),
        pytest.param({"state": "ended", "phase": "Failed"}, "train: Failed; is in no line", id="ended"),
        pytest.param({"state": "idle", "phase": "Running"}, "Running; no task of it waits", id="no task waits"),
        pytest.param({"state": "running", "started": NOW - 60}, "has started, today 07:59", id="running"),
        pytest.param(
            {"state": "asked", "items": [{"start": START}], "notes": ["a\x1b[31mb"]}, "if it were sent now", id="asked"
        ),
    ],
)
def test_others(answer: dict[str, Any], text: str) -> None:
    told = "\n".join(lines(**answer))
    assert text in told
    assert "\x1b" not in told


def test_the_size_that_it_has_is_no_other() -> None:
    assert not any("instead of" in line for line in lines(items=[{"gpus": 8, "start": START}, {"gpus": 8, "start": START}]))


@pytest.mark.parametrize(
    ("items", "half"),
    [
        pytest.param([{"gpus": 9, "start": START}], 4, id="waits"),
        pytest.param([{"gpus": 8, "start": None}], 4, id="nothing can be said"),
        pytest.param([{"gpus": 8, "start": {"likely": NOW + 5}}], 0, id="at once"),
        pytest.param([{"gpus": 1, "start": START}], 0, id="one"),
        pytest.param([], 0, id="runs"),
    ],
)
def test_what_else_to_ask(items: list[dict[str, Any]], half: int) -> None:
    assert half_of({"now": NOW, "items": items}) == half


@pytest.mark.parametrize(
    ("second", "sooner"),
    [
        pytest.param({"likely": NOW}, True, id="at once"),
        pytest.param({"likely": NOW + 7_190}, False, id="hardly"),
        pytest.param(None, False, id="not known"),
    ],
)
def test_whether_less_is_sooner(second: dict[str, float] | None, sooner: bool) -> None:
    assert is_sooner({"items": [{"gpus": 8, "start": START}, {"gpus": 4, "start": second}]}) is sooner
    assert is_sooner({"items": [{"gpus": 8, "start": None}, {"gpus": 4, "start": second}]}) is (second is not None)
