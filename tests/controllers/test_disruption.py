"""PodDisruptionBudget status: Kubernetes' arithmetic, promises to evictions, and what can't be computed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.controllers.actions import Emit, PatchStatus
from muster.controllers.disruption import BudgetView, PodFacts, plan
from muster.objects.status import Raw
from muster.objects.time import format_time, parse_time
from muster.objects.view import view_of

NOW = parse_time("2026-01-05T08:00:00Z")


def budget(spec: Raw, status: Raw | None = None) -> Raw:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "resourceVersion": "7", "generation": 3},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec},
        "status": status or {},
    }


def pods(ready: int, unready: int = 0, deleting: int = 0, controller: str = "rs") -> list[PodFacts]:
    made = [PodFacts(f"r{n}", True, False, controller) for n in range(ready)]
    made += [PodFacts(f"u{n}", False, False, controller) for n in range(unready)]
    return made + [PodFacts(f"d{n}", True, True, controller) for n in range(deleting)]


def status_of(raw: Raw, found: list[PodFacts], scales: dict[str, int] | None = None, now: float = NOW) -> dict[str, Any]:
    """The status after the plan is carried out."""
    result = plan(raw, view_of(BudgetView, raw), found, scales or {}, now)
    status = dict(raw["status"])
    for action in result.actions:
        if isinstance(action, PatchStatus):
            status.update(action.status)
    return status


def numbers(status: dict[str, Any]) -> tuple[int, int, int, int]:
    return status["expectedPods"], status["currentHealthy"], status["desiredHealthy"], status["disruptionsAllowed"]


@pytest.mark.parametrize(
    ("spec", "found", "scales", "expected"),
    [
        pytest.param({"minAvailable": 2}, pods(3), {}, (3, 3, 2, 1), id="one to spare"),
        pytest.param({"minAvailable": 2}, pods(2, unready=1), {}, (3, 2, 2, 0), id="an unready pod does not count"),
        pytest.param({"minAvailable": 2}, pods(1), {}, (1, 1, 2, 0), id="never below zero"),
        pytest.param({"minAvailable": 0}, pods(3), {}, (3, 3, 0, 3), id="zero lets all go"),
        pytest.param({"minAvailable": 1}, pods(2, deleting=1), {}, (3, 2, 1, 1), id="a pod on its way out does not count"),
        pytest.param({"minAvailable": 2}, [], {}, (0, 0, 2, 0), id="no pods, nothing to disrupt"),
        pytest.param({"minAvailable": "50%"}, pods(5), {"rs": 5}, (5, 5, 3, 2), id="percentages round up"),
        pytest.param({"minAvailable": "50%"}, pods(2), {"rs": 10}, (10, 2, 5, 0), id="of what the controller wants"),
        pytest.param({"minAvailable": "100%"}, pods(4), {"rs": 4}, (4, 4, 4, 0), id="all of them"),
        pytest.param({"maxUnavailable": 1}, pods(4), {"rs": 4}, (4, 4, 3, 1), id="at most one down"),
        pytest.param({"maxUnavailable": 1}, pods(3), {"rs": 4}, (4, 3, 3, 0), id="one is down already"),
        pytest.param({"maxUnavailable": "25%"}, pods(5), {"rs": 5}, (5, 5, 3, 2), id="25% of 5 is 2"),
        pytest.param({"maxUnavailable": "200%"}, pods(3), {"rs": 3}, (3, 3, 0, 3), id="more than all"),
        pytest.param({"maxUnavailable": 0}, pods(3), {"rs": 3}, (3, 3, 3, 0), id="none may go"),
        pytest.param({"maxUnavailable": 1}, pods(3), {}, (3, 3, 2, 1), id="a controller without replicas wants what it has"),
        pytest.param({"maxUnavailable": 1}, pods(2, controller=""), {}, (2, 2, 1, 1), id="pods on their own count themselves"),
        pytest.param(
            {"maxUnavailable": 1},
            [*pods(2, controller="a"), PodFacts("x", True, False, "b")],
            {"a": 3, "b": 1},
            (4, 3, 3, 0),
            id="two controllers add up",
        ),
        pytest.param({}, pods(2), {}, (2, 2, 1, 1), id="neither set means one must stay"),
    ],
)
def test_numbers(spec: Raw, found: list[PodFacts], scales: dict[str, int], expected: tuple[int, int, int, int]) -> None:
    status = status_of(budget(spec), found, scales)
    assert numbers(status) == expected
    assert status["observedGeneration"] == 3
    (condition,) = status["conditions"]
    assert condition["type"] == "DisruptionAllowed"
    assert condition["status"] == ("True" if expected[3] else "False")
    assert condition["reason"] == ("SufficientPods" if expected[3] else "InsufficientPods")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param({"minAvailable": "half"}, "spec.minAvailable", id="a word"),
        pytest.param({"minAvailable": "-5%"}, "spec.minAvailable", id="negative percentage"),
        pytest.param({"maxUnavailable": -1}, "spec.maxUnavailable", id="negative number"),
        pytest.param({"maxUnavailable": "%"}, "spec.maxUnavailable", id="no number"),
    ],
)
def test_what_makes_no_sense_allows_nothing_and_says_why(spec: Raw, field: str) -> None:
    status = status_of(budget(spec), pods(5))
    assert status["disruptionsAllowed"] == 0
    assert status["conditions"][0]["reason"] == "SyncFailed"
    assert field in status["conditions"][0]["message"]


def test_a_promise_to_an_eviction_counts_until_the_pod_is_deleted() -> None:
    raw = budget({"minAvailable": 2}, {"disruptedPods": {"r0": format_time(NOW - 30), "gone": format_time(NOW)}})
    result = plan(raw, view_of(BudgetView, raw), pods(4), {}, NOW)
    (patch,) = result.actions
    assert isinstance(patch, PatchStatus)
    assert patch.status["currentHealthy"] == 3
    assert patch.status["disruptionsAllowed"] == 1
    assert patch.status["disruptedPods"] == {"gone": None}, "one that is gone is taken out, the other stays"
    assert result.requeue_after_s == 90


def test_a_promise_that_was_not_kept_runs_out_and_is_reported() -> None:
    raw = budget({"minAvailable": 2}, {"disruptedPods": {"r0": format_time(NOW - 121)}})
    result = plan(raw, view_of(BudgetView, raw), pods(4), {}, NOW)
    emit, patch = result.actions
    assert isinstance(emit, Emit)
    assert (emit.type, emit.reason) == ("Warning", "NotDeleted")
    assert "r0" in emit.message
    assert isinstance(patch, PatchStatus)
    assert patch.status["disruptionsAllowed"] == 2
    assert patch.status["disruptedPods"] == {"r0": None}
    assert result.requeue_after_s is None


def test_a_pod_being_deleted_fulfils_its_promise() -> None:
    raw = budget({"minAvailable": 1}, {"disruptedPods": {"d0": format_time(NOW)}})
    result = plan(raw, view_of(BudgetView, raw), pods(2, deleting=1), {}, NOW)
    assert isinstance(result.actions[0], PatchStatus)
    assert result.actions[0].status["disruptedPods"] == {"d0": None}


def test_the_write_names_the_version_it_was_planned_from() -> None:
    raw = budget({"minAvailable": 1})
    (patch,) = plan(raw, view_of(BudgetView, raw), pods(2), {}, NOW).actions
    assert isinstance(patch, PatchStatus)
    assert (patch.target.uid, patch.target.resource_version) == ("u1", "7"), "an eviction in between must win"


@given(
    spec=st.one_of(
        st.fixed_dictionaries({"minAvailable": st.one_of(st.integers(0, 20), st.integers(0, 150).map(lambda n: f"{n}%"))}),
        st.fixed_dictionaries({"maxUnavailable": st.one_of(st.integers(0, 20), st.integers(0, 150).map(lambda n: f"{n}%"))}),
    ),
    ready=st.integers(0, 10),
    unready=st.integers(0, 5),
    deleting=st.integers(0, 5),
    scale=st.integers(0, 20),
)
def test_planning_again_changes_nothing_and_allowed_pods_may_go(
    spec: Raw, ready: int, unready: int, deleting: int, scale: int
) -> None:
    found = pods(ready, unready, deleting)
    first = status_of(budget(spec), found, {"rs": scale})
    again = budget(spec, first)
    assert plan(again, view_of(BudgetView, again), found, {"rs": scale}, NOW + 5).actions == []
    expected, healthy, desired, allowed = numbers(first)
    assert 0 <= allowed <= healthy == ready
    assert allowed == 0 or healthy - allowed >= desired, "after all allowed disruptions, enough are left"
    assert allowed == 0 or expected > 0
