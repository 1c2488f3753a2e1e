"""Rules between pods against an oracle: whatever happens to nodes, pods and namespaces, the plugins say what slow loops say."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.blocks import NodeBlock, PodBlock, one_shape
from muster.engine.events import NamespaceSeen, NodeGone, NodeSeen
from muster.engine.facts import Meta, NamespaceFacts, NodeFacts, PodFacts
from muster.engine.plugin import Plugin
from muster.engine.plugins.inter_pod_affinity import InterPodAffinity
from muster.engine.plugins.pod_topology_spread import PodTopologySpread
from muster.engine.pod_index import PodIndex
from muster.engine.profile import Profile
from muster.engine.state import State
from tests.engine.building import node, pod, state_of
from tests.engine.pod_rules import Cluster

NODES = tuple("abcdef")
ZONE, RACK, HOST = "zone", "rack", "kubernetes.io/hostname"

label_sets = st.fixed_dictionaries({}, optional={"app": st.sampled_from(["web", "db"]), "version": st.sampled_from(["1", "2"])})
selectors: st.SearchStrategy[dict[str, Any] | None] = st.one_of(
    st.sampled_from(["web", "web", "db"]).map(lambda app: {"matchLabels": {"app": app}}),
    st.sampled_from([{}, None]),
    st.builds(
        lambda key, operator: {
            "matchExpressions": [
                {"key": key, "operator": operator, **({"values": ["web", "1"]} if operator in ("In", "NotIn") else {})}
            ]
        },
        st.sampled_from(["app", "version"]),
        st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    ),
)
namespace_choices: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.just({}),
    st.just({"namespaces": ["y"]}),
    st.just({"namespaceSelector": {}}),
    st.just({"namespaceSelector": {"matchLabels": {"team": "red"}}}),
    st.just({"namespaces": ["x"], "namespaceSelector": {"matchLabels": {"team": "blue"}}}),
)
keys = st.sampled_from([ZONE, RACK, HOST])
own_labels = st.sampled_from([{}, {}, {"matchLabelKeys": ["version"]}, {"mismatchLabelKeys": ["version"]}])


def _some(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, [])}


terms = st.builds(
    lambda key, selector, where, own: {
        "topologyKey": key,
        **_some(labelSelector=selector),
        **where,
        **(own if selector is not None else {}),
    },
    keys,
    selectors,
    namespace_choices,
    own_labels,
)
weighted = st.builds(lambda weight, term: {"weight": weight, "podAffinityTerm": term}, st.integers(1, 100), terms)


def _side(hard: list[dict[str, Any]], soft: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": hard,
        "preferredDuringSchedulingIgnoredDuringExecution": soft,
    }


hard_sides = st.lists(terms, min_size=1, max_size=2).map(lambda hard: _side(hard, []))
sides = st.one_of(hard_sides, st.builds(_side, st.lists(terms, max_size=2), st.lists(weighted, min_size=1, max_size=2)))
affinities = st.one_of(
    st.none(),
    hard_sides.map(lambda side: {"podAffinity": side}),
    sides.map(lambda side: {"podAntiAffinity": side}),
    st.fixed_dictionaries({"podAffinity": sides, "podAntiAffinity": sides}),
)
constraints = st.lists(
    st.builds(
        lambda key, when, skew, selector, least, policies, own: {
            "topologyKey": key,
            "whenUnsatisfiable": when,
            "maxSkew": skew,
            **_some(labelSelector=selector, minDomains=least),
            **policies,
            **(own if selector is not None else {}),
        },
        keys,
        st.sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
        st.integers(1, 3),
        selectors,
        st.sampled_from([None, None, 2, 3]),
        st.fixed_dictionaries(
            {},
            optional={
                "nodeAffinityPolicy": st.sampled_from(["Honor", "Ignore"]),
                "nodeTaintsPolicy": st.sampled_from(["Honor", "Ignore"]),
            },
        ),
        st.sampled_from([{}, {"matchLabelKeys": ["version"]}]),
    ),
    max_size=3,
    unique_by=lambda c: (c["topologyKey"], c["whenUnsatisfiable"]),
)
node_labels = st.fixed_dictionaries({}, optional={ZONE: st.sampled_from(["1", "2", "3"]), RACK: st.sampled_from(["1", "2"])})
nodes = st.builds(
    lambda name, labels, tainted: node(
        name, labels=labels, taints=[{"key": "t", "value": "", "effect": "NoSchedule"}] if tainted else []
    ),
    st.sampled_from(NODES),
    node_labels,
    st.booleans(),
)


def _pod(number: int, where: str, namespace: str, labels: dict[str, str], **spec: Any) -> PodFacts:
    return pod(f"p{number}", node=where, namespace=namespace, labels=labels, **{k: v for k, v in spec.items() if v})


placed_pods = st.builds(
    lambda number, where, namespace, labels, affinity: _pod(number, where, namespace, labels, affinity=affinity),
    st.integers(0, 7),
    st.sampled_from(NODES),
    st.sampled_from(["x", "y"]),
    label_sets,
    affinities,
)
asking_pods = st.builds(
    lambda namespace, labels, affinity, spread, zone: _pod(
        99,
        "",
        namespace,
        labels,
        affinity=affinity,
        topologySpreadConstraints=spread,
        nodeSelector={ZONE: zone} if zone else None,
    ),
    st.sampled_from(["x", "y"]),
    label_sets,
    affinities,
    constraints,
    st.sampled_from(["", "", "1"]),
)
namespaces = st.builds(
    lambda name, team: NamespaceFacts(metadata=msgspec.convert({"name": name, "labels": {"team": team}}, Meta)),
    st.sampled_from(["x", "y"]),
    st.sampled_from(["red", "blue"]),
)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), placed_pods),
        st.tuples(st.just("ending"), st.integers(0, 7)),
        st.tuples(st.just("gone"), st.integers(0, 7)),
        st.tuples(st.just("node"), nodes),
        st.tuples(st.just("node gone"), st.sampled_from(NODES)),
        st.tuples(st.just("namespace"), namespaces),
    ),
    max_size=6,
)
beginnings = st.tuples(
    st.lists(nodes, min_size=3, max_size=6, unique_by=lambda one: one.metadata.name),
    st.lists(placed_pods, min_size=2, max_size=8, unique_by=lambda one: one.metadata.name),
)
Beginning = tuple[list[NodeFacts], list[PodFacts]]
Changes = list[tuple[str, Any]]


class World:
    """The state with both plugins, and the same things in plain dictionaries for the oracle."""

    def __init__(self, beginning: Beginning) -> None:
        self.state = State()
        self.affinity, self.spread = InterPodAffinity(), PodTopologySpread()
        Profile("test", [self.affinity, self.spread]).attach(self.state)
        self.nodes: dict[str, NodeFacts] = {}
        self.pods: dict[str, PodFacts] = {}
        for one in beginning[0]:
            self.change("node", one)
        for each in beginning[1]:
            self.change("pod", each)

    def change(self, what: str, value: Any) -> None:
        if what == "pod":
            uid = value.metadata.uid = f"uid-{value.metadata.name}"
            self.pods[uid] = value
            self.state.see_pod(value)
        elif what == "gone" and f"uid-p{value}" in self.pods:
            del self.pods[f"uid-p{value}"]
            self.state.remove_pod(f"uid-p{value}")
        elif what == "ending" and f"uid-p{value}" in self.pods:
            before = self.pods[f"uid-p{value}"]
            meta = msgspec.structs.replace(before.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
            self.pods[f"uid-p{value}"] = after = msgspec.structs.replace(before, metadata=meta)
            self.state.see_pod(after)
        elif what == "node":
            self.nodes[value.metadata.name] = value
            self.state.apply_node(NodeSeen(value))
        elif what == "node gone":
            self.nodes.pop(value, None)
            self.state.apply_node(NodeGone(value))
        elif what == "namespace":
            self.state.namespaces[value.metadata.name] = value
            self.affinity.event(NamespaceSeen(value))
        self.state.flush_nodes()

    def oracle(self) -> Cluster:
        labels = {name: facts.metadata.labels for name, facts in self.state.namespaces.items()}
        return Cluster(self.nodes, [(one, one.spec.node_name) for one in self.pods.values()], labels)

    def block(self, asking: PodFacts) -> PodBlock:
        block = one_shape(self.state.shapes.shape_of(asking))
        block.pod = asking
        return block

    def filtered(self, plugin: Plugin, asking: PodFacts) -> list[bool]:
        block = self.block(asking)
        if not plugin.concerns(block):
            return [True] * len(self.nodes)
        mask = np.asarray(plugin.filter(block, NodeBlock(self.state.nodes)))
        return list(np.broadcast_to(mask, len(self.nodes)).tolist())


@given(beginnings, changes, st.lists(asking_pods, min_size=1, max_size=3))
def test_plugins_agree_with_the_oracle(beginning: Beginning, steps: Changes, asking: list[PodFacts]) -> None:
    world = World(beginning)
    index = PodIndex.of(world.state)
    index._columns_max = 4
    for change in [None, *steps]:
        if change is not None:
            world.change(*change)
        oracle = world.oracle()
        for one in asking:
            assert world.filtered(world.affinity, one) == oracle.affinity_allows(one)
            assert world.filtered(world.spread, one) == oracle.spread_allows(one)
        index.check_invariants()


@given(beginnings, changes, asking_pods, st.lists(st.booleans(), min_size=6, max_size=6))
def test_scores_agree_with_the_oracle(beginning: Beginning, steps: Changes, asking: PodFacts, fits: list[bool]) -> None:
    world = World(beginning)
    for what, value in steps:
        world.change(what, value)
    oracle, block, everywhere = world.oracle(), world.block(asking), NodeBlock(world.state.nodes)
    count = len(world.nodes)
    raw = np.broadcast_to(world.affinity.score(block, everywhere), count)
    assert raw.tolist() == oracle.affinity_scores(asking)
    feasible = np.array(fits[:count], np.bool_)
    raw = np.asarray(world.spread.score(block, everywhere))
    scores = world.spread.normalise(raw if raw.shape else np.zeros(count, np.int64), feasible)
    assert scores[feasible].tolist() == np.array(oracle.spread_scores(asking, fits[:count]), int)[feasible].tolist()


@given(beginnings, changes, asking_pods)
def test_an_index_from_the_start_says_what_a_late_one_says(beginning: Beginning, steps: Changes, asking: PodFacts) -> None:
    world = World(beginning)
    world.filtered(world.affinity, asking)
    for what, value in steps:
        world.change(what, value)
    late, state = InterPodAffinity(), state_of(world.nodes.values(), world.pods.values())
    state.namespaces.update(world.state.namespaces)
    Profile("late", [late]).attach(state)
    early_block, early_nodes = world.block(asking), NodeBlock(world.state.nodes)
    late_block, late_nodes = one_shape(state.shapes.shape_of(asking)), NodeBlock(state.nodes)
    late_block.pod = asking
    assert late.concerns(late_block) == world.affinity.concerns(early_block)
    assert np.array_equal(late.filter(late_block, late_nodes), world.affinity.filter(early_block, early_nodes))
    assert np.array_equal(late.score(late_block, late_nodes), world.affinity.score(early_block, early_nodes))
