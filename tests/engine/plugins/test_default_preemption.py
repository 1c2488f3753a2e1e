"""DefaultPreemption: who asks whom to go, with the profile's own filters deciding what would fit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.engine.evaluate import Evaluator
from muster.engine.events import QueueGone, QueueSeen
from muster.engine.facts import BudgetFacts, PodFacts, QueueFacts
from muster.engine.gang_units import Gang, gang_unit
from muster.engine.gangs import pod_settings
from muster.engine.plugin import Nomination
from muster.engine.plugins.default_preemption import DefaultPreemption, DefaultPreemptionArgs
from muster.engine.plugins.fit import Fit
from muster.engine.plugins.inter_pod_affinity import InterPodAffinity
from muster.engine.plugins.node_ports import NodePorts
from muster.engine.plugins.taint_toleration import TaintToleration
from muster.engine.pods import PodRecord
from muster.engine.profile import Profile
from muster.engine.state import State
from muster.engine.units import single_unit, unit_id_of
from muster.engine.work import Work, encode_work
from muster.objects.labels import Muster
from muster.objects.reasons import Reason, Verdict
from tests.engine.building import node, pod, state_of

TAINTED = [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]


class World:
    def __init__(self, nodes: list[Any], pods: list[PodFacts], **args: Any) -> None:
        self.state: State = state_of(nodes, pods)
        self.plugin = DefaultPreemption(DefaultPreemptionArgs(**args))
        filters = [Fit(), TaintToleration(), NodePorts(), InterPodAffinity()]
        profile = Profile("test", [*filters, self.plugin])
        profile.attach(self.state)
        self.helper = Evaluator(profile, self.state)
        self.plugin.helper = self.helper
        for record in self.state.pods.values():
            record.unit = unit_id_of(record)

    def record(self, facts: PodFacts) -> PodRecord:
        record = self.state.see_pod(facts)
        record.unit = unit_id_of(record)
        return record

    def ask(self, facts: PodFacts) -> Nomination | Verdict | None:
        record = self.record(facts)
        return self.plugin.post_filter(single_unit(record), self.helper.block(record), 0.0)

    def names(self, found: Nomination | Verdict | None) -> tuple[str, list[str]] | None:
        if found is None:
            return None
        assert isinstance(found, Nomination), found
        return found.node, [self.state.pods[uid].name for uid in found.victims]


def high(cpu: str = "2", **more: Any) -> PodFacts:
    return pod("high", cpu=cpu, priority=100, **more)


def low(name: str, on: str, cpu: str = "2", priority: int = 0, **more: Any) -> PodFacts:
    return pod(name, cpu=cpu, node=on, priority=priority, **more)


AB = [node("a", cpu="2"), node("b", cpu="2")]


@pytest.mark.parametrize(
    ("nodes", "pods", "asks", "expected"),
    [
        pytest.param(AB, [low("x", "a", priority=5), low("y", "b")], high(), ("b", ["y"]), id="the least important goes"),
        pytest.param(
            AB, [low("x", "a", priority=100), low("y", "b", priority=100)], high(), None, id="nobody of equal priority"
        ),
        pytest.param(AB, [low("x", "a"), low("y", "b")], high(preemptionPolicy="Never"), None, id="preemptionPolicy Never"),
        pytest.param(
            [node("a", cpu="2"), node("b", cpu="2", taints=TAINTED)],
            [low("x", "a", priority=5), low("y", "b")],
            high(),
            ("a", ["x"]),
            id="not where a taint keeps it out",
        ),
        pytest.param(AB, [low("x", "a"), low("y", "b")], high("3"), None, id="no node is large enough"),
        pytest.param(
            [node("a", cpu="8")],
            [low("x", "a", ports=[{"hostPort": 80}]), low("y", "a")],
            high(ports=[{"hostPort": 80}]),
            ("a", ["x"]),
            id="who holds the port goes",
        ),
        pytest.param(
            [node("a", cpu="8")],
            [low("x", "a", labels={"app": "rival"}), low("y", "a", labels={"app": "friend"})],
            high(
                affinity={
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {
                                "topologyKey": "kubernetes.io/hostname",
                                "labelSelector": {"matchLabels": {"app": "rival"}},
                            }
                        ]
                    }
                }
            ),
            ("a", ["x"]),
            id="whom it can't be beside goes",
        ),
    ],
)
def test_choice(nodes: list[Any], pods: list[PodFacts], asks: PodFacts, expected: tuple[str, list[str]] | None) -> None:
    world = World(nodes, pods)
    before = {p.uid: (p.node, p.index) for p in world.state.pods.values()}
    assert world.names(world.ask(asks)) == expected
    assert {uid: (world.state.pods[uid].node, world.state.pods[uid].index) for uid in before} == before, (
        "trying leaves no trace"
    )


def test_without_a_helper_resources_count() -> None:
    world = World(AB, [low("x", "a", priority=5), low("y", "b")])
    world.plugin.helper = None
    assert world.names(world.ask(high())) == ("b", ["y"])


def _ending(facts: PodFacts) -> PodFacts:
    meta = msgspec.structs.replace(facts.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return msgspec.structs.replace(facts, metadata=meta)


def test_waits_for_the_victims_on_its_nominated_node() -> None:
    world = World(AB, [_ending(low("x", "a")), low("y", "b")])
    record = world.record(high())
    world.helper.nominations[record.uid] = ("a", record)
    found = world.ask(high())
    assert isinstance(found, Verdict)
    assert (found.reason, found.subject) == (Reason.WAITING_FOR_VICTIMS, "a")
    assert found.message == "waits for 1 pods to end on node a"


def test_waits_also_when_only_the_pod_says_so() -> None:
    """After a restart the nomination is known from the pod's status alone."""
    world = World(AB, [_ending(low("x", "a")), low("y", "b")])
    facts = high()
    facts = msgspec.structs.replace(facts, status=msgspec.structs.replace(facts.status, nominated_node_name="a"))
    assert isinstance(world.ask(facts), Verdict)


def test_asks_again_when_the_nominated_node_is_lost() -> None:
    world = World([node("a", cpu="2", taints=TAINTED), node("b", cpu="2")], [_ending(low("x", "a")), low("y", "b")])
    record = world.record(high())
    world.helper.nominations[record.uid] = ("a", record)
    assert world.names(world.ask(high())) == ("b", ["y"])


def test_who_is_going_anyway_is_enough() -> None:
    world = World(AB, [_ending(low("x", "a", priority=50)), low("y", "b")])
    found = world.ask(high())
    assert world.names(found) == ("a", [])
    assert isinstance(found, Nomination)
    assert found.message == "waits for 1 pods to end on node a"


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        pytest.param(100, ("b", ["y"]), id="room of one as important is left alone"),
        pytest.param(99, ("a", []), id="room of one less important is not"),
    ],
)
def test_room_made_for_another(priority: int, expected: tuple[str, list[str]]) -> None:
    world = World(AB, [_ending(low("x", "a")), low("y", "b", priority=7)])
    other = world.record(pod("other", cpu="2", priority=priority))
    world.helper.nominations[other.uid] = ("a", other)
    assert world.names(world.ask(high())) == expected


def test_budgets_are_kept_where_possible() -> None:
    world = World(AB, [low("x", "a", labels={"app": "db"}), low("y", "b", priority=50)])
    raw = {"metadata": {"name": "db", "namespace": "default"}, "spec": {"selector": {"matchLabels": {"app": "db"}}}}
    world.state.budgets["default", "db"] = msgspec.convert(raw, BudgetFacts)
    assert world.names(world.ask(high())) == ("b", ["y"])
    world.state.remove_pod("uid-default-y")
    world.record(low("z", "b", priority=100))
    found = world.ask(high())
    assert world.names(found) == ("a", ["x"])
    assert isinstance(found, Nomination)
    assert found.violating == {"uid-default-x"}


# -- gangs ---------------------------------------------------------------------------------------------------------------------


def member(name: str, gang: str, on: str = "", cpu: str = "2", priority: int = 0, least: int = 2) -> PodFacts:
    annotations = {"gang.scheduling.koordinator.sh/name": gang, "gang.scheduling.koordinator.sh/min-available": str(least)}
    return pod(name, cpu=cpu, node=on, priority=priority, annotations=annotations)


@pytest.mark.parametrize(
    ("whole", "expected"),
    [pytest.param(True, ("b", ["s"]), id="whole"), pytest.param(False, ("a", ["g1"]), id="one by one")],
)
def test_a_gang_is_evicted_whole(whole: bool, expected: tuple[str, list[str]]) -> None:
    nodes = [*AB, node("c", cpu="2", taints=TAINTED)]
    world = World(nodes, [member("g1", "g", "a"), member("g2", "g", "c"), low("s", "b")], whole_units=whole)
    assert world.names(world.ask(high())) == expected


def gang_asks(world: World, *facts: PodFacts) -> Nomination | Verdict | None:
    records = [world.record(one) for one in facts]
    key = records[0].unit.removeprefix("PodGroup/")
    gang = Gang(key, pod_settings(facts[0], key), {p.uid: p for p in world.state.pods.values() if p.unit == records[0].unit})
    unit = gang_unit(records[0].unit, [gang])
    assert unit is not None
    stuck = next(p for p in records if not p.node)
    return world.plugin.post_filter(unit, world.helper.block(stuck), 0.0)


def test_room_for_a_whole_gang() -> None:
    world = World(AB, [low("x", "a"), low("y", "b", priority=3)], gangs=True)
    found = gang_asks(world, member("g1", "g", priority=100), member("g2", "g", priority=100))
    assert isinstance(found, Nomination)
    assert {world.state.pods[uid].name for uid in found.victims} == {"x", "y"}
    assert found.pods == {"uid-default-g1": "a", "uid-default-g2": "b"}
    assert found.node == "a"


def test_a_gang_that_can_not_all_start_evicts_nobody() -> None:
    world = World(AB, [low("x", "a"), low("y", "b", priority=100)], gangs=True)
    assert gang_asks(world, member("g1", "g", priority=100), member("g2", "g", priority=100)) is None


def test_a_gang_does_not_evict_its_own() -> None:
    world = World([node("a", cpu="2")], [member("g1", "g", "a", priority=1)], gangs=True)
    found = gang_asks(world, member("g1", "g", "a", priority=1), member("g2", "g", priority=100))
    assert found is None


def test_gangs_are_left_out_unless_asked_for() -> None:
    world = World(AB, [low("x", "a"), low("y", "b")])
    assert gang_asks(world, member("g1", "g", priority=100), member("g2", "g", priority=100)) is None


# -- arguments -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        pytest.param({"minCandidateNodesPercentage": 101}, "minCandidateNodesPercentage", id="over 100 %"),
        pytest.param({"minCandidateNodesPercentage": -1}, "minCandidateNodesPercentage", id="below 0 %"),
        pytest.param({"minCandidateNodesAbsolute": -1}, "minCandidateNodesAbsolute", id="below none"),
        pytest.param({"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0}, "can't both be 0", id="none at all"),
        pytest.param({"minCandidates": 3}, "minCandidates", id="unknown"),
    ],
)
def test_arguments(args: dict[str, Any], wrong: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=wrong):
        msgspec.convert(args, DefaultPreemptionArgs)


def of_job(name: str, on: str, *, preemptible: bool) -> PodFacts:
    made = low(name, on)
    work = encode_work(Work(job=f"Job/default/{name}", queue="q", preemptible=preemptible))
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, annotations={Muster.WORK: work}))


@pytest.mark.parametrize(
    ("has_queue", "priority", "preemptible", "is_evicted"),
    [
        pytest.param(True, 1_000_000_000, False, False, id="a job that is not marked stays"),
        pytest.param(True, 100, True, True, id="a job that is marked goes"),
        pytest.param(True, 2_000_000_000, False, True, id="the system's own pods have their way"),
        pytest.param(False, 100, False, True, id="without queues it is as in Kubernetes"),
    ],
)
@pytest.mark.parametrize("is_early", [True, False], ids=["queue there before", "queue seen later"])
def test_jobs_in_queues_make_way_only_if_they_are_marked(
    has_queue: bool, priority: int, preemptible: bool, is_early: bool, is_evicted: bool
) -> None:
    world = World([node("a", cpu="2")], [of_job("x", "a", preemptible=preemptible)])
    seen = QueueSeen(msgspec.convert({"metadata": {"name": "q"}}, QueueFacts))
    if has_queue and is_early:
        world.state.order_objects["Queue", "q"] = seen
        world.plugin.attach(world.state)
    elif has_queue:
        world.plugin.event(seen)
    found = world.ask(pod("high", cpu="2", priority=priority))
    assert world.names(found) == (("a", ["x"]) if is_evicted else None)
    world.plugin.event(QueueGone("q"))
    assert world.names(world.ask(pod("high", cpu="2", priority=priority))) == ("a", ["x"])


def test_bare_pods_make_way_by_priority_where_there_are_queues_too() -> None:
    world = World(AB, [low("x", "a"), of_job("y", "b", preemptible=False)])
    world.plugin.event(QueueSeen(msgspec.convert({"metadata": {"name": "q"}}, QueueFacts)))
    assert world.names(world.ask(high())) == ("a", ["x"])
