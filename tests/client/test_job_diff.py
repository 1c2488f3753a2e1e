from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.job_diff import FieldChange, diff, field_changes
from muster.client.job_tree import build_tree
from tests.client.job_objects import kuscia_job, task


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        pytest.param({"a": 1}, {"a": 1}, [], id="the same"),
        pytest.param({"a": 1}, {"a": 2}, [FieldChange("s.a", 1, 2)], id="a value"),
        pytest.param({}, {"a": False}, [FieldChange("s.a", None, False)], id="a new field"),
        pytest.param({"a": 1}, {"a": True}, [FieldChange("s.a", 1, True)], id="another type"),
        pytest.param(
            {"a": [1, 2]}, {"a": [1, 3, 4]}, [FieldChange("s.a[1]", 2, 3), FieldChange("s.a[2]", None, 4)], id="a list"
        ),
        pytest.param(
            {"tasks": [{"alias": "x", "p": 1}]},
            {"tasks": [{"alias": "new"}, {"alias": "x", "p": 2}]},
            [FieldChange("s.tasks[alias=x].p", 1, 2), FieldChange("s.tasks[alias=new]", None, {"alias": "new"})],
            id="entries are found by their name",
        ),
        pytest.param({"r": {"kuscia.io/b": "1"}}, {"r": {}}, [FieldChange('s.r."kuscia.io/b"', "1", None)], id="dotted key"),
    ],
)
def test_fields(before: Any, after: Any, changes: list[FieldChange]) -> None:
    assert list(field_changes(before, after, "s")) == changes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "name", "alias"]), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_nothing_differs_from_itself(value: Any) -> None:
    assert list(field_changes(value, value, "x")) == []


@given(st.dictionaries(st.sampled_from("abc"), JSON), st.dictionaries(st.sampled_from("abc"), JSON))
def test_what_differs_is_found(before: Any, after: Any) -> None:
    if repr(before) != repr(after) and before != after:
        assert list(field_changes(before, after, "x"))


def test_two_runs() -> None:
    old, new = kuscia_job("train", phase="Failed"), kuscia_job("train-rerun-1", phase="Succeeded", maxParallelism=1)
    old["spec"]["tasks"][0]["taskID"] = "a"
    pods = {"alice/p": {"podName": "p", "namespace": "alice", "podPhase": "Failed", "nodeName": "n1"}}
    times = {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:30Z"}
    old_tree = build_tree(old, [task("first", phase="Failed", reason="OOMKilled", attempts=3, podStatuses=pods, **times)])
    new_tree = build_tree(new, [task("first", phase="Succeeded", attempts=1)])
    found = diff((old, old_tree), (new, new_tree))
    assert found.spec == [FieldChange("spec.maxParallelism", 2, 1)]
    [first, then] = found.tasks
    assert first.before is not None
    assert (first.before.phase, first.before.duration_s, first.before.attempts, first.before.nodes) == (
        "Failed",
        90.0,
        3,
        ["n1"],
    )
    assert not first.is_same
    assert then.is_same
    assert found.job.before is not None
    assert found.job.before.phase == "Failed"
