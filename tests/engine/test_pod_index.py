"""PodIndex: what it keeps, what it drops, and what it says when something changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from muster.engine.events import NodeGone, NodeSeen
from muster.engine.plugin import Wake
from muster.engine.pod_index import PodIndex
from muster.engine.pod_terms import ALL, STAYING, Part, Term
from muster.engine.state import State
from muster.objects.selectors import NOTHING, from_labels
from tests.engine.building import node, pod, state_of

WEB = {"app": "web"}


def term(index: PodIndex, **labels: str) -> Term:
    return index.terms.term([Part(frozenset(["default"]), NOTHING, from_labels(labels))])


def away(app: str) -> dict[str, Any]:
    one = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [one]}}


def two_nodes() -> State:
    return state_of([node("a", labels={"zone": "1"}), node("c", labels={"zone": "2"})])


def test_one_index_per_state() -> None:
    state = two_nodes()
    index = PodIndex.of(state)
    assert PodIndex.of(state) is index
    assert PodIndex.of(two_nodes()) is not index


def test_equal_terms_are_one() -> None:
    index = PodIndex.of(two_nodes())
    assert term(index, app="web") is term(index, app="web")
    assert term(index, app="web") is not term(index, app="db")


def test_nothing_is_kept_until_somebody_asks() -> None:
    state = two_nodes()
    index = PodIndex.of(state)
    state.see_pod(pod("p", labels=WEB, node="a"))
    assert not index._entries
    assert index.column(term(index, app="web"))[ALL].tolist() == [1, 0]
    state.remove_pod("uid-default-p")
    assert index.column(term(index, app="web"))[ALL].tolist() == [0, 0]


def test_columns_follow_pods_and_nodes() -> None:
    state = two_nodes()
    index = PodIndex.of(state)
    web = term(index, app="web")
    index.column(web)
    state.see_pod(pod("one", labels=WEB, node="c"))
    state.see_pod(pod("two", labels=WEB, node="b"))
    assert index.column(web)[ALL].tolist() == [0, 1]
    state.apply_node(NodeSeen(node("b")))
    state.flush_nodes()
    assert index.column(web)[ALL].tolist() == [0, 1, 1]
    state.see_pod(pod("two", labels={"app": "db"}, node="b"))
    assert index.column(web)[ALL].tolist() == [0, 0, 1]
    state.apply_node(NodeGone("a"))
    state.flush_nodes()
    assert index.column(web)[STAYING].tolist() == [0, 1]
    index.check_invariants()


def test_labels_and_annotations_may_change_at_once() -> None:
    state = two_nodes()
    index = PodIndex.of(state)
    web, db = term(index, app="web"), term(index, app="db")
    state.see_pod(pod("p", labels=WEB, node="a"))
    index.column(web)
    index.column(db)
    state.see_pod(pod("p", labels={"app": "db"}, node="a", annotations={"muster.dev/bandwidth": "1M"}, cpu="1"))
    assert (index.column(web)[ALL].tolist(), index.column(db)[ALL].tolist()) == ([0, 0], [1, 0])
    index.check_invariants()


def test_columns_are_bounded() -> None:
    state = two_nodes()
    index = PodIndex(state, columns_max=3)
    state.see_pod(pod("p", labels={"n": "0"}, node="c"))
    terms = [term(index, n=str(number)) for number in range(10)]
    for one in terms:
        index.column(one)
    assert [one.column is not None for one in terms] == [False] * 7 + [True] * 3
    assert sum(one.classes is not None for one in terms) == 3
    assert index.column(terms[0])[ALL].tolist() == [0, 1]


def test_classes_of_pods_that_went_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.engine.pod_index._SPARE_CLASSES", 10)
    state = two_nodes()
    index = PodIndex.of(state)
    everything = index.terms.term([Part(frozenset(["default"]), NOTHING, from_labels({}))])
    index.column(everything)
    for number in range(100):
        state.see_pod(pod("p", labels={"n": str(number)}, node="a"))
        index.class_of(pod("waiting", labels={"w": str(number)}))
    assert len(index._classes) < 40
    assert len(everything.classes or ()) == len(index._classes)
    assert len(index._by_label) == len(index._classes)
    assert index.column(everything)[ALL].tolist() == [1, 0]


def test_carriers_come_and_go() -> None:
    state = two_nodes()
    index = PodIndex.of(state)
    loud = pod("loud", labels={"app": "loud"})
    assert index.carried(loud) == ()
    state.see_pod(pod("one", node="a", affinity=away("loud")))
    state.see_pod(pod("two", node="c", affinity=away("loud")))
    (carrier,) = index.carried(loud)
    assert index.column(carrier)[ALL].tolist() == [1, 1]
    assert index.carried(pod("quiet", labels={"app": "quiet"})) == ()
    state.remove_pod("uid-default-one")
    assert index.column(carrier)[ALL].tolist() == [0, 1]
    state.remove_pod("uid-default-two")
    assert index.carried(loud) == ()
    assert not index._anchored, "a term that nobody carries and nobody asks for is dropped"


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        pytest.param(lambda s: s.see_pod(pod("p", labels=WEB, node="a")), True, id="a pod that was asked for came"),
        pytest.param(lambda s: s.see_pod(pod("p", labels={"app": "db"}, node="a")), False, id="another pod came"),
        pytest.param(lambda s: _node(s, node("a", labels={"zone": "2"})), True, id="a node changed its zone"),
        pytest.param(lambda s: _node(s, node("a", labels={"zone": "1", "other": "x"})), False, id="a node got another label"),
        pytest.param(lambda s: _node(s, node("b", labels={"zone": "2"})), True, id="a node came"),
        pytest.param(lambda s: _gone(s, "c"), True, id="an empty node went"),
    ],
)
def test_what_may_help_wakes(change: Any, wakes: bool) -> None:
    state = two_nodes()
    index = PodIndex.of(state)
    index.column(term(index, app="web"))
    index.topologies.of("zone")
    state.woken.clear()
    change(state)
    assert (Wake.POD in state.woken) is wakes


def _node(state: State, facts: Any) -> None:
    state.apply_node(NodeSeen(facts))
    state.flush_nodes()


def _gone(state: State, name: str) -> None:
    state.apply_node(NodeGone(name))
    state.flush_nodes()


@pytest.mark.parametrize(
    ("zones", "counts", "near"),
    [
        pytest.param(["1", "1", "2"], [1, 2, 4], [3, 3, 4], id="sums by zone"),
        pytest.param(["1", None, "2"], [1, 2, 4], [1, 0, 4], id="one for each, one without"),
        pytest.param([None, None], [1, 2], [0, 0], id="nobody has the label"),
        pytest.param([], [], [], id="no nodes"),
    ],
)
def test_topology(zones: list[str | None], counts: list[int], near: list[int]) -> None:
    nodes = [node(f"n{index}", labels={"zone": zone} if zone else {}) for index, zone in enumerate(zones)]
    index = PodIndex.of(state_of(nodes))
    column = np.array(counts, np.int32)
    topology = index.topologies.of("zone")
    assert topology.near(column).tolist() == near
    assert topology.is_near(column).tolist() == [count > 0 for count in near]
    assert index.topologies.near([("zone", column, 2), ("zone", column, -1)]).tolist() == near
