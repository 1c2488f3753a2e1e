"""Plans that were left: what is finished, what is undone."""

from __future__ import annotations

import pytest
from tests.engine.building import pod

from muster.controllers.scheduler_binding import Outcome
from muster.controllers.scheduler_plans import Plan, Resumed, partly_bound, placement_of, plan_name, resumed
from muster.engine.decisions import PlacedPod
from muster.engine.facts import PodFacts
from muster.objects.catalog import CATALOG
from muster.objects.kinds.muster import Placement
from muster.objects.validation import validate_object
from muster.objects.view import view_of

UNIT = "PodGroup/default/g"


def placed(name: str, node: str) -> PlacedPod:
    return PlacedPod(f"uid-default-{name}", "default", name, node, {"a": "1"}, {"l": "2"})


def plan(epoch: int = 1, **nodes: str) -> Placement:
    return view_of(Placement, placement_of(UNIT, [placed(n, at) for n, at in nodes.items()], epoch=epoch, now=1e9))


def resume(plans: list[Placement], pods: list[PodFacts], nodes: str = "ab") -> list[Resumed]:
    by_key = {(p.metadata.namespace, p.metadata.name): p for p in pods}
    return resumed(plans, lambda namespace, name: by_key.get((namespace, name)), lambda node: node in nodes)


@pytest.mark.parametrize(
    ("pods", "nodes", "binds", "lost"),
    [
        pytest.param([pod("x"), pod("y")], "ab", ["x", "y"], 0, id="nothing bound yet: finished"),
        pytest.param([pod("x", node="a"), pod("y")], "ab", ["y"], 0, id="half bound: finished"),
        pytest.param([pod("x", node="a"), pod("y", node="b")], "ab", [], 0, id="all bound: only to be removed"),
        pytest.param([pod("x")], "ab", [], 1, id="a pod is gone and nothing bound: undone"),
        pytest.param([pod("x"), pod("y")], "a", [], 1, id="a node is gone and nothing bound: undone"),
        pytest.param([pod("x", node="a")], "ab", [], 1, id="a pod is gone, the other bound: nothing left to do"),
        pytest.param([pod("x"), pod("y", node="b")], "b", [], 1, id="a node is gone, the other bound: left to the engine"),
        pytest.param([pod("x"), pod("y", uid="another")], "ab", [], 1, id="replaced by a namesake"),
    ],
)
def test_what_is_done_about_a_plan(pods: list[PodFacts], nodes: str, binds: list[str], lost: int) -> None:
    [found] = resume([plan(x="a", y="b")], pods, nodes)
    assert [one.name for one in found.pods] == binds
    assert len(found.lost) == lost
    assert all((one.annotations, one.labels) == ({"a": "1"}, {"l": "2"}) for one in found.pods)


def test_the_last_decision_about_a_pod_counts() -> None:
    older, newer = resume([plan(epoch=2, x="b"), plan(epoch=1, x="a", y="b")], [pod("x"), pod("y")])
    assert [(one.name, one.node) for one in newer.pods] == [("x", "b")]
    assert [(one.name, one.node) for one in older.pods] == [("y", "b")]


def test_a_plan_is_a_valid_placement_and_the_same_decision_has_the_same_name() -> None:
    resource = CATALOG.by_kind("muster.dev", "Placement")
    for unit in (UNIT, "PodGroup/default/" + "x" * 300, "Pod/a/Ü.b_c", "//"):
        pods = [placed("x", "a")]
        raw = placement_of(unit, pods, epoch=1, now=1e9)
        assert validate_object(resource, raw, None) == []
        assert raw["metadata"]["name"] == plan_name(unit, pods) != plan_name(unit, [placed("x", "b")])


def test_a_unit_that_is_bound_in_part_is_told() -> None:
    one, other = placed("x", "a"), placed("y", "b")
    made = Plan("p", UNIT, (one, other), outcomes={one.uid: (one, Outcome()), other.uid: (other, Outcome("refused"))})
    told = partly_bound(made)
    assert told is not None
    assert set(told) == {one.uid, other.uid}
    assert "refused" in told[one.uid]
    made.outcomes[other.uid] = (other, Outcome())
    assert partly_bound(made) is None
