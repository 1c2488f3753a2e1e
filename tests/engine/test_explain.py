"""Why units wait: one dominant reason, figures, every node counted once, and ways out that are true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.engine.answer_values import Question
from muster.engine.answers import answers
from muster.engine.decisions import Park, Place
from muster.engine.explain import MESSAGE_LEN_MAX, said_anew
from muster.engine.facts import NodeFacts, PodFacts
from muster.engine.machine import Engine
from muster.engine.plugin import Plugin, Scope
from muster.engine.plugins.bandwidth import Bandwidth
from muster.engine.plugins.fit import Fit, FitArgs
from muster.engine.plugins.inter_pod_affinity import InterPodAffinity
from muster.engine.plugins.node_affinity import NodeAffinity
from muster.engine.plugins.node_pool import NodePool
from muster.engine.plugins.node_ports import NodePorts
from muster.engine.plugins.node_ready import NodeReady
from muster.engine.plugins.node_unschedulable import NodeUnschedulable
from muster.engine.plugins.taint_toleration import TaintToleration
from muster.engine.profile import Profile
from muster.objects.reasons import Category, Holder, Reason, Shortfall, Verdict
from tests.engine.building import PROFILE, node, pod
from tests.engine.test_machine import gang


def engine_with(nodes: Sequence[NodeFacts], running: Sequence[PodFacts] = (), *more: Plugin, fit: Fit | None = None) -> Engine:
    plugins: list[Plugin] = [
        NodeUnschedulable(),
        NodeReady(),
        NodeAffinity(),
        TaintToleration(),
        NodePool(),
        fit or Fit(),
        Bandwidth(),
        NodePorts(),
        InterPodAffinity(),
        *more,
    ]
    made = Engine([Profile(PROFILE, plugins)])
    made.step([*(ev.NodeSeen(n) for n in nodes), *(ev.PodSeen(p) for p in running)], 0.0)
    return made


def verdict_on(made: Engine, asked: PodFacts) -> Verdict:
    found = [d for d in made.step([ev.PodSeen(asked)], 1.0) if isinstance(d, Park)]
    assert len(found) == 1
    return found[0].verdict


GPU = "nvidia.com/gpu"
TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


def mbps(n: int) -> dict[str, str]:
    return {"muster.dev/bandwidth": f"{n}Mbps"}


NEAR_X = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}

SITUATIONS = [
    pytest.param(
        [node("a", cpu="4"), node("b", cpu="4")],
        [pod("r", cpu="1", node="a"), pod("s", cpu="3", node="b")],
        pod("w", cpu="4"),
        Reason.CPU_INSUFFICIENT,
        ("cpu", 4000, 3000, "a"),
        {Reason.CPU_INSUFFICIENT: 2},
        ["would fit now with cpu 3 (on a)", "a has room when these end: 1 pod of other work"],
        id="cpu",
    ),
    pytest.param(
        [node("a", resources={GPU: 4}), node("b")],
        [pod("r", resources={GPU: 3}, node="a")],
        pod("w", resources={GPU: 2}),
        Reason.GPU_INSUFFICIENT,
        (GPU, 2, 1, "a"),
        {Reason.GPU_INSUFFICIENT: 2},
        [f"would fit now with {GPU} 1 (on a)", "a has room when these end: 1 pod of other work"],
        id="gpu",
    ),
    pytest.param(
        [node("a", annotations=mbps(1000)), node("b", annotations=mbps(400))],
        [pod("r", annotations=mbps(700), node="a")],
        pod("w", annotations={"muster.dev/bandwidth-egress": "500Mbps"}),
        Reason.BANDWIDTH_INSUFFICIENT,
        ("bandwidth-egress", 500_000_000, 400_000_000, "b"),
        {Reason.BANDWIDTH_INSUFFICIENT: 2},
        ["would fit now with bandwidth-egress 400Mbps (on b)", "a has room when these end: 1 pod of other work"],
        id="bandwidth, one direction",
    ),
    pytest.param(
        [node("a", cpu="4", memory="1Gi"), node("b", cpu="1", memory="8Gi"), node("c", cpu="4", memory="8Gi")],
        [pod("r", cpu="3", node="c")],
        pod("w", cpu="3", memory="4Gi"),
        Reason.RESOURCES_INSUFFICIENT,
        ("cpu", 3000, 4000, "a"),
        {Reason.CPU_INSUFFICIENT: 2, Reason.MEMORY_INSUFFICIENT: 1},
        ["would fit now with cpu 1 (on b)", "would fit now with memory 1Gi (on a)"],
        id="each alone fits somewhere",
    ),
    pytest.param(
        [node("a"), node("b")],
        [],
        pod("w", cpu="1", nodeSelector={"disk": "ssd"}),
        Reason.NODE_SELECTOR_MISMATCH,
        None,
        {Reason.NODE_AFFINITY_MISMATCH: 2},
        ["no node has the label disk=ssd; set it on one (kubectl label node NODE disk=ssd)"],
        id="label missing",
    ),
    pytest.param(
        [node("a", labels={"disk": "ssd"}), node("b", labels={"zone": "z"})],
        [],
        pod("w", cpu="1", nodeSelector={"disk": "ssd", "zone": "z"}),
        Reason.NODE_SELECTOR_MISMATCH,
        None,
        {Reason.NODE_AFFINITY_MISMATCH: 2},
        ["no node has all labels that the selector names: disk=ssd on 1 nodes, zone=z on 1 nodes; label one of them"],
        id="labels not together",
    ),
    pytest.param(
        [node("a", taints=[TAINT]), node("b", taints=[TAINT]), node("c", unschedulable=True)],
        [],
        pod("w", cpu="1"),
        Reason.TAINT_NOT_TOLERATED,
        ("toleration of gpu=yes:NoSchedule", 1, 0, ""),
        {Reason.TAINT_NOT_TOLERATED: 2, Reason.NODE_UNSCHEDULABLE: 1},
        [
            "tolerate the taint gpu=yes:NoSchedule (on 2 of the nodes)",
            "uncordon a node: kubectl uncordon c (cordoned: c)",
        ],
        id="taint, and a cordoned node",
    ),
    pytest.param(
        [node("a")],
        [],
        pod("w", cpu="1", labels={"muster.dev/pool": "train"}),
        Reason.NODE_POOL_MISMATCH,
        ("NodePool train, which does not exist", 1, 0, ""),
        {Reason.NODE_POOL_MISMATCH: 1},
        ["set the pod's label muster.dev/pool to a pool that has nodes for it; it names pool 'train'"],
        id="pool",
    ),
    pytest.param(
        [node("a")],
        [pod("r", ports=[{"hostPort": 80}], node="a")],
        pod("w", ports=[{"hostPort": 80}]),
        Reason.PORT_CONFLICT,
        ("host port 80/TCP", 1, 0, ""),
        {Reason.PORT_CONFLICT: 1},
        [],
        id="port",
    ),
    pytest.param(
        [node("a"), node("b")],
        [],
        pod("w", cpu="1", affinity=NEAR_X),
        Reason.POD_AFFINITY_UNSATISFIED,
        None,
        None,
        [],
        id="affinity",
    ),
    pytest.param(
        [node("a", cpu="2"), node("b", cpu="4")],
        [],
        pod("w", cpu="5"),
        Reason.IMPOSSIBLE,
        ("cpu", 5000, 4000, "b"),
        {Reason.CPU_INSUFFICIENT: 2},
        ["ask for at most 4 of cpu"],
        id="impossible",
    ),
    pytest.param(
        [node("a", cpu="2"), node("b", cpu="8", unschedulable=True)],
        [],
        pod("w", cpu="5"),
        Reason.CPU_INSUFFICIENT,
        ("cpu", 5000, 2000, "a"),
        {Reason.CPU_INSUFFICIENT: 1, Reason.NODE_UNSCHEDULABLE: 1},
        ["would fit now with cpu 2 (on a)"],
        id="a cordoned node could",
    ),
    pytest.param(
        [node("a", cpu="2"), node("b", cpu="8", taints=[{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}])],
        [],
        pod("w", cpu="5"),
        Reason.CPU_INSUFFICIENT,
        ("cpu", 5000, 2000, "a"),
        {Reason.CPU_INSUFFICIENT: 1, Reason.TAINT_NOT_TOLERATED: 1},
        ["would fit now with cpu 2 (on a)"],
        id="a node under pressure could",
    ),
    pytest.param([], [], pod("w", cpu="1"), Reason.NO_NODES, None, None, [], id="no nodes"),
]


@pytest.mark.parametrize(("nodes", "running", "asked", "reason", "short", "counts", "helps"), SITUATIONS)
def test_situations(
    nodes: list[NodeFacts],
    running: list[PodFacts],
    asked: PodFacts,
    reason: Reason,
    short: tuple[str, float, float, str] | None,
    counts: dict[Reason, int] | None,
    helps: list[str],
) -> None:
    found = verdict_on(engine_with(nodes, running), asked)
    assert found.reason is reason
    if short is not None:
        first = found.shortfalls[0]
        assert (first.resource, first.want, first.best, first.where) == short
    if counts is not None:
        assert found.nodes_by_reason == counts
    assert sum(found.nodes_by_reason.values()) == len(nodes)
    assert list(found.helps[:-1])[: len(helps)] == helps
    assert found.helps[-1] == reason.remedy, "the general way out comes last"
    assert len(found.message) <= MESSAGE_LEN_MAX
    assert "\n" not in found.message


def test_the_message_for_bandwidth_has_the_shortfall_and_the_best_node_and_names_nobody() -> None:
    made = engine_with([node("a", annotations=mbps(1000))], [pod("r", annotations=mbps(700), node="a")])
    found = verdict_on(made, pod("w", annotations=mbps(500)))
    assert found.shortfalls[0].holders == (Holder("Pod", "default/r", 700_000_000, "a"),)
    assert found.message.startswith(
        "0 of 1 nodes will do: 1 BandwidthInsufficient; bandwidth-egress: wants 500Mbps, a has 300Mbps, 200Mbps short; "
    )
    assert "default/r" not in f"{found.message} {found.helps}", "it stands on an object that others may read"
    (answer,) = answers(made, Question(key="Pod/default/w"))
    assert answer.verdict is not None
    assert "; held by Pod default/r (700Mbps)" in answer.verdict.message
    assert "a has room when these end: Pod/default/r" in answer.verdict.helps


def test_the_nearest_nodes_come_first_each_with_all_that_it_lacks() -> None:
    nodes = [node(f"n{i}", cpu="8", memory="8Gi") for i in range(8)]
    running = [pod(f"r{i}", cpu=str(i), memory=f"{8 - i}Gi", node=f"n{i}") for i in range(1, 8)]
    running.append(pod("r0", cpu="8", memory="8Gi", node="n0"))
    found = verdict_on(engine_with(nodes, running), pod("w", cpu="8", memory="4Gi"))
    assert [one.subject for one in found.nearest] == ["n4", "n3", "n5", "n2", "n6"]
    three = next(one for one in found.nearest if one.subject == "n3")
    assert {(s.resource, s.missing) for s in three.shortfalls} == {("cpu", 3000), ("memory", 2**30)}
    assert all(s.where == one.subject for one in found.nearest for s in one.shortfalls)


def test_members_of_a_gang_hold_together() -> None:
    notes = {"gang.scheduling.koordinator.sh/name": "g"}
    running = [pod(f"g{i}", cpu="1", node="a", annotations=notes) for i in range(3)]
    found = verdict_on(engine_with([node("a", cpu="4")], running), pod("w", cpu="4"))
    assert found.shortfalls[0].holders == (Holder("PodGroup", "default/g", 3000, "a"),)
    assert "a has room when these end: 3 pods of other work" in found.helps


def test_a_gang_says_how_many_fit_and_not_found_is_another_reason_than_impossible() -> None:
    made = engine_with([node("a", cpu="2"), node("b", cpu="1")])
    short = next(d for d in made.step(gang("g", 4), 1.0) if isinstance(d, Park)).verdict
    assert short.reason is Reason.GANG_INSUFFICIENT
    assert short.message.startswith("3 of the 4 pods of default that must start together fit now")
    assert short.helps[0] == "a minimum of 3 would start now"
    assert sum(short.nodes_by_reason.values()) == 2
    never = next(d for d in made.step(gang("h", 2, cpu="3"), 2.0) if isinstance(d, Park)).verdict
    assert (never.reason, never.reason.category) == (Reason.IMPOSSIBLE, Category.IMPOSSIBLE)
    assert Reason.SEARCH_GAVE_UP.category is Category.WAITING


def test_resources_that_nobody_looks_at_make_nothing_impossible() -> None:
    fit = Fit(FitArgs(ignored_resources=("example.com/x",)))
    made = engine_with([node("a", cpu="1")], [pod("r", cpu="1", node="a")], fit=fit)
    assert verdict_on(made, pod("w", cpu="1", resources={"example.com/x": 5})).reason is Reason.CPU_INSUFFICIENT


def test_a_plugin_that_breaks_while_it_explains_is_named() -> None:
    class Broken(Plugin):
        name = "Broken"
        scope = Scope.WIDE

        def filter(self, pods: Any, nodes: Any) -> Any:
            raise RuntimeError("boom")

    found = verdict_on(engine_with([node("a")], (), Broken()), pod("w", cpu="1"))
    assert (found.reason, found.plugin) == (Reason.PLUGIN_ERROR, "Broken")


@pytest.mark.parametrize(
    ("old", "new", "is_new"),
    [
        pytest.param({}, {"message": "1 of 3"}, False, id="figures in the message"),
        pytest.param({}, {"nodes_by_reason": {Reason.CPU_INSUFFICIENT: 7}}, False, id="other counts"),
        pytest.param({}, {"best": 2}, False, id="other free amounts"),
        pytest.param({}, {"where": "n9"}, False, id="another best node"),
        pytest.param({}, {"want": 5}, True, id="the pod asks for something else"),
        pytest.param({}, {"resource": "memory"}, True, id="another resource"),
        pytest.param({}, {"reason": Reason.MEMORY_INSUFFICIENT}, True, id="another reason"),
        pytest.param({"nodes_by_reason": {}}, {"nodes_by_reason": {}, "message": "claim b"}, True, id="words without figures"),
    ],
)
def test_what_is_worth_saying_again(old: dict[str, Any], new: dict[str, Any], is_new: bool) -> None:
    def verdict(**change: Any) -> Verdict:
        fields: dict[str, Any] = {"want": 4, "best": 1, "where": "n1", "resource": "cpu"}
        short = {key: change.pop(key, value) for key, value in fields.items()}
        whole: dict[str, Any] = {
            "reason": Reason.CPU_INSUFFICIENT,
            "message": "0 of 3",
            "nodes_by_reason": {Reason.CPU_INSUFFICIENT: 3},
        }
        return Verdict(**whole | change, shortfalls=(Shortfall(reason=Reason.CPU_INSUFFICIENT, **short),))

    assert said_anew(verdict(**old), verdict(**new)) is is_new
    assert said_anew(None, verdict())


def test_a_park_is_not_repeated_for_other_figures_but_the_newest_is_kept() -> None:
    made = engine_with([node("a", cpu="4")], [pod("r", cpu="2", node="a"), pod("s", cpu="1", node="a")])
    assert verdict_on(made, pod("w", cpu="3")).shortfalls[0].best == 1000
    assert made.step([ev.PodGone("uid-default-s"), ev.Retry()], 2.0) == []
    assert made.verdicts["Pod/default/w"].shortfalls[0].best == 2000


amounts = st.integers(min_value=0, max_value=6)


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.lists(st.tuples(amounts, amounts, amounts, st.sampled_from(["", "x"]), st.booleans()), min_size=1, max_size=6),
    running=st.lists(st.tuples(st.integers(0, 5), amounts, amounts), max_size=6),
    asked=st.lists(st.tuples(amounts, amounts, amounts, st.booleans(), st.booleans()), min_size=1, max_size=4),
)
def test_every_waiting_unit_counts_each_node_once_and_its_ways_out_are_true(
    nodes: list[tuple[int, int, int, str, bool]],
    running: list[tuple[int, int, int]],
    asked: list[tuple[int, int, int, bool, bool]],
) -> None:
    described = [
        node(
            f"n{i}",
            cpu=str(cpu),
            memory=f"{memory}Gi",
            annotations=mbps(100 * bandwidth),
            labels={"l": label} if label else {},
            taints=[TAINT] if is_tainted else [],
        )
        for i, (cpu, memory, bandwidth, label, is_tainted) in enumerate(nodes)
    ]
    there = [
        pod(f"r{i}", cpu=str(cpu), memory=f"{memory}Gi", node=f"n{at % len(nodes)}")
        for i, (at, cpu, memory) in enumerate(running)
    ]

    def wanted(i: int, cpu: int, memory: int, bandwidth: int, has_selector: bool, tolerates: bool) -> PodFacts:
        return pod(
            f"w{i}",
            cpu=str(cpu),
            memory=f"{memory}Gi",
            annotations=mbps(100 * bandwidth),
            nodeSelector={"l": "x"} if has_selector else {},
            tolerations=[{"operator": "Exists"}] if tolerates else [],
        )

    made = engine_with(described, there)
    for index, one in enumerate(asked):
        # One after the other: a way out is told of the moment at which the work was tried, and who comes next may take it.
        made.step([ev.PodSeen(wanted(index, *one))], 1.0)
        (unit,) = [unit for unit in made.waiting.parked if unit.endswith(f"/w{index}")] or [""]
        for text in made.waiting.parked[unit].verdict.helps if unit else ():
            if text.startswith("would fit now with cpu "):
                amount = text.removeprefix("would fit now with cpu ").partition(" ")[0]
                fresh = engine_with(described, [p.facts for p in made.state.pods.values() if p.node and p.name[0] == "r"])
                taken = [
                    pod(
                        p.name,
                        node=p.node,
                        cpu=f"{p.request[0]}m",
                        memory=str(p.request[1]),
                        annotations=dict(p.facts.metadata.annotations),
                    )
                    for p in made.state.pods.values()
                    if p.node and p.name[0] == "w"
                ]
                fresh.step([ev.PodSeen(p) for p in taken], 0.5)
                smaller = wanted(index, *one)
                smaller.spec.containers[0].resources.requests["cpu"] = amount
                assert [type(d) for d in fresh.step([ev.PodSeen(smaller)], 1.0)] == [Place], text
    for unit, parked in made.waiting.parked.items():
        verdict = parked.verdict
        assert sum(verdict.nodes_by_reason.values()) == len(nodes)
        assert verdict.helps
        assert verdict is made.verdicts[unit]
