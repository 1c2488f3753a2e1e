"""Which pods a disruption budget covers, and which victims are one too many."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.budgets import Budgets, excess
from muster.engine.facts import BudgetFacts
from muster.engine.pods import PodRecord
from tests.engine.building import pod, state_of


def budget(
    name: str, allowed: int, selector: Any, *, namespace: str = "default", disrupted: tuple[str, ...] = ()
) -> BudgetFacts:
    raw = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed, "disruptedPods": dict.fromkeys(disrupted, "2026-01-01T00:00:00Z")},
    }
    return msgspec.convert(raw, BudgetFacts)


def book(*budgets: BudgetFacts, ending: list[PodRecord] | None = None) -> Budgets:
    return Budgets({(b.metadata.namespace, b.metadata.name): b for b in budgets}, ending or [])


def records(*labels: str, namespace: str = "default") -> list[PodRecord]:
    """Pods p0, p1, ...; each with label app, or without labels for ""."""
    state = state_of()
    made = [pod(f"p{i}", namespace=namespace, labels={"app": a} if a else {}) for i, a in enumerate(labels)]
    return [state.see_pod(one) for one in made]


DB = {"matchLabels": {"app": "db"}}


@pytest.mark.parametrize(
    ("selector", "covered"),
    [
        pytest.param(DB, ["p0"], id="labels"),
        pytest.param({}, ["p0", "p1", "p2"], id="an empty selector covers the namespace"),
        pytest.param(None, [], id="no selector covers nothing"),
        pytest.param(
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]},
            ["p1", "p2"],
            id="also without labels",
        ),
        pytest.param({"matchLabels": {"not a key!": "x"}}, ["p0", "p1", "p2"], id="unreadable protects all"),
    ],
)
def test_selectors(selector: Any, covered: list[str]) -> None:
    found = book(budget("b", 0, selector)).violating(records("db", "web", ""))
    assert [one.name for one in found] == covered


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        pytest.param(0, ["p0", "p1", "p2"], id="none"),
        pytest.param(2, ["p2"], id="the first ones use it up"),
        pytest.param(3, [], id="enough"),
        pytest.param(-1, ["p0", "p1", "p2"], id="below nothing is nothing"),
    ],
)
def test_allowance(allowed: int, expected: list[str]) -> None:
    found = book(budget("b", allowed, DB)).violating(records("db", "db", "db"))
    assert [one.name for one in found] == expected


def test_another_namespace() -> None:
    assert book(budget("b", 0, {}, namespace="other")).violating(records("db")) == []


def test_disrupted_already() -> None:
    found = book(budget("b", 1, DB, disrupted=("p0",))).violating(records("db", "db", "db"))
    assert [one.name for one in found] == ["p2"]


def test_two_budgets_both_count() -> None:
    found = book(budget("a", 2, DB), budget("b", 0, {})).violating(records("web", "db"))
    assert [one.name for one in found] == ["p0", "p1"]


def test_victims_of_a_moment_ago_are_charged() -> None:
    pods = records("db", "db", "db")
    facts = budget("b", 2, DB)
    pods[0].is_victim = True
    assert [p.name for p in book(facts, ending=[pods[0]]).violating(pods[1:])] == ["p2"]
    pods[0].is_ending = True
    assert book(facts, ending=[pods[0]]).violating(pods[1:]) == [], "once the API shows it, the budget's own count has it"


def test_update_takes_in_what_changed() -> None:
    budgets = book(budget("b", 0, DB))
    pods = records("db")
    assert budgets.violating(pods) == pods
    budgets.update({("default", "b"): budget("b", 1, DB)})
    assert budgets.violating(pods) == []
    budgets.update({})
    assert len(budgets) == 0
    assert budgets.violating(pods) == []


@given(
    labels=st.lists(st.sampled_from(["x", "y", ""]), min_size=1, max_size=8),
    allowed=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    nodes=st.lists(st.integers(0, 2), min_size=8, max_size=8),
)
def test_in_vectors_as_one_by_one(labels: list[str], allowed: tuple[int, int], nodes: list[int]) -> None:
    pods = records(*labels)
    budgets = book(budget("a", allowed[0], {"matchLabels": {"app": "x"}}), budget("b", allowed[1], {}))
    at = np.array(sorted(nodes[: len(pods)]))
    found = excess(budgets.charges(pods), budgets.allowed, np.searchsorted(at, at))
    for node in set(at.tolist()):
        there = [p for p, n in zip(pods, at.tolist(), strict=True) if n == node]
        breaking = budgets.violating(there)
        assert [p in breaking for p in there] == found[at == node].astype(bool).tolist()
