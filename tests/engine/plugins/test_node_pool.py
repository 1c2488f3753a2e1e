"""NodePool: work that names a pool, pools that keep other work out, and what a change of a pool is about."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.engine.events import PoolGone, PoolSeen, QueueGone, QueueSeen, Tick
from muster.engine.facts import PodFacts, PoolFacts, QueueFacts
from muster.engine.plugins.node_pool import NodePool
from muster.engine.state import State
from muster.objects.reasons import Reason
from tests.engine.asking import allowed, attached, explained
from tests.engine.building import node, pod, state_of


def pool(name: str, **spec: Any) -> PoolFacts:
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, PoolFacts)


def naming(name: str) -> PodFacts:
    return pod("p", labels={"muster.dev/pool": name})


def naming_several(names: str) -> PodFacts:
    return pod("p", annotations={"muster.dev/pools": names})


def queue(name: str, **spec: Any) -> QueueFacts:
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, QueueFacts)


def cluster(*pools: PoolFacts) -> tuple[State, NodePool]:
    state = state_of([node("a", labels={"gpu": "yes"}), node("b", labels={"gpu": "yes"}), node("c"), node("d")])
    for one in pools:
        state.pools[one.metadata.name] = one
    return state, attached(state, NodePool())


GPU = {"matchLabels": {"gpu": "yes"}}


@pytest.mark.parametrize(
    ("pools", "facts", "expected"),
    [
        pytest.param([], pod("p"), "abcd", id="no pools"),
        pytest.param([pool("gpu", selector=GPU)], pod("p"), "abcd", id="a pool that is not exclusive keeps nobody out"),
        pytest.param([pool("gpu", selector=GPU)], naming("gpu"), "ab", id="by selector"),
        pytest.param([pool("x", nodes=["c", "gone"])], naming("x"), "c", id="by name"),
        pytest.param([pool("x", selector=GPU, nodes=["c"])], naming("x"), "abc", id="by both"),
        pytest.param([pool("x", selector={})], naming("x"), "abcd", id="an empty selector is all nodes"),
        pytest.param([pool("x")], naming("x"), "", id="a pool of nothing"),
        pytest.param([], naming("x"), "", id="a pool that is not there"),
        pytest.param([pool("gpu", selector=GPU)], naming(""), "abcd", id="an empty name is none"),
        pytest.param([pool("gpu", selector=GPU, exclusive=True)], pod("p"), "cd", id="exclusive keeps others out"),
        pytest.param([pool("gpu", selector=GPU, exclusive=True)], naming("gpu"), "ab", id="exclusive takes its own"),
        pytest.param(
            [pool("gpu", selector=GPU, exclusive=True), pool("x", nodes=["b", "c"])],
            naming("x"),
            "c",
            id="also from other pools",
        ),
        pytest.param(
            [pool("x", selector=GPU, exclusive=True), pool("y", nodes=["b"], exclusive=True)],
            naming("x"),
            "a",
            id="a node of two exclusive pools takes neither's",
        ),
        pytest.param(
            [pool("gpu", selector=GPU), pool("x", nodes=["c"])], naming_several("gpu,x"), "abc", id="several, any of them"
        ),
        pytest.param([pool("x", nodes=["c"])], naming_several(" x , gone,"), "c", id="several, one of which is not there"),
        pytest.param([pool("x", nodes=["c"])], naming_several(""), "abcd", id="an empty list is none"),
    ],
)
def test_filter(pools: list[PoolFacts], facts: PodFacts, expected: str) -> None:
    _, plugin = cluster(*pools)
    assert allowed(plugin, facts) == list(expected)


def test_events_name_the_nodes_that_were_in_the_pool_or_are_now() -> None:
    state, plugin = cluster(pool("x", nodes=["a"]))
    after = pool("x", nodes=["d"], exclusive=True)
    state.pools["x"] = after
    assert plugin.event(PoolSeen(after)) == [0, 3]
    assert allowed(plugin, pod("p")) == ["a", "b", "c"]
    del state.pools["x"]
    assert plugin.event(PoolGone("x")) == [3]
    assert allowed(plugin, pod("p")) == ["a", "b", "c", "d"]
    assert plugin.event(PoolGone("x")) == []
    assert plugin.event(Tick()) is None


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        pytest.param([], "NodePool x, which does not exist", id="no such pool"),
        pytest.param([pool("x", nodes=["gone"])], "nodes of NodePool x", id="no node in it"),
        pytest.param([pool("x", nodes=["a"])], None, id="others refused it"),
    ],
)
def test_explain(pools: list[PoolFacts], message: str | None) -> None:
    _, plugin = cluster(*pools)
    reason, shortfalls = explained(plugin, naming("x"))
    assert reason is Reason.NODE_POOL_MISMATCH
    assert [one.resource for one in shortfalls] == ([] if message is None else [message])


EAST, WEST = pool("east", nodes=["a", "b"]), pool("west", nodes=["c"])


@pytest.mark.parametrize(
    ("queues", "facts", "expected"),
    [
        pytest.param([queue("q", pools=["east"])], pod("p", labels={"muster.dev/queue": "q"}), "ab", id="of its queue"),
        pytest.param([queue("q", pools=["east"])], pod("p", annotations={"muster.dev/queue": "q"}), "ab", id="by annotation"),
        pytest.param([queue("q", pools=["east"])], pod("p", labels={"muster.dev/queue": "r"}), "abcd", id="of another queue"),
        pytest.param([queue("q", pools=["east"])], pod("p"), "abcd", id="of no queue"),
        pytest.param([queue("q", pools=["east"], isDefault=True)], pod("p"), "ab", id="of the default queue"),
        pytest.param(
            [queue("q", pools=["east"], isDefault=True), queue("r")],
            pod("p", labels={"muster.dev/queue": "r"}),
            "abcd",
            id="who names another is not in the default queue",
        ),
        pytest.param(
            [queue("top", pools=["east", "west"]), queue("q", parent="top")],
            pod("p", labels={"muster.dev/queue": "q"}),
            "abc",
            id="of the queue above",
        ),
        pytest.param(
            [queue("top", pools=["east"]), queue("q", parent="top", pools=["west"])],
            pod("p", labels={"muster.dev/queue": "q"}),
            "c",
            id="its own before those above",
        ),
        pytest.param(
            [queue("q", parent="r"), queue("r", parent="q")],
            pod("p", labels={"muster.dev/queue": "q"}),
            "abcd",
            id="queues in a circle",
        ),
        pytest.param(
            [queue("q", pools=["east"])],
            pod("p", labels={"muster.dev/queue": "q", "muster.dev/pool": "west"}),
            "",
            id="a pool that the queue does not have",
        ),
    ],
)
def test_pools_of_queues(queues: list[QueueFacts], facts: PodFacts, expected: str) -> None:
    _, plugin = cluster(EAST, WEST)
    for one in queues:
        plugin.event(QueueSeen(one))
    assert allowed(plugin, facts) == list(expected)


def test_a_queue_that_is_bound_to_other_pools_is_about_all_nodes() -> None:
    state, plugin = cluster(EAST, WEST)
    assert plugin.event(QueueSeen(queue("q", weight=2))) is None
    assert "q" not in state.shapes.names.queues
    assert plugin.event(QueueSeen(queue("q", pools=["east"]))) == [0, 1, 2, 3]
    assert "q" in state.shapes.names.queues
    assert state.shapes.names.has_grown
    assert plugin.event(QueueSeen(queue("q", pools=["east"], weight=3))) is None
    assert plugin.event(QueueGone("q")) == [0, 1, 2, 3]
    assert plugin.event(QueueGone("q")) is None


def test_an_exclusive_pool_takes_work_of_a_queue_that_is_bound_to_it() -> None:
    _, plugin = cluster(pool("east", nodes=["a"], exclusive=True))
    plugin.event(QueueSeen(queue("q", pools=["east"])))
    assert allowed(plugin, pod("p", labels={"muster.dev/queue": "q"})) == ["a"]
    assert allowed(plugin, pod("p")) == ["b", "c", "d"]
