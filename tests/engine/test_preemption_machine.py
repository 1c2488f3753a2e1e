"""Preemption through the engine's door: who is evicted, who waits, and who gets the room in the end."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.engine.decisions import AnyDecision, Evict, Park, Place
from muster.engine.facts import BudgetFacts, PodFacts
from muster.engine.machine import Engine
from muster.engine.plugin import Plugin, Scope
from muster.engine.plugins.default_preemption import DefaultPreemption, DefaultPreemptionArgs
from muster.engine.plugins.fit import Fit
from muster.engine.plugins.inter_pod_affinity import InterPodAffinity
from muster.engine.plugins.node_affinity import NodeAffinity
from muster.engine.profile import Profile
from muster.objects.reasons import Reason
from tests.engine.building import PROFILE, node, pod


class Cluster:
    """An engine, and whoever does what it decides: binds at once, ends victims when told to."""

    def __init__(self, nodes: int = 2, cpu: str = "2", more: Sequence[Plugin] = (), **args: Any) -> None:
        plugins = [Fit(), InterPodAffinity(), DefaultPreemption(DefaultPreemptionArgs(**args)), *more]
        self.engine = Engine([Profile(PROFILE, plugins)])
        self.now = 0.0
        self.facts: dict[str, PodFacts] = {}
        self.step(*(ev.NodeSeen(node(f"n{i}", cpu=cpu)) for i in range(nodes)))

    def step(self, *events: ev.AnyEvent) -> list[AnyDecision]:
        self.now += 1
        return self.engine.step(events, self.now)

    def see(self, *pods: PodFacts) -> list[AnyDecision]:
        self.facts.update((one.metadata.uid, one) for one in pods)
        return self.step(*map(ev.PodSeen, pods))

    def end(self, *names: str) -> list[AnyDecision]:
        return self.step(*(ev.PodGone(f"uid-default-{name}") for name in names))

    def ending(self, name: str) -> list[AnyDecision]:
        facts = self.facts[f"uid-default-{name}"]
        meta = msgspec.structs.replace(facts.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        return self.see(msgspec.structs.replace(facts, metadata=meta))


def evicted(decisions: Sequence[AnyDecision]) -> dict[str, list[str]]:
    return {d.unit: [v.name for v in d.victims] for d in decisions if isinstance(d, Evict)}


def placed(decisions: Sequence[AnyDecision]) -> dict[str, str]:
    return {p.name: p.node for d in decisions if isinstance(d, Place) for p in d.pods}


def parked(decisions: Sequence[AnyDecision]) -> dict[str, Reason]:
    return {d.unit: d.verdict.reason for d in decisions if isinstance(d, Park)}


def low(name: str, on: str, priority: int = 0, **more: Any) -> PodFacts:
    return pod(name, cpu=more.pop("cpu", "2"), node=on, priority=priority, **more)


def high(name: str = "high", priority: int = 100, **more: Any) -> PodFacts:
    return pod(name, cpu=more.pop("cpu", "2"), priority=priority, **more)


def test_evicts_waits_and_gets_the_room() -> None:
    cluster = Cluster()
    cluster.see(low("x", "n0", 5), low("y", "n1"))
    decisions = cluster.see(high())
    assert evicted(decisions) == {"Pod/default/high": ["y"]}
    assert parked(decisions) == {"Pod/default/high": Reason.WAITING_FOR_VICTIMS}
    assert cluster.ending("y") == [], "a grace period changes nothing"
    assert placed(cluster.end("y")) == {"high": "n1"}


def test_a_victim_that_is_seen_again_is_not_chosen_again() -> None:
    cluster = Cluster(1)
    cluster.see(low("x", "n0"))
    assert evicted(cluster.see(high())) == {"Pod/default/high": ["x"]}
    assert evicted(cluster.see(low("x", "n0", labels={"seen": "again"}))) == {}
    assert evicted(cluster.step(ev.Retry())) == {}


def test_two_who_need_room_each_get_their_own() -> None:
    cluster = Cluster()
    cluster.see(low("x", "n0", 5), low("y", "n1"))
    decisions = cluster.see(high("h1"), high("h2"))
    assert evicted(decisions) == {"Pod/default/h1": ["y"], "Pod/default/h2": ["x"]}
    assert placed(cluster.end("x")) == {"h2": "n0"}
    assert placed(cluster.end("y")) == {"h1": "n1"}


def test_the_room_is_not_for_those_who_come_later() -> None:
    cluster = Cluster(1)
    cluster.see(low("x", "n0"))
    cluster.see(high())
    assert placed(cluster.see(high("late", 100), high("less", 1))) == {}
    assert placed(cluster.end("x")) == {"high": "n0"}


def test_a_failed_eviction_is_tried_elsewhere_or_again() -> None:
    cluster = Cluster(1)
    cluster.see(low("x", "n0"))
    assert evicted(cluster.see(high())) == {"Pod/default/high": ["x"]}
    again = cluster.step(ev.EvictFailed("uid-default-x", "the budget does not allow it"))
    assert evicted(again) == {"Pod/default/high": ["x"]}


def test_a_budget_is_spent_once() -> None:
    """Both could go by what the budget says; only one is allowed to."""
    cluster = Cluster()
    raw = {
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "db"}}},
        "status": {"disruptionsAllowed": 1},
    }
    cluster.step(ev.BudgetSeen(msgspec.convert(raw, BudgetFacts)))
    cluster.see(low("x", "n0", labels={"app": "db"}), low("y", "n1", labels={"app": "db"}))
    decisions = cluster.see(high("h1"), high("h2"))
    broken = [v.violates_budget for d in decisions if isinstance(d, Evict) for v in d.victims]
    assert broken == [False, True]


@pytest.mark.parametrize(
    ("labels", "disrupted", "expected"),
    [({"app": "db"}, {}, True), ({"app": "db"}, {"x": "2026-01-01T00:00:00Z"}, True), ({"app": "web"}, {}, False)],
    ids=["selected", "selected, and counted already", "not selected"],
)
def test_a_victim_says_whether_a_budget_selects_it(labels: dict[str, str], disrupted: dict[str, str], expected: bool) -> None:
    cluster = Cluster(1)
    raw = {
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "db"}}},
        "status": {"disruptionsAllowed": 1, "disruptedPods": disrupted},
    }
    cluster.step(ev.BudgetSeen(msgspec.convert(raw, BudgetFacts)))
    cluster.see(low("x", "n0", labels=labels))
    assert [v.has_budget for d in cluster.see(high()) if isinstance(d, Evict) for v in d.victims] == [expected]
    again = cluster.step(ev.BudgetGone("default", "db"), ev.EvictFailed("uid-default-x", "refused"))
    assert [v.has_budget for d in again if isinstance(d, Evict) for v in d.victims] == [False]


class Attempts(Plugin):
    """Counts how often each pod is tried."""

    name = "Attempts"
    scope = Scope.NODE

    def __init__(self) -> None:
        super().__init__(None)
        self.names: list[str] = []

    def before_prefilter(self, pod: PodFacts, now: float) -> PodFacts | None:
        self.names.append(pod.metadata.name)
        return None


def test_tried_again_when_the_last_victim_has_ended() -> None:
    attempts = Attempts()
    cluster = Cluster(1, more=[attempts])
    cluster.see(low("x", "n0", cpu="1"), low("y", "n0", cpu="500m"), low("z", "n0", cpu="500m"))
    assert set(evicted(cluster.see(high()))["Pod/default/high"]) == {"x", "y", "z"}
    assert cluster.end("x") == cluster.end("z") == []
    assert attempts.names == ["high"], "while victims are left it could only wait for them"
    assert placed(cluster.end("y")) == {"high": "n0"}


def test_tried_again_as_soon_as_it_fits_though_victims_are_left() -> None:
    cluster = Cluster(1, "4")
    cluster.see(low("x", "n0"), low("other", "n0", 500))
    assert evicted(cluster.see(high())) == {"Pod/default/high": ["x"]}
    assert placed(cluster.end("other")) == {"high": "n0"}


def test_room_that_is_kept_for_one_wakes_nobody_who_has_room_coming_elsewhere() -> None:
    attempts = Attempts()
    cluster = Cluster(3, more=[attempts])
    cluster.see(*(low(f"x{n}", f"n{n}", n) for n in range(3)))
    assert len(evicted(cluster.see(high("a"), high("b"), high("c")))) == 3
    attempts.names.clear()
    assert placed(cluster.end("x2")) == {"c": "n2"}
    assert attempts.names == ["c"]


def test_whoever_has_room_coming_takes_other_room_that_comes_first() -> None:
    cluster = Cluster(1)
    cluster.see(low("x", "n0"))
    cluster.see(high())
    assert placed(cluster.step(ev.NodeSeen(node("n9", cpu="2")))) == {"high": "n9"}


def test_a_node_that_will_not_do_any_more_is_not_waited_for() -> None:
    cluster = Cluster(2, more=[NodeAffinity()])
    cluster.step(*(ev.NodeSeen(node(f"n{n}", cpu="2", labels={"disk": "fast"})) for n in range(2)))
    cluster.see(low("x", "n0"), low("y", "n1", 5))
    assert evicted(cluster.see(high(nodeSelector={"disk": "fast"}))) == {"Pod/default/high": ["x"]}
    assert evicted(cluster.step(ev.NodeSeen(node("n0", cpu="2")))) == {"Pod/default/high": ["y"]}


@given(
    waiting=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=6),
    running=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2)), max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_nobody_sleeps_through_what_would_help(
    waiting: list[tuple[int, int]], running: list[tuple[int, int, int]], order: Random
) -> None:
    """Whenever victims have ended, trying everybody again places nobody: those that could be placed were."""
    cluster = Cluster(3, "6")
    cluster.see(*(low(f"r{i}", f"n{at}", priority, cpu=str(cpu)) for i, (cpu, priority, at) in enumerate(running)))
    decisions = cluster.see(*(high(f"w{i}", priority, cpu=str(cpu)) for i, (cpu, priority) in enumerate(waiting)))
    going = [name for names in evicted(decisions).values() for name in names]
    while going:
        after = cluster.end(going.pop(order.randrange(len(going))))
        again = cluster.step(ev.Retry())
        assert placed(again) == {}
        going += [name for names in evicted([*after, *again]).values() for name in names]
    assert not any(p.is_victim for p in cluster.engine.state.pods.values())


def test_whom_a_rule_keeps_out_goes() -> None:
    cluster = Cluster(1, "8")
    cluster.see(low("rival", "n0", labels={"app": "rival"}), low("friend", "n0"))
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "rival"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    assert evicted(cluster.see(high(affinity=apart))) == {"Pod/default/high": ["rival"]}
    assert placed(cluster.end("rival")) == {"high": "n0"}


def gang(name: str, size: int, priority: int = 100) -> list[PodFacts]:
    notes = {"gang.scheduling.koordinator.sh/name": name, "gang.scheduling.koordinator.sh/min-available": str(size)}
    return [pod(f"{name}{i}", cpu="2", priority=priority, annotations=notes) for i in range(size)]


def test_a_gang_gets_room_for_all_or_evicts_nobody() -> None:
    cluster = Cluster(3, gangs=True)
    cluster.see(low("x", "n0"), low("y", "n1", 5), low("z", "n2", 200))
    assert evicted(cluster.see(*gang("g", 3))) == {}
    decisions = cluster.see(*gang("h", 2))
    assert evicted(decisions) == {"PodGroup/default/h": ["y", "x"]}
    assert evicted(cluster.step(ev.Retry())) == {}, "asked again, it waits for those who are going"
    assert placed(cluster.end("x")) == {}
    assert set(placed(cluster.end("y"))) == {"h0", "h1"}


def test_a_gang_is_evicted_whole() -> None:
    cluster = Cluster(2)
    placed_gang = cluster.see(*gang("g", 2, priority=1))
    assert set(placed(placed_gang)) == {"g0", "g1"}
    assert evicted(cluster.see(high())) == {"Pod/default/high": ["g0", "g1"]}


@given(
    pods=st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3)), min_size=1, max_size=10),
    ends=st.lists(st.integers(0, 9), max_size=6),
)
def test_same_events_same_decisions_and_never_too_much(pods: list[tuple[int, int]], ends: list[int]) -> None:
    runs = []
    for _ in range(2):
        cluster = Cluster(2, "3")
        log: list[AnyDecision] = []
        alive: dict[str, str] = {}
        for number, (cpu, priority) in enumerate(pods):
            decisions = cluster.see(high(f"p{number}", priority, cpu=str(cpu)))
            log += decisions
            alive.update(placed(decisions))
            victims = [name for names in evicted(decisions).values() for name in names]
            assert all(cluster.engine.state.pods[f"uid-default-{v}"].priority < priority for v in victims)
            if number % 2:
                for victim in victims:
                    after = cluster.end(victim)
                    log += after
                    alive.update(placed(after))
            assert (cluster.engine.state.nodes.free >= 0).all()
        for number in ends:
            log += cluster.end(f"p{number}")
            assert (cluster.engine.state.nodes.free >= 0).all()
        runs.append(log)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("policy", ["Never", "PreemptLowerPriority"])
def test_policy(policy: str) -> None:
    cluster = Cluster(1)
    cluster.see(low("x", "n0"))
    found = evicted(cluster.see(high(preemptionPolicy=policy)))
    assert found == ({} if policy == "Never" else {"Pod/default/high": ["x"]})
