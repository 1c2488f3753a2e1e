"""InterPodAffinity: the well-known cases, one by one. Agreement in general is in tests/engine/test_pod_rules.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from muster.engine.blocks import NodeBlock, PodBlock, one_shape
from muster.engine.decisions import Park, Place
from muster.engine.events import NamespaceGone, NamespaceSeen, NodeSeen, PodSeen, Tick
from muster.engine.facts import Meta, NamespaceFacts, PodFacts
from muster.engine.machine import Engine
from muster.engine.plugins.inter_pod_affinity import InterPodAffinity, InterPodAffinityArgs
from muster.engine.profile import Profile
from muster.engine.state import State
from muster.objects.reasons import Reason
from tests.engine.building import PROFILE, node, pod, state_of

ZONE, HOST = "zone", "kubernetes.io/hostname"
NODES = (node("a1", labels={ZONE: "a"}), node("a2", labels={ZONE: "a"}), node("b1", labels={ZONE: "b"}), node("c1"))
WEB, DB = {"app": "web"}, {"app": "db"}


def term(app: str | None = "db", key: str = ZONE, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, **({"labelSelector": {"matchLabels": {"app": app}}} if app else {}), **more}


def near(*terms: dict[str, Any], prefer: Mapping[int, dict[str, Any]] | None = None, away: bool = False) -> dict[str, Any]:
    soft = [{"weight": weight, "podAffinityTerm": one} for weight, one in (prefer or {}).items()]
    side = {
        "requiredDuringSchedulingIgnoredDuringExecution": list(terms),
        "preferredDuringSchedulingIgnoredDuringExecution": soft,
    }
    return {"podAntiAffinity" if away else "podAffinity": side}


def attached(state: State, **args: Any) -> InterPodAffinity:
    plugin = InterPodAffinity(msgspec.convert(args, InterPodAffinityArgs))
    Profile("test", [plugin]).attach(state)
    return plugin


def block_of(state: State, asking: PodFacts) -> PodBlock:
    block = one_shape(state.shapes.shape_of(asking))
    block.pod = asking
    return block


def allowed(plugin: InterPodAffinity, asking: PodFacts) -> str:
    """Names of the nodes that are left."""
    nodes = NodeBlock(plugin.state.nodes)
    mask = np.broadcast_to(np.asarray(plugin.filter(block_of(plugin.state, asking), nodes)), len(nodes))
    return " ".join(name for name, fits in zip(nodes.names(), mask, strict=True) if fits)


FILTERS = [
    pytest.param(pod("p", labels=WEB), "a1 a2 b1 c1", id="no rules"),
    pytest.param(pod("p", labels=WEB, affinity=near(term())), "a1 a2", id="in the zone of a match"),
    pytest.param(pod("p", labels=WEB, affinity=near(term(key=HOST))), "a1", id="on the node of a match"),
    pytest.param(pod("p", labels=WEB, affinity=near(term("none"))), "", id="nobody matches"),
    pytest.param(
        pod("p", labels={"app": "new"}, affinity=near(term("new"))), "a1 a2 b1", id="first of a group that matches itself"
    ),
    pytest.param(pod("p", labels=DB, affinity=near(term())), "a1 a2", id="not the first of its group"),
    pytest.param(
        pod("p", labels={"app": "new"}, affinity=near(term("new"), term("none"))), "", id="first must match all of its terms"
    ),
    pytest.param(
        pod("p", labels=WEB, affinity=near(term(), {"topologyKey": HOST, "labelSelector": {"matchLabels": {"tier": "x"}}})),
        "",
        id="one pod must match all terms",
    ),
    pytest.param(pod("p", labels=WEB, affinity=near(term(), term(key=HOST))), "a1", id="all topologies of all terms"),
    pytest.param(pod("p", labels=WEB, affinity=near(term(None))), "", id="no selector matches nothing"),
    pytest.param(pod("p", labels=WEB, affinity=near(term(None, labelSelector={}))), "a1 a2 b1", id="empty selector"),
    pytest.param(pod("p", labels=WEB, affinity=near(term(), away=True)), "b1 c1", id="away from a zone; no label, no conflict"),
    pytest.param(pod("p", labels=WEB, affinity=near(term(key=HOST), away=True)), "a2 b1 c1", id="away from a node"),
    pytest.param(pod("p", labels=WEB, affinity=near(term("none"), away=True)), "a1 a2 b1 c1", id="away from nobody"),
    pytest.param(pod("p", labels={"app": "loud"}), "a1 a2 c1", id="somebody wants to be away from this one"),
    pytest.param(pod("p", labels={"app": "loud"}, namespace="other"), "a1 a2 b1 c1", id="away from its own namespace only"),
    pytest.param(pod("p", labels=WEB, namespace="other", affinity=near(term())), "", id="own namespace by default"),
    pytest.param(
        pod("p", labels=WEB, namespace="other", affinity=near(term(namespaces=["default"]))), "a1 a2", id="namespaces by name"
    ),
    pytest.param(
        pod("p", labels=WEB, namespace="other", affinity=near(term(namespaceSelector={}))), "a1 a2", id="every namespace"
    ),
    pytest.param(
        pod("p", labels=WEB, namespace="other", affinity=near(term(namespaceSelector={"matchLabels": {"team": "red"}}))),
        "a1 a2",
        id="namespaces by label",
    ),
    pytest.param(
        pod("p", labels=WEB, namespace="other", affinity=near(term(namespaceSelector={"matchLabels": {"team": "blue"}}))),
        "",
        id="no namespace with the label",
    ),
    pytest.param(
        pod("p", labels={**WEB, "version": "1"}, affinity=near(term(matchLabelKeys=["version"]))),
        "a1 a2",
        id="matchLabelKeys: same value",
    ),
    pytest.param(
        pod("p", labels={**WEB, "version": "2"}, affinity=near(term(matchLabelKeys=["version"]))),
        "",
        id="matchLabelKeys: other value",
    ),
    pytest.param(
        pod("p", labels=WEB, affinity=near(term(matchLabelKeys=["version"]))), "a1 a2", id="matchLabelKeys: label it lacks"
    ),
    pytest.param(
        pod("p", labels={**WEB, "version": "1"}, affinity=near(term(mismatchLabelKeys=["version"]), away=True)),
        "a1 a2 b1 c1",
        id="mismatchLabelKeys: same value",
    ),
    pytest.param(
        pod("p", labels={**WEB, "version": "2"}, affinity=near(term(mismatchLabelKeys=["version"]), away=True)),
        "b1 c1",
        id="mismatchLabelKeys: other value",
    ),
]


def cluster() -> State:
    state = state_of(
        NODES,
        [
            pod("db", labels={**DB, "version": "1"}, node="a1"),
            pod("quiet", labels={"app": "quiet"}, node="b1", affinity=near(term("loud"), away=True)),
            pod("lost", labels=DB, node="not-here"),
            pod("over", labels=DB, node="b1", phase="Succeeded"),
        ],
    )
    state.namespaces["default"] = namespace("default", team="red")
    return state


def namespace(name: str, **labels: str) -> NamespaceFacts:
    return NamespaceFacts(metadata=Meta(name=name, labels=labels))


@pytest.mark.parametrize(("asking", "names"), FILTERS)
def test_filter(asking: PodFacts, names: str) -> None:
    assert allowed(attached(cluster()), asking) == names


def test_a_pod_that_is_being_deleted_still_counts() -> None:
    state = cluster()
    plugin = attached(state)
    db = state.pods["uid-default-db"].facts
    state.see_pod(msgspec.structs.replace(db, metadata=msgspec.structs.replace(db.metadata, deletion_timestamp="now")))
    assert allowed(plugin, pod("p", affinity=near(term()))) == "a1 a2"


def test_namespaces_may_change_their_labels() -> None:
    state = cluster()
    plugin = attached(state)
    asking = pod("p", namespace="other", affinity=near(term(namespaceSelector={"matchLabels": {"team": "red"}})))
    assert allowed(plugin, asking) == "a1 a2"
    state.namespaces["default"] = namespace("default", team="blue")
    plugin.event(NamespaceSeen(state.namespaces["default"]))
    assert allowed(plugin, asking) == ""
    del state.namespaces["default"]
    plugin.event(NamespaceGone("default"))
    assert allowed(plugin, pod("q", affinity=near(term(namespaceSelector={"matchLabels": {"team": "red"}})))) == ""


@pytest.mark.parametrize(
    ("asking", "expected"),
    [
        pytest.param(pod("p", labels=WEB), False, id="no rules, nobody cares"),
        pytest.param(pod("p", labels={"app": "loud"}), True, id="somebody keeps away from it"),
        pytest.param(pod("p", labels={"app": "loud"}, namespace="other"), False, id="not from this namespace"),
        pytest.param(pod("p", labels=WEB, affinity=near(prefer={1: term()})), True, id="a preference"),
        pytest.param(pod("p", labels=WEB, affinity={"nodeAffinity": {}}), False, id="node affinity only"),
        pytest.param(pod("p", labels=WEB, affinity={"podAffinity": {}}), False, id="an affinity without terms"),
    ],
)
def test_concerns(asking: PodFacts, expected: bool) -> None:
    state = cluster()
    assert attached(state).concerns(block_of(state, asking)) is expected


def test_concerns_follows_what_is_placed() -> None:
    state = state_of(NODES)
    plugin = attached(state)
    block = block_of(state, pod("p", labels={"app": "loud"}))
    assert not plugin.concerns(block)
    state.see_pod(pod("quiet", node="b1", affinity=near(term("loud"), away=True)))
    assert plugin.concerns(block)
    state.remove_pod("uid-default-quiet")
    assert not plugin.concerns(block)


def scores(plugin: InterPodAffinity, asking: PodFacts) -> list[int]:
    raw = np.asarray(plugin.score(block_of(plugin.state, asking), NodeBlock(plugin.state.nodes)))
    return list(np.broadcast_to(raw, len(plugin.state.nodes)).tolist())


@pytest.mark.parametrize(
    ("asking", "args", "expected"),
    [
        pytest.param(pod("p"), {}, [0, 0, 0, 0], id="nothing"),
        pytest.param(pod("p", affinity=near(prefer={10: term()})), {}, [20, 20, 10, 0], id="near, once for each match"),
        pytest.param(pod("p", affinity=near(prefer={10: term()}, away=True)), {}, [-20, -20, -10, 0], id="away"),
        pytest.param(
            pod("p", affinity=near(prefer={10: term(), 3: term(key=HOST)})), {}, [26, 20, 13, 0], id="preferences add up"
        ),
        pytest.param(pod("p", labels={"app": "liked"}), {}, [0, 0, 7, 0], id="a placed pod likes this one"),
        pytest.param(pod("p", labels={"app": "disliked"}), {}, [0, 0, -5, 0], id="a placed pod dislikes this one"),
        pytest.param(pod("p", labels={"app": "needed"}), {}, [1, 1, 0, 0], id="a placed pod needs this one"),
        pytest.param(pod("p", labels={"app": "needed"}), {"hardPodAffinityWeight": 50}, [50, 50, 0, 0], id="with its weight"),
        pytest.param(pod("p", labels={"app": "needed"}), {"hardPodAffinityWeight": 0}, [0, 0, 0, 0], id="with no weight"),
        pytest.param(
            pod("p", labels={"app": "liked"}),
            {"ignorePreferredTermsOfExistingPods": True},
            [0, 0, 0, 0],
            id="ignored",
        ),
        pytest.param(
            pod("p", labels={"app": "liked"}, affinity=near(prefer={1: term(key=HOST)})),
            {"ignorePreferredTermsOfExistingPods": True},
            [2, 0, 8, 0],
            id="not ignored for a pod with preferences",
        ),
    ],
)
def test_score(asking: PodFacts, args: dict[str, Any], expected: list[int]) -> None:
    state = state_of(
        NODES,
        [
            *(pod(f"db{index}", labels=DB, node=where) for index, where in enumerate(["a1", "a1", "b1"])),
            pod("fan", node="b1", affinity=near(prefer={7: term("liked")})),
            pod("foe", node="b1", affinity=near(prefer={5: term("disliked")}, away=True)),
            pod("needy", node="a2", affinity=near(term("needed"))),
        ],
    )
    assert scores(attached(state, **args), asking) == expected


@pytest.mark.parametrize(
    ("raw", "feasible", "expected"),
    [
        pytest.param([0, 5, 10], [1, 1, 1], [0, 50, 100], id="stretched"),
        pytest.param([-10, 0, 20], [1, 1, 1], [0, 33, 100], id="negative, cut to whole numbers"),
        pytest.param([4, 4, 4], [1, 1, 1], [0, 0, 0], id="all alike"),
        pytest.param([0, 5, 10], [1, 1, 0], [0, 100, 100], id="feasible nodes only, others within bounds"),
        pytest.param([1, 2, 3], [0, 0, 0], [0, 0, 0], id="none feasible"),
    ],
)
def test_normalise(raw: list[int], feasible: list[int], expected: list[int]) -> None:
    plugin = InterPodAffinity()
    assert plugin.normalise(np.array(raw, np.int64), np.array(feasible, np.bool_)).tolist() == expected


@pytest.mark.parametrize(
    ("asking", "reason"),
    [
        pytest.param(pod("p", affinity=near(term("none"))), Reason.POD_AFFINITY_UNSATISFIED, id="affinity"),
        pytest.param(pod("p", affinity=near(term(), away=True)), Reason.POD_ANTI_AFFINITY_CONFLICT, id="its anti-affinity"),
        pytest.param(pod("p", labels={"app": "loud"}), Reason.POD_ANTI_AFFINITY_CONFLICT, id="another's anti-affinity"),
        pytest.param(
            pod("p", affinity=near(term()) | near(term(key=HOST), away=True)),
            Reason.POD_AFFINITY_UNSATISFIED,
            id="the reason of most nodes",
        ),
    ],
)
def test_explain(asking: PodFacts, reason: Reason) -> None:
    state = cluster()
    assert attached(state).explain(block_of(state, asking), NodeBlock(state.nodes))[0] is reason


def test_a_block_of_some_nodes_or_one() -> None:
    state = cluster()
    plugin, block = attached(state), block_of(state, pod("p", affinity=near(term(), prefer={10: term()})))
    some = NodeBlock(state.nodes, np.array([1, 2]))
    assert plugin.filter(block, some).tolist() == [True, False]
    assert plugin.score(block, some).tolist() == [10, 0]
    assert plugin.filter(block, NodeBlock(state.nodes, 1))


def test_rules_that_cannot_be_read_name_the_field() -> None:
    broken = near(term(labelSelector={"matchLabels": {"app": "not a value"}}))
    state = state_of(NODES, [pod("placed", node="a1", affinity=broken)])
    plugin = attached(state)
    assert allowed(plugin, pod("other", labels=DB)) == "a1 a2 b1 c1"
    with pytest.raises(ValueError, match=r"default/p: spec\.affinity\.podAffinity\.required.*\[0\]\.labelSelector: .*not a"):
        allowed(plugin, pod("p", affinity=broken))


@pytest.mark.parametrize("weight", [-1, 101])
def test_weight_out_of_bounds_is_refused(weight: int) -> None:
    with pytest.raises(msgspec.ValidationError, match="hardPodAffinityWeight"):
        msgspec.convert({"hardPodAffinityWeight": weight}, InterPodAffinityArgs)


def test_a_refused_pod_is_placed_once_its_neighbour_is() -> None:
    engine = Engine([Profile(PROFILE, [InterPodAffinity()])])
    engine.step([*map(NodeSeen, NODES)], 1.0)
    (parked,) = engine.step([PodSeen(pod("follower", affinity=near(term("web"))))], 2.0)
    assert isinstance(parked, Park)
    assert parked.verdict.reason is Reason.POD_AFFINITY_UNSATISFIED
    leader = engine.step([PodSeen(pod("leader", labels=WEB))], 3.0)
    follower = [] if len(leader) > 1 else engine.step([Tick()], 4.0)
    places = {placed.name: placed.node for place in [*leader, *follower] if isinstance(place, Place) for placed in place.pods}
    assert places == {"leader": "a1", "follower": "a1"}
