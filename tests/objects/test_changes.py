"""What a write did, in words."""

from __future__ import annotations

from typing import Any

import pytest

from muster.objects.changes import TOLD_MAX, told_change


def spec(**values: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": values}


def noted(**notes: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {f"muster.dev/{key}": value for key, value in notes.items()}}}


def staged(stage: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"kuscia.secretflow/job-stage": stage}}, "spec": {"initiator": stage}}


@pytest.mark.parametrize(
    ("kind", "before", "after", "told"),
    [
        pytest.param("Job", noted(), noted(hold="repair"), "Held: repair", id="a hold"),
        pytest.param("Job", noted(pin="1", hold="x"), noted(), "Released; Unpinned", id="two acts"),
        pytest.param("Job", spec(queue="a"), spec(queue="b"), "Moved: from a to b", id="a move is told once"),
        pytest.param(
            "Job", spec(state="Running"), spec(state="Cancelled"), "spec.state: Running -> Cancelled", id="a command on a job"
        ),
        pytest.param("KusciaJob", staged("Start"), staged("Stop"), "stage Stop", id="a stage, and nothing of the spec"),
        pytest.param(
            "User",
            spec(limits={"concurrent": {"cpu": 4}}),
            spec(limits={"concurrent": {"cpu": 12}, "jobsRunning": 3}),
            "spec.limits.concurrent.cpu: 4 -> 12; spec.limits.jobsRunning: nothing -> 3",
            id="limits",
        ),
        pytest.param("UserGroup", spec(limits={"jobsRunning": 3}), spec(), "spec.limits.jobsRunning: 3 -> nothing", id="gone"),
        pytest.param("Queue", spec(pools=["a"]), spec(pools=["a", "b"]), "spec.pools: ['a'] -> ['a', 'b']", id="a list"),
        pytest.param("Queue", spec(weight=1), spec(weight=1), "", id="nothing"),
        pytest.param("Secret", spec(a="secret"), spec(a="other"), "", id="other kinds are nobody's business"),
        pytest.param("Queue", {}, {"spec": None}, "", id="no spec"),
    ],
)
def test_what_is_told(kind: str, before: dict[str, Any], after: dict[str, Any], told: str) -> None:
    assert told_change(kind, before, after) == told


def test_it_is_bounded() -> None:
    many = told_change("Queue", spec(), spec(**{f"f{number}": "x" * 1000 for number in range(50)}))
    assert many.endswith(f"; and {50 - TOLD_MAX} more")
    assert len(many) < 600
