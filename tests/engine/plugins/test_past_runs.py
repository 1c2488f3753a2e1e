"""PastRuns: figures by place, the pod's own preferences first, and nothing at all without grounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from muster.engine.plugins.past_runs import ADVICE, NODE, Leaning, PastRuns
from tests.engine.asking import attached, block_of, normalised
from tests.engine.building import node, pod, state_of

NODES = [node("a", labels={"model": "old"}), node("b", labels={"model": "old"}), node("c", labels={"model": "new"}), node("d")]


class Known:
    def __init__(self, *leanings: Leaning) -> None:
        self._leanings = leanings

    def of_pod(self, uid: str) -> Sequence[Leaning]:
        return self._leanings if uid == "uid-default-p" else ()


def plugin(*leanings: Leaning) -> PastRuns:
    state = state_of(NODES)
    state.extras[ADVICE] = Known(*leanings)
    return attached(state, PastRuns())


def preferring(*terms: tuple[int, str, str]) -> dict[str, Any]:
    return {
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": weight,
                        "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]},
                    }
                    for weight, key, value in terms
                ]
            }
        }
    }


@pytest.mark.parametrize(
    ("leanings", "expected"),
    [
        pytest.param([Leaning("model", "new", 0.5)], [50, 50, 100, 50], id="twice as fast on one kind"),
        pytest.param([Leaning(NODE, "b", 10.0)], [100, 10, 100, 100], id="it fails on one node"),
        pytest.param([Leaning("model", "old", 1.25), Leaning(NODE, "a", 10.0)], [10, 80, 100, 100], id="the strongest counts"),
        pytest.param([Leaning("model", "none", 0.5), Leaning(NODE, "gone", 9.0)], [100, 100, 100, 100], id="of no node here"),
        pytest.param([Leaning(NODE, "a", 0.0), Leaning(NODE, "b", 1e9)], [100, 1, 10, 10], id="figures are kept within bounds"),
    ],
)
def test_scores(leanings: list[Leaning], expected: list[int]) -> None:
    assert list(normalised(plugin(*leanings), pod("p")).values()) == expected


def test_only_feasible_nodes_set_the_scale() -> None:
    found = normalised(plugin(Leaning("model", "new", 0.5)), pod("p"), [True, True, False, True])
    assert [found[name] for name in "abd"] == [100, 100, 100]


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        pytest.param([(1, "model", "old")], [10, 100, 0, 0], id="points only where the pod prefers to be"),
        pytest.param([(1, "model", "old"), (100, "model", "new")], [0, 0, 100, 0], id="and only where it prefers it most"),
        pytest.param([(50, "other", "x")], [10, 100, 100, 100], id="a preference that no node meets changes nothing"),
    ],
)
def test_what_the_pod_prefers_itself_comes_first(terms: list[tuple[int, str, str]], expected: list[int]) -> None:
    found = normalised(plugin(Leaning(NODE, "a", 10.0)), pod("p", **preferring(*terms)))
    assert list(found.values()) == expected


def test_it_has_no_part_without_grounds() -> None:
    asked = plugin(Leaning(NODE, "a", 10.0))
    assert asked.concerns(block_of(asked.state, pod("p")))
    assert not asked.concerns(block_of(asked.state, pod("other")))
    nothing = attached(state_of(NODES), PastRuns())
    assert not nothing.concerns(block_of(nothing.state, pod("p")))


@pytest.mark.parametrize("word", ["podAffinity", "podAntiAffinity"])
def test_it_has_no_part_where_the_pod_prefers_other_pods(word: str) -> None:
    term = {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}}}
    affinity = {word: {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    asked = plugin(Leaning(NODE, "a", 10.0))
    assert not asked.concerns(block_of(asked.state, pod("p", affinity=affinity)))
