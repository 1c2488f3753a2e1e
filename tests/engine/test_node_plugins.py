"""The plugins about nodes, ports, volumes and images at work in the engine: who is woken, and that no answer goes stale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.engine.decisions import Park, Place
from muster.engine.facts import ClaimFacts, ConditionFacts, NodeFacts, PersistentVolumeFacts, PodFacts, PoolFacts
from muster.engine.machine import Engine
from muster.engine.plugin import Plugin
from muster.engine.plugins.fit import Fit
from muster.engine.plugins.image_locality import ImageLocality
from muster.engine.plugins.node_affinity import NodeAffinity
from muster.engine.plugins.node_name import NodeName
from muster.engine.plugins.node_pool import NodePool
from muster.engine.plugins.node_ports import NodePorts
from muster.engine.plugins.node_ready import NodeReady
from muster.engine.plugins.node_unschedulable import NodeUnschedulable
from muster.engine.plugins.taint_toleration import TaintToleration
from muster.engine.plugins.volume_binding import VolumeBinding
from muster.engine.plugins.volume_restrictions import VolumeRestrictions
from muster.engine.plugins.volume_zone import VolumeZone
from muster.engine.pods import PodRecord
from muster.engine.profile import Profile
from muster.objects.reasons import Reason
from tests.engine.building import PROFILE, node, pod
from tests.engine.volumes_building import claim, mounting, storage_class, volume


def engine(*events: ev.AnyEvent) -> Engine:
    plugins: list[Plugin] = [
        NodeUnschedulable(),
        NodeName(),
        NodeReady(),
        TaintToleration(),
        NodeAffinity(),
        NodePool(),
        Fit(),
        NodePorts(),
        VolumeRestrictions(),
        VolumeBinding(),
        VolumeZone(),
        ImageLocality(),
    ]
    made = Engine([Profile(PROFILE, plugins, weights={"TaintToleration": 3, "NodeAffinity": 2})])
    made.step(events, 1.0)
    return made


def outcome(decisions: Sequence[Any]) -> list[tuple[str, str]]:
    """Pods with their nodes, units with the reason why they wait."""
    found: list[tuple[str, str]] = []
    for decision in decisions:
        if isinstance(decision, Place):
            found += [(placed.name, placed.node) for placed in decision.pods]
        else:
            assert isinstance(decision, Park)
            found.append((decision.unit.rpartition("/")[2], decision.verdict.reason))
    return found


def pool(name: str, **spec: Any) -> PoolFacts:
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, PoolFacts)


def naming(name: str, wanted: str) -> PodFacts:
    return pod(name, cpu="1", labels={"muster.dev/pool": wanted})


def port(name: str) -> PodFacts:
    return pod(name, cpu="1", ports=[{"hostPort": 80}])


A, B = ev.NodeSeen(node("a")), ev.NodeSeen(node("b"))


# -- waking -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "waiting", "event", "node_name"),
    [
        pytest.param([], naming("p", "x"), ev.PoolSeen(pool("x", nodes=["b"])), "b", id="the pool appears"),
        pytest.param(
            [ev.PoolSeen(pool("x", selector={}, exclusive=True))],
            pod("p"),
            ev.PoolSeen(pool("x", nodes=["a"], exclusive=True)),
            "b",
            id="the pool lets a node go",
        ),
        pytest.param(
            [ev.PoolSeen(pool("x", selector={}, exclusive=True))], pod("p"), ev.PoolGone("x"), "a", id="the pool goes"
        ),
        pytest.param(
            [ev.PodSeen(pod(f"old-{on}", node=on, ports=[{"hostPort": 80}])) for on in "ab"],
            port("p"),
            ev.PodGone("uid-default-old-b"),
            "b",
            id="a port is free again",
        ),
        pytest.param(
            [], pod("p", nodeSelector={"disk": "ssd"}), ev.NodeSeen(node("b", labels={"disk": "ssd"})), "b", id="a label comes"
        ),
        pytest.param(
            [ev.VolumeSeen(volume("pv", zone=("kubernetes.io/hostname", "b")))],
            mounting("p", "data"),
            ev.ClaimSeen(claim("data", volume="pv")),
            "b",
            id="the claim is bound",
        ),
        pytest.param(
            [ev.ClaimSeen(claim("data", volume="pv"))],
            mounting("p", "data"),
            ev.VolumeSeen(volume("pv")),
            "a",
            id="the volume comes",
        ),
        pytest.param(
            [ev.ClaimSeen(claim("data", storage_class="late"))],
            mounting("p", "data"),
            ev.StorageClassSeen(storage_class("late", "WaitForFirstConsumer")),
            "a",
            id="the class comes",
        ),
        pytest.param(
            [
                ev.ClaimSeen(claim("data", volume="pv", modes=("ReadWriteOncePod",))),
                ev.VolumeSeen(volume("pv")),
                ev.PodSeen(mounting("old", "data", on="b")),
            ],
            mounting("p", "data"),
            ev.PodGone("uid-default-old"),
            "a",
            id="the claim's only pod goes",
        ),
    ],
)
def test_what_waits_is_woken_by_what_it_waits_for(
    before: list[ev.AnyEvent], waiting: PodFacts, event: ev.AnyEvent, node_name: str
) -> None:
    made = engine(A, B, *before)
    ((unit, _),) = outcome(made.step([ev.PodSeen(waiting)], 2.0))
    assert unit == "p"
    assert made.step([ev.Tick()], 3.0) == [], "nothing has happened"
    assert outcome(made.step([event], 4.0)) == [("p", node_name)]


def test_ports_of_pods_that_are_placed_in_one_step() -> None:
    made = engine(A, B)
    found = outcome(made.step([ev.PodSeen(port(f"p{number}")) for number in range(3)], 2.0))
    assert found == [("p0", "a"), ("p1", "b"), ("p2", Reason.PORT_CONFLICT)]


def test_preference_outlives_a_node_that_goes() -> None:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["c"]}]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 9, "preference": term}]}
    made = engine(A, B, ev.NodeSeen(node("c")))
    events: list[ev.AnyEvent] = [ev.Tick(), ev.NodeGone("a"), B]
    for number, event in enumerate(events):
        facts = pod(f"p{number}", cpu="1", affinity={"nodeAffinity": preferred})
        assert outcome(made.step([event, ev.PodSeen(facts)], 2.0 + number)) == [(f"p{number}", "c")]


# -- nothing goes stale -------------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c", "d")


@st.composite
def nodes(draw: st.DrawFn) -> NodeFacts:
    labels = draw(st.dictionaries(st.sampled_from(["zone", "topology.kubernetes.io/zone"]), st.sampled_from(["x", "y"])))
    effects = draw(st.lists(st.sampled_from(["NoSchedule", "PreferNoSchedule"]), max_size=2))
    images = draw(st.dictionaries(st.sampled_from(["app", "big"]), st.integers(0, 2000)))
    made = node(
        draw(st.sampled_from(NAMES)),
        labels=labels,
        taints=[{"key": f"t{number}", "effect": effect} for number, effect in enumerate(effects)],
        unschedulable=draw(st.integers(0, 4)) == 0,
        images=[{"names": [name], "sizeBytes": mib << 20} for name, mib in images.items()],
    )
    status = draw(st.sampled_from(["", "True", "True", "False"]))
    conditions = [ConditionFacts(type="Ready", status=status)] if status else []
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, conditions=conditions))


@st.composite
def running(draw: st.DrawFn) -> PodFacts:
    volumes: list[dict[str, Any]] = draw(
        st.lists(
            st.sampled_from(
                [
                    {"name": "d", "gcePersistentDisk": {"pdName": "disk"}},
                    {"name": "c", "persistentVolumeClaim": {"claimName": "one"}},
                ]
            ),
            max_size=1,
        )
    )
    ports = [{"hostPort": 80}] if draw(st.booleans()) else []
    name = draw(st.sampled_from(["r0", "r1", "r2"]))
    return pod(name, scheduler="other", node=draw(st.sampled_from(NAMES)), ports=ports, volumes=volumes)


selectors = st.sampled_from(
    [None, {"matchLabels": {"zone": "x"}}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
)
changes: st.SearchStrategy[ev.AnyEvent] = st.one_of(
    st.builds(ev.NodeSeen, nodes()),
    st.builds(ev.NodeSeen, nodes()),
    st.builds(ev.NodeGone, st.sampled_from(NAMES)),
    st.builds(ev.PodSeen, running()),
    st.builds(ev.PodGone, st.sampled_from(["uid-default-r0", "uid-default-r1"])),
    st.builds(
        lambda name, selector, names, exclusive: ev.PoolSeen(pool(name, selector=selector, nodes=names, exclusive=exclusive)),
        st.sampled_from(["p", "q"]),
        selectors,
        st.lists(st.sampled_from(NAMES), max_size=2),
        st.booleans(),
    ),
    st.builds(ev.PoolGone, st.sampled_from(["p", "q"])),
    st.builds(lambda bound: ev.ClaimSeen(claim("one", volume=bound, modes=("ReadWriteOncePod",))), st.sampled_from(["", "pv"])),
    st.builds(lambda zone: ev.VolumeSeen(volume("pv", zone=("zone", zone))), st.sampled_from(["x", "y"])),
    st.builds(lambda zone: ev.VolumeSeen(volume("pv", labels={"topology.kubernetes.io/zone": zone})), st.just("x")),
)

REQUIRED = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["y"]}]}]}
PREFERRED = [{"weight": 7, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}]
PROBES = [
    pod("plain", cpu="1"),
    pod("named", cpu="1", labels={"muster.dev/pool": "p"}),
    pod("selects", cpu="1", nodeSelector={"zone": "x"}),
    pod(
        "prefers",
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": REQUIRED,
                "preferredDuringSchedulingIgnoredDuringExecution": PREFERRED,
            }
        },
    ),
    pod("tolerates", tolerations=[{"operator": "Exists"}]),
    pod("large", image="big", tolerations=[{"key": "t0", "operator": "Exists"}]),
    port("port"),
    mounting("mounts", "one"),
    pod("disk", volumes=[{"name": "d", "gcePersistentDisk": {"pdName": "disk"}}]),
]


def scores(made: Engine) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for probe in PROBES:
        record = PodRecord(probe, made.state.shapes.shape_of(probe))
        column = made.evaluator(PROFILE).scores(record).tolist()
        found[probe.metadata.name] = dict(zip(made.state.nodes.names, column, strict=True))
    return found


@given(st.lists(st.lists(changes, min_size=1, max_size=4), min_size=1, max_size=8))
def test_answers_after_any_history_are_those_of_an_engine_that_starts_now(history: list[list[ev.AnyEvent]]) -> None:
    old = engine(A, B)
    scores(old)
    for number, events in enumerate(history):
        old.step(events, 2.0 + number)
        fresh = engine(*objects_of(old))
        assert scores(old) == scores(fresh)


def objects_of(made: Engine) -> list[ev.AnyEvent]:
    """Everything the engine knows, as if it were seen for the first time."""
    state = made.state
    claims: list[ClaimFacts] = list(state.claims.values())
    volumes: list[PersistentVolumeFacts] = list(state.volumes.values())
    return [
        *(ev.NodeSeen(facts) for facts in reversed(state.nodes.facts)),
        *(ev.PodSeen(record.facts) for record in state.pods.values()),
        *(ev.PoolSeen(facts) for facts in state.pools.values()),
        *(ev.ClaimSeen(facts) for facts in claims),
        *(ev.VolumeSeen(facts) for facts in volumes),
    ]
