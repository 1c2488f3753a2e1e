"""An engine of a checkpoint knows, counts and holds what the one that it was taken from did, and goes on as that would have."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine import checkpoint as cp
from muster.engine import decisions as de
from muster.engine import events as ev
from muster.engine.configuration import default_configuration, read
from muster.engine.facts import Meta, PodGroupFacts, QueueFacts, UserFacts
from muster.engine.holding import HoldKind
from muster.engine.machine import Engine
from muster.engine.plugin import Permit, Plugin
from muster.engine.plugins.fit import Fit
from muster.engine.pods import PodRecord
from muster.engine.profile import Profile
from muster.engine.registry import Registry
from muster.engine.units import Unit
from muster.objects.labels import KoordinatorPod, KusciaAnnotation
from tests.engine.building import node, pod
from tests.engine.histories import Move, Run, fresh, histories, with_node
from tests.engine.tasks_building import party, task_group

EXAMPLES = 2_000 if os.environ.get("MUSTER_SOAK") else 60


def again(engine: Engine) -> Engine:
    """The engine of its checkpoint, which went through bytes."""
    return cp.restore(cp.decode(cp.encode(cp.take(engine))), fresh())


def known(engine: Engine) -> dict[str, Any]:
    """All that must not be lost."""
    state = engine.state
    return {
        "now": state.now,
        "pods": {uid: (p.node, p.phase, p.unit, p.is_victim, p.is_held, p.is_ours, p.facts) for uid, p in state.pods.items()},
        "requests": {uid: _amounts(engine, p.request) for uid, p in state.pods.items() if p.node},
        "nodes": state.nodes.facts,
        "holds": {
            unit: (h.kind, h.until, h.waiting_for, h.is_asked, list(h.askers), [(o.pod.uid, o.score) for o in h.placed])
            for unit, h in engine.holds.items()
        },
        "held units": {unit: h.unit for unit, h in engine.holds.items()},
        "nominations": {uid: where for uid, (where, _) in state.nominations.items()},
        "verdicts": engine.verdicts,
        "waiting": {unit: engine.waiting.units[unit] for unit in sorted(engine.waiting.units)},
        "back-offs": engine._holds.not_before,
        "rounds": engine.members.rounds,
        "started": {key for key, gang in engine.members.gangs.items() if gang.has_started},
    }


def _amounts(engine: Engine, vector: Any) -> dict[str, int]:
    return {engine.state.table.names[row]: int(n) for row, n in enumerate(vector.tolist()) if n}


@settings(max_examples=EXAMPLES, deadline=None)
@given(histories, st.integers(0, 40))
def test_nothing_is_lost(history: list[Move], number: int) -> None:
    checked = 0

    def after(run: Run, _made: list[de.AnyDecision]) -> None:
        nonlocal checked
        checked += 1
        if checked % 5 == number % 5:
            restored = again(run.engine)
            assert known(restored) == known(run.engine)
            assert restored.state.equals(run.engine.state)
            assert not restored.left_over

    Run(fresh(), after).play(history)


@settings(max_examples=EXAMPLES, deadline=None)
@given(histories, st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_goes_on_as_before(history: list[Move], cuts: list[int]) -> None:
    """The same decisions, to the byte, whether the engine was replaced by that of its checkpoint on the way or not. Only why
    something waits may be said anew: the units that slept are tried once more."""
    steps = 0

    def after(run: Run, _made: list[de.AnyDecision]) -> None:
        nonlocal steps
        steps += 1
        if steps in cuts:
            run.engine = again(run.engine)

    assert acts(Run(fresh(), after).play(history)) == acts(Run(fresh()).play(history))


def acts(run: Run) -> list[bytes]:
    return [line for line in run.log if not isinstance(de.decode(line), de.Park)]


# -- one by one ----------------------------------------------------------------------------------------------------------------


class Slow(Plugin):
    """Holds every unit for a permit, takes twice the CPU, and remembers what it gave."""

    name = "Slow"

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[str, str] = {}

    def resize(self, pod: PodRecord, node: str) -> dict[str, int] | None:
        return {"cpu": 2_000, "pods": 1}

    def reserve(self, pod: PodRecord, node: str) -> None:
        self.given[pod.uid] = node

    def unreserve(self, pod: PodRecord, node: str) -> None:
        self.given.pop(pod.uid, None)

    def permit(self, unit: Unit, now: float) -> Permit:
        return Permit(wait_s=30.0, waiting_for=("somebody",))


def slow_engine() -> Engine:
    return Engine([Profile("muster-scheduler", [Fit(), Slow()])])


def test_a_permit_outlives_it() -> None:
    engine = slow_engine()
    engine.step([ev.NodeSeen(node("n1", cpu="4")), ev.PodSeen(pod("a", cpu="1")), ev.PodSeen(pod("b", cpu="1"))], 10.0)
    assert len(engine.holds) == 2
    other = cp.restore(cp.decode(cp.encode(cp.take(engine))), slow_engine())
    assert known(other) == known(engine)
    assert other.state.equals(engine.state)
    (plugin,) = [one for one in other.profiles["muster-scheduler"].plugins if isinstance(one, Slow)]
    assert set(plugin.given.values()) == {"n1"}
    assert other.next_deadline == 40.0
    unit = next(iter(other.holds))
    for event in (ev.Permitted(unit, "somebody"), ev.Tick()):
        now = 20.0 if isinstance(event, ev.Permitted) else 50.0
        assert _encoded(other.step([event], now)) == _encoded(engine.step([event], now))
    assert known(other) == known(engine)


def _encoded(decisions: list[de.AnyDecision]) -> list[bytes]:
    return [de.encode(decision) for decision in decisions]


def test_room_that_is_being_made_outlives_it() -> None:
    """A pod waits for its victim to end; nobody else gets the place, and the victim is not chosen twice."""
    small, large = pod("small", cpu="2", priority=0), pod("large", cpu="2", priority=10)
    engine = fresh()
    engine.step([ev.NodeSeen(node("n1", cpu="2")), ev.PodSeen(with_node(small, "n1"))], 1.0)
    (evict, _) = engine.step([ev.PodSeen(large)], 2.0)
    assert isinstance(evict, de.Evict)
    other = again(engine)
    assert known(other) == known(engine)
    assert other.state.nominations
    waiting = other.step([ev.PodSeen(pod("third", cpu="2", priority=5))], 3.0)
    assert {type(one) for one in waiting} == {de.Park}
    made = other.step([ev.PodGone(small.metadata.uid)], 4.0)
    assert [(type(one).__name__, one.unit) for one in made if not isinstance(one, de.Park)] == [("Place", "Pod/default/large")]


def test_a_promise_outlives_it() -> None:
    pods = [pod(f"p{n}", cpu="1", annotations={KusciaAnnotation.TASK_RESOURCE_GROUP: "t"}) for n in range(2)]
    engine = fresh()
    group = task_group("t", party("default", "p0", "p1"), others=["bob"], phase="Reserving")
    made = engine.step([ev.NodeSeen(node("n1")), group, *map(ev.PodSeen, pods)], 1.0)
    assert [type(one).__name__ for one in made] == ["Hold"]
    other = again(engine)
    assert known(other) == known(engine)
    assert other.holds["Task/t"].kind is HoldKind.PROMISE
    assert not other.step([ev.Tick()], 2.0)
    (place,) = other.step([ev.Permitted("Task/t")], 3.0)
    assert isinstance(place, de.Place)
    assert len(place.pods) == 2


def test_a_gang_that_has_started_stays_so() -> None:
    """Its pods are gone, its PodGroup is there: a new member does not have to wait for others."""
    notes = {KoordinatorPod.GANG_MATCH_POLICY: "once-satisfied"}
    label = {"pod-group.scheduling.sigs.k8s.io": "g"}
    raw = {"metadata": {"name": "g", "namespace": "default", "annotations": notes}, "spec": {"minMember": 2}}
    seen = ev.PodGroupSeen(msgspec.convert(raw, PodGroupFacts))
    first = [with_node(pod(f"a{n}", cpu="1", labels=label), "n1") for n in range(2)]
    engine = fresh()
    engine.step([ev.NodeSeen(node("n1")), seen, *map(ev.PodSeen, first)], 1.0)
    engine.step([ev.PodGone(one.metadata.uid) for one in first], 2.0)
    other = again(engine)
    late = [ev.PodSeen(pod("late", cpu="1", labels=label))]
    assert _encoded(other.step(late, 3.0)) == _encoded(engine.step(late, 3.0))


def test_the_configuration_goes_with_it() -> None:
    registry = Registry()
    document = default_configuration(registry).raw
    engine = Engine([Profile("other", [Fit()])], configure=lambda later: read(later, registry).build(registry))
    engine.step([ev.Configured(document)], 1.0)
    kept = cp.decode(cp.encode(cp.take(engine)))
    assert kept.configuration == document


def test_a_wrong_configuration_is_not_taken_for_the_one_in_force() -> None:
    registry = Registry()
    engine = Engine([Profile("other", [Fit()])], configure=lambda later: read(later, registry).build(registry))
    engine.step([ev.Configured({"profiles": 3})], 1.0)
    assert cp.take(engine).configuration is None
    assert engine.state.faults


def test_only_a_fresh_engine_is_filled() -> None:
    engine = fresh()
    engine.step([ev.NodeSeen(node("n1"))], 1.0)
    with pytest.raises(ValueError, match="not fresh"):
        cp.restore(cp.take(engine), engine)


def test_objects_of_the_order_are_kept() -> None:
    engine = fresh()
    queue = ev.QueueSeen(QueueFacts(metadata=Meta(name="q")))
    user = ev.UserSeen(UserFacts(metadata=Meta(name="ann")))
    engine.step([queue, user, ev.UserSeen(UserFacts(metadata=Meta(name="ben"))), ev.UserGone("ben")], 1.0)
    kept = cp.decode(cp.encode(cp.take(engine)))
    assert list(kept.events) == [queue, user]
