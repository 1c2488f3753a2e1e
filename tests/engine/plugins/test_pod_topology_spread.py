"""PodTopologySpread: the well-known cases, one by one. Agreement in general is in tests/engine/test_pod_rules.py."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from muster.engine.blocks import NodeBlock, PodBlock, one_shape
from muster.engine.facts import OwnerFacts, PodFacts
from muster.engine.plugins.pod_topology_spread import PodTopologySpread, PodTopologySpreadArgs
from muster.engine.profile import Profile
from muster.engine.state import State
from muster.objects.reasons import Reason
from tests.engine.building import node, pod, state_of

ZONE, HOST = "zone", "kubernetes.io/hostname"
WEB = {"app": "web"}
SPLIT = "topology.kubernetes.io/zone"


def constraint(key: str = ZONE, skew: int = 1, when: str = "DoNotSchedule", **more: Any) -> dict[str, Any]:
    return {
        "topologyKey": key,
        "maxSkew": skew,
        "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": WEB},
        **more,
    }


def spreading(*constraints: dict[str, Any], labels: dict[str, str] | None = None, **more: Any) -> PodFacts:
    return pod("p", labels=WEB if labels is None else labels, topologySpreadConstraints=list(constraints), **more)


def replica(one: PodFacts) -> PodFacts:
    """The same pod as a replica of some controller."""
    owner = OwnerFacts(kind="ReplicaSet", name="web", uid="rs", controller=True)
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, owner_references=[owner]))


def cluster(**zones: str) -> State:
    """Zones by name: `a="2 1"` is two nodes in zone a, a0 with two pods of app web and a1 with one."""
    nodes, pods = [], []
    for zone, counts in zones.items():
        for index, count in enumerate(counts.split()):
            name = f"{zone}{index}"
            nodes.append(node(name, labels={} if zone == "none" else {ZONE: zone, SPLIT: zone}))
            pods += [pod(f"{name}-{n}", labels=WEB, node=name) for n in range(int(count))]
    return state_of(nodes, pods)


def attached(state: State, **args: Any) -> PodTopologySpread:
    plugin = PodTopologySpread(msgspec.convert(args, PodTopologySpreadArgs))
    Profile("test", [plugin]).attach(state)
    return plugin


def block_of(state: State, asking: PodFacts) -> PodBlock:
    block = one_shape(state.shapes.shape_of(asking))
    block.pod = asking
    return block


def allowed(plugin: PodTopologySpread, asking: PodFacts) -> str:
    nodes = NodeBlock(plugin.state.nodes)
    mask = np.broadcast_to(np.asarray(plugin.filter(block_of(plugin.state, asking), nodes)), len(nodes))
    return " ".join(name for name, fits in zip(nodes.names(), mask, strict=True) if fits)


@pytest.mark.parametrize(
    ("zones", "asking", "names"),
    [
        pytest.param({"a": "1", "b": "0"}, pod("p", labels=WEB), "a0 b0", id="no constraint"),
        pytest.param({"a": "1", "b": "0"}, spreading(constraint()), "b0", id="the emptier zone only"),
        pytest.param({"a": "1", "b": "1"}, spreading(constraint()), "a0 b0", id="even: any zone"),
        pytest.param({"a": "1", "b": "0"}, spreading(constraint(skew=2)), "a0 b0", id="a larger skew is allowed"),
        pytest.param({"a": "1 1", "b": "1 0"}, spreading(constraint()), "b0 b1", id="pods of all nodes of a zone add up"),
        pytest.param({"a": "1 0", "b": "1"}, spreading(constraint(HOST)), "a1", id="by node"),
        pytest.param({"a": "1 0", "b": "0"}, spreading(constraint(), constraint(HOST)), "b0", id="all constraints"),
        pytest.param({"a": "1", "b": "0", "none": "0"}, spreading(constraint()), "b0", id="a node without the label"),
        pytest.param({"a": "1", "none": "3"}, spreading(constraint()), "a0", id="pods on nodes without the label"),
        pytest.param({"a": "1", "b": "0"}, spreading(constraint(), labels={}), "a0 b0", id="does not match itself"),
        pytest.param({"a": "2", "b": "0"}, spreading(constraint(), labels={}), "b0", id="does not match itself, too uneven"),
        pytest.param({"a": "1", "b": "0"}, spreading(constraint(labelSelector={})), "a0 b0", id="empty selector counts none"),
        pytest.param({"a": "1", "b": "0"}, spreading(constraint(labelSelector=None)), "a0 b0", id="no selector counts none"),
        pytest.param({"a": "1", "b": "0"}, spreading(constraint(), namespace="other"), "a0 b0", id="other namespace"),
        pytest.param({"a": "1", "b": "1"}, spreading(constraint(minDomains=3)), "", id="fewer domains than minDomains"),
        pytest.param({"a": "0", "b": "1"}, spreading(constraint(minDomains=3)), "a0", id="minDomains: up to maxSkew in each"),
        pytest.param({"a": "1", "b": "1"}, spreading(constraint(minDomains=2)), "a0 b0", id="minDomains reached"),
        pytest.param(
            {"a": "1", "b": "0"}, spreading(constraint(), nodeSelector={ZONE: "a"}), "a0 b0", id="node selector honoured"
        ),
        pytest.param(
            {"a": "1", "b": "0"},
            spreading(constraint(nodeAffinityPolicy="Ignore"), nodeSelector={ZONE: "a"}),
            "b0",
            id="node selector ignored",
        ),
        pytest.param(
            {"a": "1", "b": "0"},
            spreading(constraint(matchLabelKeys=["version"]), labels={**WEB, "version": "2"}),
            "a0 b0",
            id="matchLabelKeys: pods of another version do not count",
        ),
        pytest.param(
            {"a": "1", "b": "0"},
            spreading(constraint(matchLabelKeys=["version"])),
            "b0",
            id="matchLabelKeys: a label that the pod lacks",
        ),
    ],
)
def test_filter(zones: dict[str, str], asking: PodFacts, names: str) -> None:
    assert allowed(attached(cluster(**zones)), asking) == names


@pytest.mark.parametrize(
    ("policy", "tolerations", "names"),
    [
        pytest.param({}, [], "b0", id="ignored by default"),
        pytest.param({"nodeTaintsPolicy": "Ignore"}, [], "b0", id="ignored"),
        pytest.param({"nodeTaintsPolicy": "Honor"}, [], "a0 b0", id="honoured: the tainted zone is not counted"),
        pytest.param({"nodeTaintsPolicy": "Honor"}, [{"key": "t", "operator": "Exists"}], "b0", id="honoured and tolerated"),
    ],
)
def test_taints(policy: dict[str, Any], tolerations: list[dict[str, str]], names: str) -> None:
    """Taints decide which zones are counted; keeping the pod off tainted nodes is TaintToleration's."""
    taint = {"key": "t", "value": "", "effect": "NoSchedule"}
    nodes = [node("a0", labels={ZONE: "a"}), node("b0", labels={ZONE: "b"}, taints=[taint])]
    state = state_of(nodes, [pod("w", labels=WEB, node="a0")])
    assert allowed(attached(state), spreading(constraint(**policy), tolerations=tolerations)) == names


def test_a_pod_that_is_being_deleted_does_not_count() -> None:
    state = cluster(a="1", b="0")
    plugin, asking = attached(state), spreading(constraint())
    assert allowed(plugin, asking) == "b0"
    web = state.pods["uid-default-a0-0"].facts
    state.see_pod(msgspec.structs.replace(web, metadata=msgspec.structs.replace(web.metadata, deletion_timestamp="now")))
    assert allowed(plugin, asking) == "a0 b0"


def final(plugin: PodTopologySpread, asking: PodFacts, feasible: list[bool] | None = None) -> list[int]:
    nodes = NodeBlock(plugin.state.nodes)
    raw = np.asarray(plugin.score(block_of(plugin.state, asking), nodes))
    if not raw.shape:
        raw = np.full(len(nodes), raw)
    mask = np.ones(len(nodes), np.bool_) if feasible is None else np.array(feasible)
    return list(plugin.normalise(raw, mask).tolist())


ANYWAY = "ScheduleAnyway"


@pytest.mark.parametrize(
    ("zones", "asking", "expected"),
    [
        pytest.param({"a": "1", "b": "0"}, spreading(constraint()), [0, 0], id="a hard constraint scores nothing"),
        pytest.param({"a": "0", "b": "0"}, spreading(constraint(when=ANYWAY)), [100, 100], id="nobody there"),
        # ln(2 + 2) = 1.39; 3 and 1 pods make 4 and 1 when rounded.
        pytest.param({"a": "3", "b": "1"}, spreading(constraint(when=ANYWAY)), [25, 100], id="fewer is better"),
        pytest.param({"a": "3", "b": "1"}, spreading(constraint(skew=5, when=ANYWAY)), [62, 100], id="maxSkew waters it down"),
        pytest.param({"a": "2 1", "b": "0"}, spreading(constraint(when=ANYWAY)), [0, 0, 100], id="zones, not nodes"),
        # ln(3 + 2) = 1.61; 2, 1 and 0 pods make 3, 2 and 0.
        pytest.param({"a": "2 1", "b": "0"}, spreading(constraint(HOST, when=ANYWAY)), [0, 33, 100], id="by node"),
        pytest.param({"a": "1", "none": "0"}, spreading(constraint(when=ANYWAY)), [100, 0], id="without the label: 0"),
    ],
)
def test_score(zones: dict[str, str], asking: PodFacts, expected: list[int]) -> None:
    assert final(attached(cluster(**zones)), asking) == expected


def test_domains_are_those_of_feasible_nodes() -> None:
    state = cluster(a="6", b="5", c="0", d="0", e="0")
    plugin, asking = attached(state), spreading(constraint(when=ANYWAY))
    # All five: ln(7) makes 12, 10 and 0. The two fullest alone: ln(4) makes 8 and 7.
    assert final(plugin, asking) == [0, 16, 100, 100, 100]
    assert final(plugin, asking, [True, True, False, False, False])[:2] == [87, 100]


def test_explain_says_how_uneven_it_would_become() -> None:
    state = cluster(a="4", b="3", c="0", none="0")
    plugin, asking = attached(state), spreading(constraint(skew=2))
    refused = NodeBlock(state.nodes, np.array([0, 1, 3]))
    reason, (short,) = plugin.explain(block_of(state, asking), refused)
    assert reason is Reason.TOPOLOGY_SPREAD_UNSATISFIED
    assert (short.resource, short.want, short.best, short.missing) == (ZONE, 4, 2, 2)


@pytest.mark.parametrize(
    ("asking", "args", "expected"),
    [
        pytest.param(pod("p", labels=WEB), {}, False, id="no constraints"),
        pytest.param(spreading(constraint()), {}, True, id="a constraint"),
        pytest.param(pod("p", labels=WEB), {"defaultingType": "System"}, False, id="defaults, no controller"),
        pytest.param(replica(pod("p", labels=WEB)), {"defaultingType": "System"}, True, id="defaults, a controller"),
        pytest.param(replica(pod("p", labels=WEB)), {}, False, id="no defaults"),
    ],
)
def test_concerns(asking: PodFacts, args: dict[str, Any], expected: bool) -> None:
    state = cluster(a="1")
    assert attached(state, **args).concerns(block_of(state, asking)) is expected


def test_default_constraints_count_the_fellows_of_a_replica() -> None:
    defaults = [{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}]
    plugin = attached(cluster(a="1", b="0"), defaultConstraints=defaults)
    asking = replica(pod("p", labels={**WEB, "statefulset.kubernetes.io/pod-name": "web-1"}))
    assert allowed(plugin, asking) == "b0"
    assert allowed(plugin, pod("alone", labels=WEB)) == "a0 b0"
    assert allowed(plugin, replica(pod("bare"))) == "a0 b0"
    assert allowed(plugin, replica(spreading(constraint(skew=9)))) == "a0 b0"


def test_system_defaults_score_nodes_without_a_zone_too() -> None:
    plugin = attached(cluster(a="3 0", none="0"), defaultingType="System")
    scores = final(plugin, replica(pod("p", labels=WEB)))
    assert scores[2] > scores[1] > scores[0]


def test_a_selector_that_cannot_be_read_names_the_field() -> None:
    plugin = attached(cluster(a="1"))
    broken = spreading(constraint(labelSelector={"matchLabels": {"app": "not a value"}}))
    with pytest.raises(ValueError, match=r"default/p: spec\.topologySpreadConstraints\[0\]\.labelSelector: .*not a value"):
        allowed(plugin, broken)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param({"defaultConstraints": [{"maxSkew": 0}]}, "maxSkew", id="no skew"),
        pytest.param({"defaultConstraints": [constraint()]}, "labelSelector", id="a selector: it follows from the pod"),
        pytest.param(
            {
                "defaultingType": "System",
                "defaultConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": ANYWAY}],
            },
            "defaultingType: List",
            id="System with a list",
        ),
        pytest.param(
            {"defaultConstraints": [{"maxSkew": n, "topologyKey": "z", "whenUnsatisfiable": ANYWAY} for n in (1, 2)]},
            "twice",
            id="the same twice",
        ),
        pytest.param(
            {"defaultConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": ANYWAY, "minDomains": 2}]},
            "minDomains",
            id="minDomains on a soft one",
        ),
    ],
)
def test_bad_arguments_are_refused(args: dict[str, Any], words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(args, PodTopologySpreadArgs)
