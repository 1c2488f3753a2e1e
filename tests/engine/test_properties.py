"""What always holds, over random clusters, units and orders of events."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.engine import decisions as de
from muster.engine import events as ev
from muster.engine.configuration import default_configuration
from muster.engine.facts import NodeFacts, PodFacts
from muster.engine.machine import Engine
from muster.engine.pods import Phase
from muster.engine.registry import Registry
from muster.engine.resources import requests_of
from muster.engine.state import State
from tests.engine.building import node, pod

pytestmark = pytest.mark.soak
EXAMPLES = 2_000 if os.environ.get("MUSTER_SOAK") else 40
GPU = "nvidia.com/gpu"

names = st.sampled_from([f"n{i}" for i in range(6)])
sizes = st.sampled_from(["100m", "500m", "1", "2", "3"])
zones = st.sampled_from(["a", "b", "c"])


@st.composite
def nodes(draw: st.DrawFn) -> NodeFacts:
    taints = draw(st.sampled_from([[], [], [], [{"key": "k", "value": "v", "effect": "NoSchedule"}]]))
    resources = {GPU: draw(st.integers(0, 4)), "kuscia.io/bandwidth": draw(st.sampled_from([0, 100, 1000]))}
    return node(
        draw(names),
        cpu=draw(st.sampled_from(["1", "2", "4", "8"])),
        memory=draw(st.sampled_from(["1Gi", "4Gi", "8Gi"])),
        pods=draw(st.sampled_from([2, 5, 110])),
        labels={"zone": draw(zones)},
        taints=taints,
        unschedulable=draw(st.sampled_from([False, False, False, True])),
        resources=resources,
    )


@st.composite
def pods(draw: st.DrawFn) -> PodFacts:
    number = draw(st.integers(0, 30))
    gang = draw(st.sampled_from([0, 0, 0, 2, 3, 5]))
    notes: dict[str, str] = {}
    if gang:
        notes = {"gang.scheduling.koordinator.sh/name": f"g{number % 3}", "gang.scheduling.koordinator.sh/min-available": "3"}
    spec: dict[str, Any] = draw(
        st.sampled_from([{}, {}, {}, {"nodeSelector": {"zone": "a"}}, {"tolerations": [{"operator": "Exists"}]}, SPREAD, ANTI])
    )
    resources: dict[str, Any] = draw(st.sampled_from([{}, {}, {GPU: 1}, {"kuscia.io/bandwidth": 60}]))
    return pod(
        f"p{number}",
        cpu=draw(sizes),
        memory=draw(st.sampled_from(["64Mi", "512Mi", "1Gi"])),
        labels={"app": draw(st.sampled_from(["x", "y"]))},
        annotations=notes,
        resources=resources,
        priority=draw(st.sampled_from([0, 0, 0, 5])),
        preemptionPolicy="Never",
        **spec,
    )


SPREAD = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "x"}},
        }
    ]
}
ANTI = {
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "y"}}}
            ]
        }
    }
}

Move = tuple[str, Any]
moves = st.one_of(
    st.tuples(st.just("node"), nodes()),
    st.tuples(st.just("node gone"), names),
    st.tuples(st.just("pod"), pods()),
    st.tuples(st.just("pod"), pods()),
    st.tuples(st.just("pod"), pods()),
    st.tuples(st.just("pod gone"), st.integers(0, 100)),
    st.tuples(st.just("finished"), st.integers(0, 100)),
    st.tuples(st.just("bound"), st.integers(0, 100)),
    st.tuples(st.just("bind failed"), st.integers(0, 100)),
    st.tuples(st.just("step"), st.none()),
)
histories = st.lists(moves, min_size=5, max_size=60)


def fresh() -> Engine:
    return Engine(default_configuration().build(Registry()))


class Run:
    """One history, fed to an engine; `after` looks at every step."""

    def __init__(self, engine: Engine, after: Callable[[Run, list[de.AnyDecision]], None] | None = None) -> None:
        self.engine = engine
        self.after = after
        self.alive: dict[str, PodFacts] = {}
        self.log: list[bytes] = []
        self.now = 0.0
        self.born = 0

    def play(self, history: list[Move]) -> Run:
        batch: list[ev.AnyEvent] = []
        for what, value in history:
            event = self._event(what, value)
            if event is not None:
                batch.append(event)
            if what == "step":
                self._step(batch)
                batch = []
        self._step(batch)
        return self

    def _step(self, batch: list[ev.AnyEvent]) -> None:
        self.now += 1.0
        made = self.engine.step(batch, self.now)
        self.log += [de.encode(decision) for decision in made]
        if self.after is not None:
            self.after(self, made)

    def _event(self, what: str, value: Any) -> ev.AnyEvent | None:
        match what:
            case "node":
                return ev.NodeSeen(value)
            case "node gone":
                return ev.NodeGone(value)
            case "pod":
                if any(facts.key == value.key for facts in self.alive.values()):
                    return None
                self.born += 1
                meta = msgspec.structs.replace(value.metadata, uid=f"uid-{self.born:03}")
                facts = self.alive[meta.uid] = msgspec.structs.replace(value, metadata=meta)
                return ev.PodSeen(facts)
        uids = sorted(self.alive)
        if not uids or what == "step":
            return None
        uid = uids[value % len(uids)]
        record = self.engine.state.pods.get(uid)
        match what:
            case "pod gone":
                del self.alive[uid]
                return ev.PodGone(uid)
            case "finished":
                return ev.PodSeen(_with(self.alive.pop(uid), node=record.node if record else "", phase="Succeeded"))
            case "bound":
                if record is None or record.phase is not Phase.ASSUMED:
                    return None
                return ev.PodSeen(_with(self.alive[uid], node=record.node))
            case _:
                return ev.BindFailed(uid, "made to fail")


def _with(facts: PodFacts, *, node: str, phase: str = "") -> PodFacts:
    spec = msgspec.structs.replace(facts.spec, node_name=node)
    return msgspec.structs.replace(facts, spec=spec, status=msgspec.structs.replace(facts.status, phase=phase))


def play(history: list[Move], after: Callable[[Run, list[de.AnyDecision]], None] | None = None) -> Run:
    return Run(fresh(), after).play(history)


ordinary = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@ordinary
@given(histories)
def test_never_over_any_capacity(history: list[Move]) -> None:
    def after(run: Run, made: list[de.AnyDecision]) -> None:
        state = run.engine.state
        for decision in made:
            for placed in decision.pods if isinstance(decision, de.Place) else ():
                record = state.pods.get(placed.uid)
                if record is None or record.node != placed.node:
                    continue  # given back within the same step
                slot = state.nodes.slots[placed.node]
                asked = np.flatnonzero(record.request)
                assert (state.nodes.free[asked, slot] >= 0).all(), (placed, state.nodes.free[:, slot])

    play(history, after)


@ordinary
@given(histories)
def test_all_or_nothing(history: list[Move]) -> None:
    def after(run: Run, made: list[de.AnyDecision]) -> None:
        for decision in made:
            if isinstance(decision, de.Place) and decision.unit.startswith("PodGroup/"):
                members = run.engine._gangs[decision.unit].values()
                assert sum(1 for pod in members if pod.node) >= 3 or any(p.facts.is_finished for p in members)

    play(history, after)


@ordinary
@given(histories)
def test_what_could_be_placed_is_placed(history: list[Move]) -> None:
    """A unit of one shape without rules between pods waits only if there is no way to place what must start."""

    def after(run: Run, made: list[de.AnyDecision]) -> None:
        engine = run.engine
        state = engine.state
        for parked in engine.waiting.parked.values():
            unit = parked.unit
            members = [state.pods[uid] for uid in unit.pods]
            evaluator = engine.evaluator(unit.schedule_as)
            if unit.is_incomplete or len({m.shape.number for m in members}) > 1 or not evaluator.is_plain(members[0]):
                continue
            shape = members[0].shape
            rows = np.flatnonzero(shape.request)
            allowed = evaluator.static_mask(evaluator.block(members[0]))
            room = np.where(allowed, (state.nodes.free[rows] // shape.request[rows, None]).min(axis=0), 0)
            assert np.maximum(room, 0).sum() < max(unit.groups[0].missing, 1), (unit, parked.verdict)

    play(history, after)


@ordinary
@given(histories)
def test_same_events_same_decisions(history: list[Move]) -> None:
    assert play(history).log == play(history).log


@ordinary
@given(histories)
def test_incremental_state_equals_rebuilt(history: list[Move]) -> None:
    def after(run: Run, made: list[de.AnyDecision]) -> None:
        state = run.engine.state
        again = State()
        for facts in state.nodes.facts:
            again.apply_node(ev.NodeSeen(facts))
        again.flush_nodes()
        for record in state.pods.values():
            again.see_pod(_with(record.facts, node=record.node, phase=record.facts.status.phase))
        assert state.equals(again)
        for name, pods in state.on_node.items():
            if name in state.nodes.slots:
                cpu = sum(requests_of(record.facts).amounts.get("cpu", 0) for record in pods.values())
                assert state.nodes.used[0, state.nodes.slots[name]] == cpu

    play(history, after)


@ordinary
@given(histories)
def test_class_cache_equals_brute_force(history: list[Move]) -> None:
    play(history, lambda run, _: run.engine.evaluator("muster-scheduler").check_invariants())


@ordinary
@given(histories)
def test_whoever_waits_has_a_reason(history: list[Move]) -> None:
    def after(run: Run, made: list[de.AnyDecision]) -> None:
        engine = run.engine
        assert not engine.has_work
        for unit_id in engine.waiting.units:
            verdict = engine.verdicts[unit_id]
            assert str(verdict)
            assert verdict.reason.remedy

    play(history, after)
