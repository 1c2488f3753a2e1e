"""NodeUnschedulable: cordoned nodes, and pods that may go there nevertheless."""

from __future__ import annotations

from typing import Any

import pytest

from muster.engine.events import NodeSeen
from muster.engine.plugins.node_unschedulable import NodeUnschedulable
from tests.engine.asking import allowed, attached
from tests.engine.building import node, pod, state_of

KEY = "node.kubernetes.io/unschedulable"


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        pytest.param([], ["b"], id="kept off"),
        pytest.param([{"key": KEY, "operator": "Exists"}], ["a", "b"], id="tolerated"),
        pytest.param([{"operator": "Exists"}], ["a", "b"], id="tolerates everything"),
        pytest.param([{"key": KEY, "operator": "Exists", "effect": "NoExecute"}], ["b"], id="another effect"),
        pytest.param([{"key": "other", "operator": "Exists"}], ["b"], id="another taint"),
    ],
)
def test_filter(tolerations: list[dict[str, Any]], expected: list[str]) -> None:
    plugin = attached(state_of([node("a", unschedulable=True), node("b")]), NodeUnschedulable())
    assert allowed(plugin, pod("p", tolerations=tolerations)) == expected


def test_uncordoning_opens_the_node() -> None:
    state = state_of([node("a", unschedulable=True)])
    plugin = attached(state, NodeUnschedulable())
    assert allowed(plugin, pod("p")) == []
    state.apply_node(NodeSeen(node("a")))
    state.flush_nodes()
    assert allowed(plugin, pod("p")) == ["a"]
