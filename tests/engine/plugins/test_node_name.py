"""NodeName: the node that a pod names, and no other."""

from __future__ import annotations

import pytest

from muster.engine.plugins.node_name import NodeName
from muster.objects.reasons import Reason
from tests.engine.asking import allowed, attached, explained
from tests.engine.building import node, pod, state_of


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        pytest.param("", ["a", "b"], id="none named"),
        pytest.param("b", ["b"], id="one named"),
        pytest.param("c", [], id="one that is not there"),
    ],
)
def test_filter(named: str, expected: list[str]) -> None:
    plugin = attached(state_of([node("a"), node("b")]), NodeName())
    assert allowed(plugin, pod("p", node=named)) == expected


def test_explain() -> None:
    plugin = attached(state_of([node("a")]), NodeName())
    assert explained(plugin, pod("p", node="b")) == (Reason.NODE_NAME_MISMATCH, [])
