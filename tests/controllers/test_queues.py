"""The status of Queues: sums over the queues below, who is next, and what is wrong with one."""

from __future__ import annotations

from typing import Any

import pytest

from muster.controllers.actions import PatchStatus
from muster.controllers.queues import Tree, gathered, plan, problem_of
from muster.objects.kinds.muster_queues import Queue
from muster.objects.patch.merge import apply_merge_patch
from muster.objects.status import Raw
from muster.objects.view import view_of
from muster.policy.places import Line

NOW = 1_800_000_000.0
TREE = Tree({"top": "", "a": "top", "b": "a", "other": ""}, frozenset({"balanced"}), frozenset({"east"}))


def queue(name: str = "top", status: Raw | None = None, **spec: Any) -> Raw:
    meta = {"name": name, "uid": "u", "generation": 2, "resourceVersion": "5"}
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "Queue", "metadata": meta, "spec": spec, "status": status or {}}


def decided(raw: Raw, lines: dict[str, Line] | None, tree: Tree = TREE) -> list[PatchStatus]:
    return plan(raw, view_of(Queue, raw), tree, gathered(lines, tree) if lines is not None else None, NOW)


LINES = {
    "top": Line(queue="top", waiting=1, head="Job/team/x"),
    "a": Line(queue="a", waiting=2, running=1, running_request={"cpu": 1500}, waiting_request={"cpu": 500, "memory": 2**30}),
    "b": Line(queue="b", running=1, held=1, running_request={"cpu": 500, "bandwidth-egress": 2 * 10**8}),
    "other": Line(queue="other", waiting=99),
}


def test_a_queue_counts_those_below_it() -> None:
    [action] = decided(queue(), LINES)
    assert action.status["usage"] == {
        "jobsRunning": 2,
        "jobsWaiting": 3,
        "concurrent": {"bandwidth-egress": "200Mbps", "cpu": "2"},
        "submitted": {"bandwidth-egress": "200Mbps", "cpu": "2500m", "memory": "1Gi"},
    }
    assert action.status["held"] == 1
    assert "team/x" not in str(action.status), "everybody who submits reads queues"
    assert action.status["observedGeneration"] == 2


def test_whose_work_is_next_is_taken_out_again_where_it_was_written() -> None:
    [action] = decided({**queue(), "status": {"head": "team/x"}}, LINES)
    assert action.status["head"] is None


def test_what_is_so_is_not_written_again() -> None:
    raw = queue()
    [action] = decided(raw, LINES)
    raw["status"] = apply_merge_patch(raw["status"], action.status)
    assert decided(raw, LINES) == []


def test_what_is_no_longer_used_is_taken_away_and_what_others_wrote_stays() -> None:
    raw = queue(status={"usage": {"concurrent": {"cpu": "2"}, "spent": 3}})
    [action] = decided(raw, {"top": Line(queue="top")})
    after = apply_merge_patch(raw["status"], action.status)
    assert after["usage"]["concurrent"] == {}
    assert after["usage"]["spent"] == 3


def test_without_a_scheduler_the_numbers_stay() -> None:
    raw = queue(status={"usage": {"jobsWaiting": 4}, "held": 1})
    [action] = decided(raw, None)
    assert set(action.status) == {"observedGeneration", "conditions"}


@pytest.mark.parametrize(
    ("raw", "tree", "words"),
    [
        pytest.param(queue(), TREE, "", id="nothing"),
        pytest.param(queue(pools=["east"]), TREE, "", id="a pool that is there"),
        pytest.param(queue(pools=["west"]), TREE, "no NodePool west", id="no pool"),
        pytest.param(
            queue(policy="mine", pools=["west"]),
            TREE,
            "mine; create it, or name another; spec.pools: there is",
            id="two faults",
        ),
        pytest.param(queue(policy="mine"), TREE, "no SchedulingPolicy mine", id="no policy"),
        pytest.param(queue("a", parent="gone"), Tree({"a": "gone"}, frozenset({"balanced"})), "no Queue gone", id="no parent"),
        pytest.param(
            queue("a", parent="b"), Tree({"a": "b", "b": "a"}, frozenset({"balanced"})), "below itself", id="a circle"
        ),
        pytest.param(
            queue("c", parent="a"), Tree({"a": "b", "b": "a", "c": "a"}, frozenset({"balanced"})), "", id="under a circle"
        ),
    ],
)
def test_problems(raw: Raw, tree: Tree, words: str) -> None:
    found = problem_of(view_of(Queue, raw), tree)
    assert bool(found) == bool(words)
    assert words in found
    [action] = decided(raw, None, tree)
    [condition] = action.status["conditions"]
    assert condition["status"] == ("False" if words else "True")


def test_lines_are_counted_once_in_circles() -> None:
    lines = {"a": Line(queue="a"), "b": Line(queue="b")}
    found = gathered(lines, Tree({"a": "b", "b": "a"}))
    assert {name: [line.queue for line in some] for name, some in found.items()} == {"a": ["a", "b"], "b": ["a", "b"]}


def test_a_thousand_queues_are_gone_through_once() -> None:
    """Looked up, not gone over: what one queue costs does not grow with the others."""

    class Counting(dict[str, str]):
        looks = 0

        def get(self, key: str, default: Any = None) -> Any:
            self.looks += 1
            return super().get(key, default)

        def __iter__(self) -> Any:
            raise AssertionError("nobody goes over all queues")

    parents = Counting({f"q{n}": f"team{n // 10}" for n in range(1000)} | {f"team{n}": "" for n in range(100)})
    tree = Tree(parents, frozenset({"balanced"}))
    lines = gathered({f"q{n}": Line(queue=f"q{n}", waiting=1) for n in range(1000)}, tree)
    assert parents.looks <= 2 * 1000
    parents.looks = 0
    raw = queue("team7", policy="balanced")
    [action] = plan(raw, view_of(Queue, raw), tree, lines, NOW)
    assert action.status["usage"]["jobsWaiting"] == 10
    assert parents.looks <= 2
