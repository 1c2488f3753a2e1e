"""Dividing a group's limits: the parts never come to more than the whole, however often it is re-divided."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.objects.kinds.muster import User, UserGroup
from muster.objects.view import view_of
from muster.quota.dividing import administered, beyond_division, divided, problems_of, shares_of
from muster.quota.nodes import NodeSpec
from muster.quota.reading import node_of
from muster.quota.tree import QuotaTree


def group(name: str, parent: str = "", **limits: Any) -> NodeSpec:
    raw = {"metadata": {"name": name}, "spec": {"parent": parent, "limits": limits, "budget": limits.pop("budget", None)}}
    return node_of(view_of(UserGroup, raw), name)


def user(name: str, parent: str, **limits: Any) -> NodeSpec:
    return node_of(view_of(User, {"metadata": {"name": name}, "spec": {"group": parent, "limits": limits}}), name)


def tree_of(*specs: NodeSpec) -> QuotaTree:
    tree = QuotaTree()
    for spec in specs:
        tree.put(spec)
    return tree


TEN: dict[str, Any] = {"concurrent": {"cpu": 10}}


@pytest.mark.parametrize(
    ("there", "new", "field"),
    [
        pytest.param(
            [group("g", **TEN), user("a", "g", **TEN)], user("b", "g", concurrent={"cpu": 1}), "concurrent", id="a user"
        ),
        pytest.param([group("g", **TEN)], user("b", "g", **TEN), "", id="the whole to one"),
        pytest.param([group("g", **TEN), user("a", "g", **TEN)], user("b", "g"), "", id="no limit of its own"),
        pytest.param(
            [group("top", **TEN), group("g", "top"), user("a", "g", concurrent={"cpu": 6})],
            user("b", "g", concurrent={"cpu": 5}),
            "concurrent",
            id="through a group without limits",
        ),
        pytest.param([group("g", **TEN), user("a", "g", **TEN)], group("g", concurrent={"cpu": 9}), "concurrent", id="lowered"),
        pytest.param(
            [group("g", jobsRunning=3), user("a", "g", jobsRunning=2)], user("b", "g", jobsRunning=2), "jobsRunning", id="jobs"
        ),
        pytest.param(
            [group("g", consumption=[{"resource": "cpu", "amount": 5}])],
            user("b", "g", consumption=[{"resource": "cpu", "amount": 6}]),
            "consumption[cpu per Month]",
            id="core-hours",
        ),
        pytest.param(
            [group("g", consumption=[{"resource": "cpu", "amount": 5}])],
            user("b", "g", consumption=[{"resource": "cpu", "amount": 6, "period": "Year"}]),
            "",
            id="another period",
        ),
        pytest.param(
            [group("g", budget={"amount": 10})], group("h", "g", budget={"amount": 11}), "spec.budget.amount", id="budget"
        ),
    ],
)
def test_problems(there: list[NodeSpec], new: NodeSpec, field: str) -> None:
    found = problems_of(tree_of(*there), new)
    assert (field in found[0]) if field else not found, found


def test_what_was_wrong_before_may_be_mended_step_by_step() -> None:
    tree = tree_of(group("g", concurrent={"cpu": 5}), user("a", "g", **TEN), user("b", "g", concurrent={"cpu": 4}))
    assert problems_of(tree, user("a", "g", concurrent={"cpu": 8})) == []
    assert problems_of(tree, user("a", "g", concurrent={"cpu": 11})) != []
    assert problems_of(tree, user("b", "g", concurrent={"cpu": 5})) != []


def test_circles_and_depth() -> None:
    tree = tree_of(*(group(f"g{n}", f"g{n + 1}") for n in range(20)))
    assert "would stand above itself" in problems_of(tree, group("g19", "g0"))[0]
    assert "the limit is 16" in problems_of(tree, group("new", "g0"))[0]
    assert problems_of(tree, group("new", "g10")) == []


STEPS = st.lists(
    st.tuples(st.sampled_from("abcde"), st.sampled_from(["", "g", "h", "top"]), st.one_of(st.none(), st.integers(0, 12))),
    max_size=40,
)


@given(STEPS)
def test_no_order_of_accepted_divisions_exceeds_the_whole(steps: list[tuple[str, str, int | None]]) -> None:
    tree = tree_of(group("top", **TEN), group("g", "top"), group("h", "top", concurrent={"cpu": 4}))
    for name, parent, cpu in steps:
        limits = {} if cpu is None else {"concurrent": {"cpu": cpu}}
        spec = user(name, parent, **limits)
        if not problems_of(tree, spec):
            tree.put(spec)
        for kind, one in (("UserGroup", "top"), ("UserGroup", "h")):
            node = tree.find(kind, one)  # type: ignore[arg-type]
            assert node is not None
            whole = shares_of(node.limits)
            assert all(part <= whole[share] for share, part in divided(tree, node).items() if share in whole)


def test_who_administers_whom() -> None:
    tree = tree_of(group("top"), group("g", "top"), group("h", "top"), user("a", "g"), user("b", "h"))
    admins = {"top": frozenset({"root"}), "g": frozenset({"gil"})}
    assert administered(tree, admins, "gil") == {("User", "a")}
    assert administered(tree, admins, "root") == {("UserGroup", "g"), ("UserGroup", "h"), ("User", "a"), ("User", "b")}
    assert administered(tree, admins, "a") == frozenset()


def test_what_an_administrator_may_not_change() -> None:
    old = {"group": "g", "limits": {}, "usernames": ["ann"]}
    new = {"group": "h", "limits": {"jobsRunning": 1}, "usernames": ["eve"]}
    assert beyond_division(old, new, "group") == ["spec.usernames"]
