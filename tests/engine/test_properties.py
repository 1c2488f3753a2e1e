"""What always holds, over random clusters, units and orders of events."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from muster.engine import decisions as de
from muster.engine import events as ev
from muster.engine.pods import Phase
from muster.engine.resources import requests_of
from muster.engine.state import State
from muster.engine.units import may_wait
from tests.engine.histories import GANG_MIN, Move, Run, histories, play, with_node

pytestmark = pytest.mark.soak
EXAMPLES = 2_000 if os.environ.get("MUSTER_SOAK") else 40

ordinary = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@ordinary
@given(histories)
def test_never_over_any_capacity(history: list[Move]) -> None:
    def after(run: Run, made: list[de.AnyDecision]) -> None:
        state = run.engine.state
        for decision in made:
            for placed in decision.pods if isinstance(decision, de.Place | de.Hold) else ():
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
    """Whatever is placed of work that has not started yet leaves each of its gangs, or roles, with enough."""

    def after(run: Run, made: list[de.AnyDecision]) -> None:
        for decision in made:
            if not isinstance(decision, de.Place) or decision.unit.startswith("Pod/"):
                continue
            kind, _, name = decision.unit.partition("/")
            if any(part in run.started for part in name.split(",")):
                continue
            placed = {one.name for one in decision.pods}
            placed |= {pod.name for pod in run.engine.members.members(decision.unit) if pod.node}
            for least, members in _groups(run, kind, name):
                assert len(placed & members) >= least, (decision, members)

    play(history, after)


def _groups(run: Run, kind: str, name: str) -> list[tuple[int, set[str]]]:
    """How many of which pods must have a node, for each group of a unit."""
    if kind == "Task":
        parties = run.engine.state.task_groups[name].spec.parties
        return [(len(party.pods), {one.name for one in party.pods}) for party in parties]
    gangs = name.split(",")
    least = GANG_MIN if len(gangs) == 1 else 2
    return [(least, {pod.name for pod in run.engine.members.gangs[key].members.values()}) for key in gangs]


@ordinary
@given(histories)
def test_what_is_promised_is_not_taken_back_alone(history: list[Move]) -> None:
    promised: set[str] = set()

    def after(run: Run, made: list[de.AnyDecision]) -> None:
        is_excused = any(
            isinstance(event, ev.Denied | ev.PodGone | ev.NodeGone | ev.TaskGroupGone)
            or (isinstance(event, ev.TaskGroupSeen) and event.group.status.phase == "ReserveFailed")
            or (isinstance(event, ev.PodSeen) and event.pod.is_finished)
            for event in run.batch
        )
        permitted = {e.unit for e in run.batch if isinstance(e, ev.Permitted)}
        for decision in made:
            unit = decision.unit
            if isinstance(decision, de.Release) and not decision.is_asked and unit in promised:
                assert is_excused, decision
                promised.discard(unit)
            elif isinstance(decision, de.Place) and unit in promised:
                assert unit in permitted, decision
                promised.discard(unit)
            elif isinstance(decision, de.Hold) and decision.is_promised:
                assert unit == "Task/t1"
                promised.add(unit)
        assert promised <= set(run.engine.holds)

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
            is_apart = unit.min_groups < len(unit.groups) or unit.blocked is not None or unit.not_before > run.now
            if is_apart or len({m.shape.number for m in members}) > 1 or not evaluator.is_plain(members[0]):
                continue
            shape = members[0].shape
            rows = np.flatnonzero(shape.request)
            allowed = evaluator.static_mask(evaluator.block(members[0]))
            room = np.where(allowed, (state.nodes.free[rows] // shape.request[rows, None]).min(axis=0), 0)
            missing = sum(group.missing for group in unit.groups)
            assert np.maximum(room, 0).sum() < max(missing, 1), (unit, parked.verdict)

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
            again.see_pod(with_node(record.facts, record.node, record.facts.status.phase))
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


@ordinary
@given(histories)
def test_nobody_is_forgotten(history: list[Move]) -> None:
    """A pod that needs a node is in a unit that waits or holds, and in one only; who has a node waits for none."""

    def after(run: Run, made: list[de.AnyDecision]) -> None:
        engine = run.engine
        waiting = [uid for unit in engine.waiting.units.values() for uid in unit.pods]
        assert len(waiting) == len(set(waiting))
        held = {one.pod.uid for hold in engine.holds.values() for one in hold.placed}
        assert not held & set(waiting)
        for pod in engine.state.pods.values():
            if pod.is_ours and pod.phase is Phase.WAITING and may_wait(pod):
                assert pod.uid in waiting or pod.unit in engine.holds, pod
            else:
                assert pod.uid not in waiting, pod

    play(history, after)
