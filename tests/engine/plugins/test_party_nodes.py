"""PartyNodes: whose nodes a pod may go to, that no answer goes stale, and what is said to those that wait."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.configuration import default_configuration, read
from muster.engine.decisions import Park, Place
from muster.engine.events import NodeGone, NodeSeen, PodSeen
from muster.engine.facts import NodeFacts
from muster.engine.machine import Engine
from muster.engine.plugins.party_nodes import PartyNodes
from muster.engine.registry import Registry
from muster.engine.state import State
from muster.objects.reasons import Reason
from tests.engine.asking import allowed, attached, explained
from tests.engine.building import node, pod, state_of

LABEL = "kuscia.secretflow/namespace"
TAINT = {"key": "kuscia.secretflow/agent", "value": "v1", "effect": "NoSchedule"}
EVERYTHING = [{"operator": "Exists"}]
AGENT = [{"key": "kuscia.secretflow/agent", "operator": "Exists"}]


def of_party(name: str, party: str, *, is_tainted: bool = True) -> NodeFacts:
    return node(name, labels={LABEL: party}, taints=[TAINT] if is_tainted else [])


def cluster(*more: NodeFacts) -> tuple[State, PartyNodes]:
    state = state_of([of_party("a", "alice"), of_party("b", "bob"), node("n"), node("o", labels={LABEL: ""}), *more])
    return state, attached(state, PartyNodes())


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [
        pytest.param("alice", "ano", id="its own nodes and those of nobody"),
        pytest.param("bob", "bno", id="the other party"),
        pytest.param("default", "no", id="no party"),
        pytest.param("carol", "no", id="a party without nodes"),
    ],
)
def test_filter(namespace: str, expected: str) -> None:
    _, plugin = cluster()
    assert allowed(plugin, pod("p", namespace=namespace, tolerations=EVERYTHING)) == list(expected)


def test_only_namespaces_that_nodes_are_set_apart_for_have_shapes_of_their_own() -> None:
    state, _ = cluster()
    of = {name: state.shapes.shape_of(pod("p", namespace=name)) for name in ("default", "carol", "alice", "bob")}
    assert of["default"] is of["carol"]
    assert len(set(map(id, of.values()))) == 3


def test_a_party_without_any_node_is_said() -> None:
    state = state_of([of_party("a", "alice")])
    plugin = attached(state, PartyNodes())
    reason, [short] = explained(plugin, pod("p", namespace="bob", tolerations=EVERYTHING))
    assert (reason, short.resource) == (Reason.PARTY_MISMATCH, "nodes for namespace bob or of no party")
    _, plugin = cluster()
    assert explained(plugin, pod("p", namespace="bob", tolerations=EVERYTHING)) == (Reason.PARTY_MISMATCH, [])


# -- in the engine -----------------------------------------------------------------------------------------------------------


def placed(made: Engine, *events: Any, now: float = 1.0) -> dict[str, str]:
    found: dict[str, str] = {}
    for decision in made.step(events, now):
        if isinstance(decision, Place):
            found |= {one.name: one.node for one in decision.pods}
        elif isinstance(decision, Park):
            found[decision.unit.rpartition("/")[2]] = decision.verdict.reason
    return found


def engine() -> Engine:
    return Engine(default_configuration().build(Registry()))


def test_it_waits_for_a_node_of_its_own_party() -> None:
    made = engine()
    everywhere = pod("p", cpu="1", namespace="alice", tolerations=EVERYTHING)
    assert placed(made, NodeSeen(of_party("b", "bob")), PodSeen(everywhere)) == {"p": "PartyMismatch"}
    [verdict] = made.verdicts.values()
    assert any("work in namespace alice needs a node of its own party" in text for text in verdict.helps), verdict
    assert placed(made, NodeSeen(of_party("a", "alice")), now=2.0) == {"p": "a"}


def test_labels_that_change_are_noticed() -> None:
    made = engine()
    assert placed(made, NodeSeen(node("n")), PodSeen(pod("p", cpu="1"))) == {"p": "n"}
    assert placed(made, NodeSeen(of_party("n", "bob", is_tainted=False)), PodSeen(pod("q", cpu="1")), now=2.0) == {
        "q": "PartyMismatch"
    }
    assert placed(made, NodeSeen(node("n")), now=3.0) == {"q": "n"}
    assert placed(made, NodeGone("n"), NodeSeen(of_party("b", "bob")), PodSeen(pod("r", cpu="1")), now=4.0) == {
        "r": "PartyMismatch"
    }


def test_room_is_not_made_on_another_partys_node() -> None:
    made = engine()
    small = pod("low", cpu="8", namespace="bob", tolerations=AGENT, node="b", priority=0)
    high = pod("high", cpu="8", namespace="alice", tolerations=EVERYTHING, priority=100)
    assert placed(made, NodeSeen(of_party("b", "bob")), PodSeen(small), PodSeen(high)) == {"high": "PartyMismatch"}


def test_a_profile_can_do_without() -> None:
    document = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": {"multiPoint": {"disabled": [{"name": "PartyNodes"}]}}}],
    }
    made = Engine(read(document).build(Registry()))
    everywhere = pod("p", cpu="1", namespace="alice", tolerations=EVERYTHING)
    assert placed(made, NodeSeen(of_party("b", "bob")), PodSeen(everywhere)) == {"p": "b"}


PARTIES = st.sampled_from(["", "alice", "bob"])


@given(
    nodes=st.lists(st.tuples(PARTIES, st.booleans()), min_size=1, max_size=6),
    pods=st.lists(
        st.tuples(st.sampled_from(["default", "alice", "bob"]), st.sampled_from([[], EVERYTHING, AGENT]), PARTIES), max_size=8
    ),
)
def test_no_pod_is_ever_on_another_partys_node(nodes: list[tuple[str, bool]], pods: list[tuple[str, Any, str]]) -> None:
    made = engine()
    seen = [
        NodeSeen(of_party(f"n{n}", party, is_tainted=tainted) if party else node(f"n{n}"))
        for n, (party, tainted) in enumerate(nodes)
    ]
    waiting = [
        PodSeen(pod(f"p{n}", cpu="1", namespace=where, tolerations=wide, nodeSelector={LABEL: chosen} if chosen else {}))
        for n, (where, wide, chosen) in enumerate(pods)
    ]
    for name, where in placed(made, *seen, *waiting).items():
        if not where.startswith("n"):
            continue
        party = nodes[int(where[1:])][0]
        assert party in ("", pods[int(name[1:])][0])
