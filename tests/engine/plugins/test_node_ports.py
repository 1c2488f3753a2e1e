"""NodePorts: which ports clash, who holds them, and that what goes is what came."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.events import NodeGone, NodeSeen
from muster.engine.facts import PodFacts
from muster.engine.plugins.node_ports import NodePorts
from muster.objects.reasons import Reason
from tests.engine.asking import allowed, attached, block_of, explained
from tests.engine.building import node, pod, state_of


def port(number: int, protocol: str = "TCP", ip: str = "") -> dict[str, Any]:
    return {"containerPort": 80, "hostPort": number, "protocol": protocol, "hostIP": ip}


def using(name: str, *ports: dict[str, Any], on: str = "") -> PodFacts:
    return pod(name, ports=list(ports), node=on)


@pytest.mark.parametrize(
    ("held", "wanted", "clash"),
    [
        pytest.param(port(80), port(80), True, id="the same"),
        pytest.param(port(80), port(81), False, id="another number"),
        pytest.param(port(80), port(80, "UDP"), False, id="another protocol"),
        pytest.param(port(80, ip="10.0.0.1"), port(80, ip="10.0.0.1"), True, id="the same address"),
        pytest.param(port(80, ip="10.0.0.1"), port(80, ip="10.0.0.2"), False, id="another address"),
        pytest.param(port(80, ip="10.0.0.1"), port(80), True, id="all addresses wanted"),
        pytest.param(port(80), port(80, ip="10.0.0.1"), True, id="all addresses held"),
        pytest.param(port(80, ip="0.0.0.0"), port(80, ip="10.0.0.1"), True, id="all addresses held, spelled out"),
        pytest.param(port(80, ""), port(80), True, id="TCP is the default"),
    ],
)
def test_filter(held: dict[str, Any], wanted: dict[str, Any], clash: bool) -> None:
    plugin = attached(state_of([node("a"), node("b")], [using("old", held, on="a")]), NodePorts())
    assert allowed(plugin, using("new", wanted)) == (["b"] if clash else ["a", "b"])


def test_pods_without_host_ports_are_no_concern() -> None:
    plugin = attached(state_of([node("a")]), NodePorts())
    assert not plugin.concerns(block_of(plugin.state, pod("p")))
    assert not plugin.concerns(block_of(plugin.state, using("p", port(0))))
    assert plugin.concerns(block_of(plugin.state, using("p", port(80))))


@pytest.mark.parametrize(
    ("restart", "clash"), [pytest.param("Always", True, id="sidecar"), pytest.param("", False, id="runs and ends before")]
)
def test_init_containers(restart: str, clash: bool) -> None:
    init = [{"image": "i", "restartPolicy": restart, "ports": [port(80)]}]
    plugin = attached(state_of([node("a")], [pod("old", initContainers=init, node="a")]), NodePorts())
    assert allowed(plugin, using("new", port(80))) == ([] if clash else ["a"])


def test_explain_names_port_and_holders() -> None:
    state = state_of(
        [node("a"), node("b"), node("c")], [using("x", port(80), on="a"), using("y", port(80, ip="10.0.0.1"), on="b")]
    )
    reason, shortfalls = explained(attached(state, NodePorts()), using("new", port(80), port(81)))
    assert reason is Reason.PORT_CONFLICT
    (one,) = shortfalls
    assert one.resource == "host port 80/TCP"
    assert [(holder.name, holder.node) for holder in one.holders] == [("default/x", "a"), ("default/y", "b")]


def test_ports_follow_pods_and_nodes() -> None:
    state = state_of([node("b")], [using("old", port(80), on="b")])
    plugin = attached(state, NodePorts())
    state.apply_node(NodeSeen(node("a")))
    state.flush_nodes()
    assert allowed(plugin, using("new", port(80))) == ["a"]
    state.apply_node(NodeGone("b"))
    state.flush_nodes()
    assert allowed(plugin, using("new", port(80))) == ["a"]
    state.apply_node(NodeSeen(node("b")))
    state.flush_nodes()
    assert allowed(plugin, using("new", port(80))) == ["a"], "the node is back, and the pod on it"
    state.see_pod(using("old", port(81), on="b"))
    assert allowed(plugin, using("new", port(80))) == ["a", "b"]
    assert allowed(plugin, using("new", port(81))) == ["a"]
    state.remove_pod("uid-default-old")
    assert allowed(plugin, using("new", port(81))) == ["a", "b"]


ports = st.builds(port, st.integers(80, 81), st.sampled_from(["TCP", "UDP"]), st.sampled_from(["", "10.0.0.1", "10.0.0.2"]))
moves = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["", "a", "b"]), st.lists(ports, max_size=2)), max_size=12)


@given(moves, ports)
def test_index_equals_looking_at_the_pods_that_are_there(
    steps: list[tuple[int, str, list[dict[str, Any]]]], wanted: Any
) -> None:
    state = state_of([node("a"), node("b")])
    plugin = attached(state, NodePorts())
    there: dict[int, tuple[str, list[dict[str, Any]]]] = {}
    for number, on, held in steps:
        state.remove_pod(f"uid-default-p{number}")
        there.pop(number, None)
        if on:
            state.see_pod(using(f"p{number}", *held, on=on))
            there[number] = (on, held)
    taken = {
        on
        for on, held in there.values()
        for one in held
        if (one["hostPort"], one["protocol"]) == (wanted["hostPort"], wanted["protocol"])
        and (one["hostIP"] == wanted["hostIP"] or not one["hostIP"] or not wanted["hostIP"])
    }
    assert allowed(plugin, using("new", wanted)) == [name for name in ("a", "b") if name not in taken]
