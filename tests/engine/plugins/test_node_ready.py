"""NodeReady: the Ready condition, and pods that bear its absence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.engine.events import NodeGone, NodeSeen
from muster.engine.facts import ConditionFacts, NodeFacts, NodeStatusFacts
from muster.engine.plugins.node_ready import NodeReady
from muster.objects.reasons import Reason
from tests.engine.asking import allowed, attached, explained
from tests.engine.building import node, pod, state_of


def reporting(name: str, status: str, type: str = "Ready") -> NodeFacts:
    conditions = [ConditionFacts(type="MemoryPressure", status="False"), ConditionFacts(type=type, status=status)]
    return msgspec.structs.replace(node(name), status=NodeStatusFacts(conditions=conditions))


NODES = [node("a"), reporting("b", "True"), reporting("c", "False"), reporting("d", "Unknown"), reporting("e", "True", "Other")]


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        pytest.param([], "abe", id="not ready and unknown take nothing"),
        pytest.param([{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}], "abce", id="bears not ready"),
        pytest.param([{"key": "node.kubernetes.io/unreachable", "operator": "Exists"}], "abde", id="bears unreachable"),
        pytest.param([{"operator": "Exists"}], "abcde", id="bears everything"),
        pytest.param(
            [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "abe",
            id="the default toleration lets pods stay, not come",
        ),
    ],
)
def test_filter(tolerations: list[dict[str, Any]], expected: str) -> None:
    assert allowed(attached(state_of(NODES), NodeReady()), pod("p", tolerations=tolerations)) == list(expected)


def test_condition_moves_with_its_node() -> None:
    state = state_of([reporting("b", "False"), reporting("c", "True")])
    plugin = attached(state, NodeReady())
    assert allowed(plugin, pod("p")) == ["c"]
    assert explained(plugin, pod("p")) == (Reason.NODE_NOT_READY, [])
    state.apply_node(NodeSeen(reporting("a", "True")))
    state.flush_nodes()
    assert allowed(plugin, pod("p")) == ["a", "c"]
    state.apply_node(NodeSeen(reporting("b", "True")))
    state.apply_node(NodeGone("a"))
    state.flush_nodes()
    assert allowed(plugin, pod("p")) == ["b", "c"]
