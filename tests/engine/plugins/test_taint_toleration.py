"""TaintToleration: what keeps pods off, what only costs score, and which tolerations are missing."""

from __future__ import annotations

from typing import Any

import pytest

from muster.engine.plugins.taint_toleration import TaintToleration
from muster.objects.reasons import Reason
from tests.engine.asking import allowed, attached, explained, normalised, scored
from tests.engine.building import node, pod, state_of


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> dict[str, str]:
    return {"key": key, "effect": effect, "value": value}


NODES = [
    node("a"),
    node("b", taints=[taint("gpu", value="a100")]),
    node("c", taints=[taint("gpu", value="a100"), taint("down", "NoExecute")]),
    node("d", taints=[taint("slow", "PreferNoSchedule")]),
    node("e", taints=[taint("slow", "PreferNoSchedule"), taint("far", "PreferNoSchedule", "7")]),
]


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        pytest.param([], ["a", "d", "e"], id="none"),
        pytest.param([{"key": "gpu", "value": "a100"}], ["a", "b", "d", "e"], id="by value"),
        pytest.param([{"key": "gpu", "value": "v100"}], ["a", "d", "e"], id="by another value"),
        pytest.param([{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}], ["a", "d", "e"], id="another effect"),
        pytest.param([{"operator": "Exists"}], ["a", "b", "c", "d", "e"], id="everything"),
        pytest.param(
            [{"key": "gpu", "operator": "Exists"}, {"key": "down", "operator": "Exists", "tolerationSeconds": 5}],
            ["a", "b", "c", "d", "e"],
            id="each taint by its own",
        ),
    ],
)
def test_filter(tolerations: list[dict[str, Any]], expected: list[str]) -> None:
    assert allowed(attached(state_of(NODES), TaintToleration()), pod("p", tolerations=tolerations)) == expected


@pytest.mark.parametrize(
    ("tolerations", "raw", "scaled"),
    [
        pytest.param([], [0, 0, 0, 1, 2], [100, 100, 100, 50, 0], id="none"),
        pytest.param([{"key": "slow", "operator": "Exists"}], [0, 0, 0, 0, 1], [100, 100, 100, 100, 0], id="one"),
        pytest.param(
            [{"key": "slow", "operator": "Exists", "effect": "NoSchedule"}],
            [0, 0, 0, 1, 2],
            [100, 100, 100, 50, 0],
            id="a toleration of another effect does not count",
        ),
        pytest.param([{"operator": "Exists"}], [0] * 5, [100] * 5, id="everything"),
        pytest.param([{"key": "far", "operator": "Gt", "value": "6"}], [0, 0, 0, 1, 1], [100, 100, 100, 0, 0], id="by number"),
    ],
)
def test_score(tolerations: list[dict[str, Any]], raw: list[int], scaled: list[int]) -> None:
    plugin = attached(state_of(NODES), TaintToleration())
    facts = pod("p", tolerations=tolerations)
    assert list(scored(plugin, facts).values()) == raw
    assert list(normalised(plugin, facts).values()) == scaled


def test_explain_names_the_tolerations_that_open_most_nodes() -> None:
    reason, shortfalls = explained(attached(state_of(NODES), TaintToleration()), pod("p"))
    assert reason is Reason.TAINT_NOT_TOLERATED
    assert [one.resource for one in shortfalls] == ["toleration of gpu=a100:NoSchedule", "toleration of down:NoExecute"]
