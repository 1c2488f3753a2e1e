from __future__ import annotations

import copy

import pytest

from muster.objects.conditions import Condition, find_condition, is_true, set_condition, with_condition, without_condition
from muster.objects.status import Raw
from muster.objects.view import view_of

READY: Raw = {
    "type": "Ready",
    "status": "True",
    "lastTransitionTime": "2001-09-09T01:46:40Z",
    "reason": "Up",
    "message": "",
    "x": 1,
}
OTHER: Raw = {"type": "Other", "status": "False"}


def test_time_stays_while_the_status_does() -> None:
    before = [READY, OTHER]
    after = set_condition(before, type_="Ready", status="True", now=2e9, reason="StillUp", message="fine")
    assert after[0] == {**READY, "reason": "StillUp", "message": "fine"}
    assert after[1] == OTHER
    assert before[0]["reason"] == "Up"


def test_time_moves_with_the_status() -> None:
    after = set_condition([READY], type_="Ready", status="False", now=2e9, reason="Down", observed_generation=4)
    assert after == [
        {**READY, "status": "False", "reason": "Down", "lastTransitionTime": "2033-05-18T03:33:20Z", "observedGeneration": 4}
    ]


@pytest.mark.parametrize("before", [None, [], [OTHER], "nonsense", [None, 5]])
def test_a_new_condition_goes_to_the_end(before: list[Raw] | None) -> None:
    after = set_condition(before, type_="Ready", status="Unknown", now=0, fields={"lastProbeTime": None})
    assert after[-1] == {
        "type": "Ready",
        "status": "Unknown",
        "reason": "",
        "message": "",
        "lastTransitionTime": "1970-01-01T00:00:00Z",
        "lastProbeTime": None,
    }


def test_setting_twice_changes_nothing_the_second_time() -> None:
    once = set_condition([READY], type_="Ready", status="False", now=1e9, reason="r")
    assert set_condition(once, type_="Ready", status="False", now=2e9, reason="r") == once


def test_views_follow_the_same_rule() -> None:
    old = view_of(Condition, READY)
    same = with_condition([old], Condition(type="Ready", status="True", reason="Again"), now=2e9)
    assert same[0].last_transition_time == "2001-09-09T01:46:40Z"
    changed = with_condition(same, Condition(type="Ready", status="False"), now=2e9)
    assert changed[0].last_transition_time == "2033-05-18T03:33:20Z"
    assert [c.type for c in with_condition(changed, Condition(type="New"), now=0)] == ["Ready", "New"]


def test_finding_and_removing() -> None:
    conditions = [copy.deepcopy(READY), OTHER]
    found = find_condition(conditions, "Ready")
    assert found == READY
    assert found is not None
    found["status"] = "False"
    assert is_true(conditions, "Ready")
    assert not is_true(conditions, "Other")
    assert not is_true(conditions, "None")
    assert find_condition(None, "Ready") is None
    assert without_condition(conditions, "Ready") == [OTHER]
    assert without_condition(None, "Ready") == []
