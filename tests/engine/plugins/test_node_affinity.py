"""NodeAffinity: what refuses nodes, what scores them, which of the two codes is given, and the profile's own affinity."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.engine.facts import PodFacts
from muster.engine.plugins.node_affinity import NodeAffinity, NodeAffinityArgs
from muster.objects.reasons import Reason
from tests.engine.asking import allowed, attached, explained, normalised, scored
from tests.engine.building import node, pod, state_of

NODES = [
    node("a", labels={"zone": "east", "disk": "ssd"}),
    node("b", labels={"zone": "east"}),
    node("c", labels={"zone": "west", "disk": "ssd"}),
]


def term(key: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}


def wants(
    *required: dict[str, Any], selector: dict[str, str] | None = None, prefers: list[tuple[int, dict[str, Any]]] | None = None
) -> PodFacts:
    affinity: dict[str, Any] = {}
    if required:
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": list(required)}
    if prefers:
        terms = [{"weight": weight, "preference": one} for weight, one in prefers]
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = terms
    return pod("p", nodeSelector=selector or {}, affinity={"nodeAffinity": affinity})


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(pod("p"), ["a", "b", "c"], id="nothing asked for"),
        pytest.param(wants(selector={"zone": "east"}), ["a", "b"], id="selector"),
        pytest.param(wants(selector={"zone": "east", "disk": "ssd"}), ["a"], id="all labels of the selector"),
        pytest.param(wants(term("zone", "west")), ["c"], id="affinity"),
        pytest.param(wants(term("zone", "west"), term("disk", "ssd")), ["a", "c"], id="any of the terms"),
        pytest.param(wants(term("disk", "ssd"), selector={"zone": "east"}), ["a"], id="selector and affinity"),
        pytest.param(wants({}), [], id="an empty term"),
        pytest.param(wants(prefers=[(1, term("zone", "north"))]), ["a", "b", "c"], id="a preference refuses nobody"),
    ],
)
def test_filter(facts: PodFacts, expected: list[str]) -> None:
    assert allowed(attached(state_of(NODES), NodeAffinity()), facts) == expected


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param(wants(selector={"zone": "north"}), Reason.NODE_SELECTOR_MISMATCH, id="selector"),
        pytest.param(wants(term("zone", "north")), Reason.NODE_AFFINITY_MISMATCH, id="affinity"),
        pytest.param(wants(term("zone", "north"), selector={"zone": "north"}), Reason.NODE_SELECTOR_MISMATCH, id="both"),
        pytest.param(
            wants(term("zone", "north"), selector={"zone": "east"}),
            Reason.NODE_AFFINITY_MISMATCH,
            id="the selector only a third",
        ),
    ],
)
def test_explain(facts: PodFacts, reason: Reason) -> None:
    assert explained(attached(state_of(NODES), NodeAffinity()), facts) == (reason, [])


@pytest.mark.parametrize(
    ("prefers", "raw", "scaled"),
    [
        pytest.param([], [0, 0, 0], [0, 0, 0], id="no preference"),
        pytest.param([(10, term("zone", "east"))], [10, 10, 0], [100, 100, 0], id="one"),
        pytest.param([(30, term("zone", "east")), (10, term("disk", "ssd"))], [40, 30, 10], [100, 75, 25], id="weights add up"),
        pytest.param([(30, {}), (10, term("disk", "ssd"))], [10, 0, 10], [100, 0, 100], id="an empty term counts for nothing"),
        pytest.param([(1, term("disk", "ssd")), (2, term("disk", "ssd"))], [3, 0, 3], [100, 0, 100], id="the same twice"),
    ],
)
def test_score(prefers: list[tuple[int, dict[str, Any]]], raw: list[int], scaled: list[int]) -> None:
    plugin = attached(state_of(NODES), NodeAffinity())
    assert list(scored(plugin, wants(prefers=prefers)).values()) == raw
    assert list(normalised(plugin, wants(prefers=prefers)).values()) == scaled


def test_only_feasible_nodes_set_the_scale() -> None:
    plugin = attached(state_of(NODES), NodeAffinity())
    facts = wants(prefers=[(30, term("zone", "west")), (10, term("disk", "ssd"))])
    assert normalised(plugin, facts, [True, True, False])["a"] == 100


ADDED = {
    "addedAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term("disk", "ssd")]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference": term("zone", "west")}],
    }
}


def test_added_affinity_holds_beside_the_pods_own() -> None:
    plugin = attached(state_of(NODES), NodeAffinity(msgspec.convert(ADDED, NodeAffinityArgs)))
    assert allowed(plugin, pod("p")) == ["a", "c"]
    assert allowed(plugin, wants(selector={"zone": "east"})) == ["a"]
    assert scored(plugin, wants(prefers=[(3, term("zone", "east", "west"))])) == {"a": 3, "b": 3, "c": 8}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def preferred(weight: int, one: dict[str, Any]) -> dict[str, Any]:
    terms = [{"weight": weight, "preference": one}]
    return {"addedAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param({"addedAffinity": {}}, "neither required nor preferred", id="nothing in it"),
        pytest.param(required(), "is empty", id="no terms"),
        pytest.param(required(term("zone")), r"nodeSelectorTerms\[0\].*\"zone\"", id="no values"),
        pytest.param(preferred(0, term("a", "b")), "weight: 0 is not from 1 to 100", id="weight"),
        pytest.param(preferred(1, {}), "preference", id="an empty preference"),
        pytest.param({"addedAfinity": {}}, "addedAfinity", id="a misspelt field"),
    ],
)
def test_bad_arguments_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(args, NodeAffinityArgs)
