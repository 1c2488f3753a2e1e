"""Commands of two sides: whose counts, and that both sides come to the same whatever they see late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.controllers.interconn_stages import (
    LEAP_MAX,
    command_in,
    command_on,
    is_taken,
    members_command,
    stage_labels,
    stage_patch,
)
from muster.objects.job_stages import Command
from muster.objects.labels import KusciaLabel
from muster.objects.patch.merge import apply_merge_patch
from muster.objects.status import Raw

OWN = ("bob", "carol")


def job(stage: str = "", version: int | str = 0, trigger: str = "") -> Raw:
    labels = {KusciaLabel.JOB_STAGE: stage, KusciaLabel.JOB_STAGE_TRIGGER: trigger, KusciaLabel.JOB_STAGE_VERSION: str(version)}
    return {"metadata": {"labels": {key: value for key, value in labels.items() if value and value != "0"}}}


def summary(stage: str = "Create", version: int = 0, trigger: str = "alice") -> Raw:
    return stage_patch(Command(stage, version, trigger))


@pytest.mark.parametrize(
    ("copy", "known", "expected"),
    [
        pytest.param(job(), summary(), None, id="nothing was said"),
        pytest.param(job("Cancel", 1, "bob"), summary(), Command("Cancel", 1, "bob"), id="a later one"),
        pytest.param(job("Stop", 4, "carol"), summary("Suspend", 3), Command("Stop", 4, "carol"), id="of another own party"),
        pytest.param(job("Cancel", 3, "bob"), summary("Suspend", 3), None, id="the initiator had that version"),
        pytest.param(job("Cancel", 2, "bob"), summary("Suspend", 3), None, id="an earlier one"),
        pytest.param(job("Cancel", 0, "bob"), summary(), None, id="without a version"),
        pytest.param(job("Cancel", 1, "alice"), summary(), Command("Cancel", 1, "bob"), id="not in the name of others"),
        pytest.param(job("Cancel", 1), summary(), Command("Cancel", 1, "bob"), id="in nobody's name"),
        pytest.param(job("Start", 1, "bob"), summary(), None, id="starting is the initiator's"),
        pytest.param(job("Create", 1, "bob"), summary(), None, id="and so is making"),
        pytest.param(job("Explode", 1, "bob"), summary(), None, id="no command"),
        pytest.param(job("Cancel", "many", "bob"), summary(), None, id="no version"),
    ],
)
def test_what_a_member_tells_the_initiator(copy: Raw, known: Raw, expected: Command | None) -> None:
    assert members_command(copy, known, OWN) == expected
    assert members_command(copy, known, ()) is None, "without parties it has no say"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(Command("Cancel", 6, "bob"), True, id="later"),
        pytest.param(Command("Cancel", 5, "bob"), False, id="the same version"),
        pytest.param(Command("Cancel", 4, "bob"), False, id="earlier"),
        pytest.param(Command("Cancel", 6, "alice"), False, id="in the initiator's name"),
        pytest.param(Command("Cancel", 6, "dave"), False, id="in the name of somebody else's party"),
        pytest.param(Command("Start", 6, "bob"), False, id="not a member's to say"),
        pytest.param(Command("Cancel", 5 + LEAP_MAX, "bob"), True, id="as far ahead as may be"),
        pytest.param(Command("Cancel", 6 + LEAP_MAX, "bob"), False, id="so far ahead that nobody could answer"),
    ],
)
def test_what_the_initiator_takes_from_a_member(given: Command, expected: bool) -> None:
    assert is_taken(given, Command("Start", 5, "alice"), OWN) is expected


def test_labels_that_are_no_command_are_not_passed_on() -> None:
    assert command_on(job("Explode", 3), "alice").stage == "Create"
    assert command_on(job(), "alice") == Command("Create", 0, "alice")
    assert command_in({}) == Command("Create", 0, "")


STAGES = st.sampled_from(["Stop", "Cancel", "Suspend", "Restart"])
WHO = st.sampled_from(["host", "member", "alice", "bob"])
MOVES = st.lists(st.tuples(WHO, STAGES, st.integers(1, 3)), max_size=30)
"""A side looks, or a person there gives a command whose version is higher by so much."""


@given(MOVES)
def test_both_sides_come_to_the_same_command(moves: list[tuple[str, str, int]]) -> None:
    """The one with the highest version that was ever said; and neither writes for ever."""
    at_host, between, at_member = job(), summary(), job()
    highest = 0

    def host() -> bool:
        nonlocal at_host, between
        ours, theirs = command_on(at_host, "alice"), command_in(between)
        if is_taken(theirs, ours, OWN):
            at_host = apply_merge_patch(at_host, {"metadata": {"labels": stage_labels(theirs)}})
            return True
        if theirs.version <= ours.version and stage_labels(theirs) != stage_labels(ours):
            between = apply_merge_patch(between, stage_patch(ours))
            return True
        return False

    def member() -> bool:
        nonlocal at_member, between
        command = members_command(at_member, between, OWN)
        if command is not None:
            between = apply_merge_patch(between, stage_patch(command))
            return True
        after = apply_merge_patch(at_member, {"metadata": {"labels": stage_labels(command_in(between))}})
        is_news = after != at_member
        at_member = after
        return is_news

    for who, stage, more in moves:
        if who == "host":
            host()
        elif who == "member":
            member()
        elif who == "alice":
            highest = max(highest, version := command_on(at_host, "alice").version + more)
            at_host = job(stage, version, "alice")
        else:
            highest = max(highest, version := command_on(at_member, "alice").version + more)
            at_member = job(stage, version, "bob")
    for _ in range(8):
        is_busy = [host(), member()]
    assert not any(is_busy), "it comes to an end"
    assert stage_labels(command_on(at_host, "alice")) == stage_labels(command_in(between))
    assert command_in(between).version == highest
    assert at_member["metadata"]["labels"] == stage_labels(command_in(between))
