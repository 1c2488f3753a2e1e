"""Two control planes, an engine each, and the protocol between them, without any shell: whatever the order in which messages
arrive, no task runs at one party alone, and none waits for ever.

The model of the rest is as small as it can be. Each task has one pod at each party, and one record that decides: `Reserving`,
then `Reserved` (the commit) or `ReserveFailed` and `Reserving` again. A party's vote and its wish to withdraw are messages to
whoever keeps the record; what was decided is a message to each party. Messages from one to another stay in order, as watches
do; everything else is free.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.engine.decisions import AnyDecision, Hold, Place, Release
from muster.engine.machine import Engine
from tests.engine.building import node
from tests.engine.tasks_building import engine, party, task_group, task_pod

pytestmark = pytest.mark.soak
EXAMPLES = 2_000 if os.environ.get("MUSTER_SOAK") else 60
PARTIES = ("alice", "bob")
STEPS_MAX = 3_000
RUN_S = 5.0


class Task:
    def __init__(self, number: int, cpu: dict[str, int], born: int) -> None:
        self.name = f"t{number}"
        self.cpu = cpu
        self.created = f"2026-01-01T00:00:{born:02}Z"
        self.phase = "Reserving"
        self.retries = 0
        self.votes: set[str] = set()
        self.ends_at: float | None = None
        self.is_gone = False


class Plane:
    """One party: its engine, and what it has heard."""

    def __init__(self, name: str, cpu: int) -> None:
        self.name = name
        self.engine: Engine = engine(nodes=0)
        self.engine.step([ev.NodeSeen(node(f"{name}-0", cpu=str(cpu)))], 0.0)
        self.inbox: deque[ev.AnyEvent] = deque()
        self.running: set[str] = set()
        self.promised: dict[str, int] = {}
        """By task: the attempt that it voted for."""


class Model:
    def __init__(self, cpu: Sequence[int], tasks: Sequence[Task]) -> None:
        self.planes = {name: Plane(name, size) for name, size in zip(PARTIES, cpu, strict=True)}
        self.tasks = {task.name: task for task in tasks}
        self.votes: dict[str, deque[tuple[str, str, int]]] = {name: deque() for name in PARTIES}
        """From each party to the initiators: kind, task, attempt."""
        self.due: list[tuple[float, str]] = []
        self.now = 1.0

    # -- what can happen next ----------------------------------------------------------------------------------------------

    def moves(self) -> list[tuple[str, str]]:
        found = [("deliver", name) for name, plane in self.planes.items() if plane.inbox]
        found += [("hear", name) for name in PARTIES if self.votes[name]]
        return found

    def do(self, move: tuple[str, str]) -> None:
        kind, name = move
        if kind == "deliver":
            self._step(self.planes[name], [self.planes[name].inbox.popleft()])
        else:
            self._hear(name, *self.votes[name].popleft())
        self._check()

    def submit(self, task: Task) -> None:
        for name, plane in self.planes.items():
            plane.inbox.append(self._group(task, name))
            plane.inbox.append(ev.PodSeen(task_pod(f"{task.name}-{name}", name, task.name, cpu=str(task.cpu[name]))))

    def let_time_pass(self) -> None:
        times = [plane.engine.next_deadline for plane in self.planes.values()]
        times += [task.ends_at for task in self.tasks.values() if not task.is_gone]
        times += [at for at, _ in self.due]
        self.now = min((time for time in times if time is not None), default=self.now + 1.0)
        for plane in self.planes.values():
            self._step(plane, [])
        for at, name in [one for one in self.due if one[0] <= self.now]:
            self.due.remove((at, name))
            self._decide(self.tasks[name], "Reserving")
        for task in self.tasks.values():
            if task.ends_at is not None and task.ends_at <= self.now and not task.is_gone:
                self._end(task)
        self._check()

    # -- the parties -------------------------------------------------------------------------------------------------------

    def _group(self, task: Task, name: str) -> ev.TaskGroupSeen:
        other = PARTIES[1 - PARTIES.index(name)]
        return task_group(
            task.name,
            party(name, f"{task.name}-{name}"),
            others=[other],
            phase=task.phase,
            retries=task.retries,
            origin=(task.created, task.name),
        )

    def _step(self, plane: Plane, events: list[ev.AnyEvent]) -> None:
        for event in events:
            if isinstance(event, ev.TaskGroupSeen) and event.group.status.phase == "ReserveFailed":
                plane.promised.pop(event.group.metadata.name, None)
        for decision in plane.engine.step(events, self.now):
            self._carry_out(plane, decision)

    def _carry_out(self, plane: Plane, decision: AnyDecision) -> None:
        name = decision.unit.removeprefix("Task/")
        match decision:
            case Hold():
                assert decision.is_promised
                attempt = plane.engine.state.task_groups[name].status.retry_count
                plane.promised[name] = attempt
                self.votes[plane.name].append(("reserved", name, attempt))
            case Release(is_asked=True):
                self.votes[plane.name].append(("withdraw", name, plane.promised[name]))
            case Release():
                assert name not in plane.promised, f"{plane.name} took back alone what it had promised for {name}"
            case Place():
                assert name in plane.promised, f"{plane.name} started {name} without a vote"
                plane.running.add(name)
                for one in decision.pods:
                    plane.engine.step([ev.Bound(one.uid)], self.now)

    # -- the record --------------------------------------------------------------------------------------------------------

    def _hear(self, sender: str, kind: str, name: str, attempt: int) -> None:
        task = self.tasks[name]
        if task.phase != "Reserving" or attempt != task.retries:
            return  # too late, or about an attempt that is over
        if kind == "withdraw":
            self._decide(task, "ReserveFailed")
            return
        task.votes.add(sender)
        if task.votes == set(PARTIES):
            self._decide(task, "Reserved")

    def _decide(self, task: Task, phase: str) -> None:
        """One write; both parties learn of it."""
        task.phase = phase
        if phase == "Reserving":
            task.retries += 1
        if phase != "Reserved":
            task.votes = set()
        if phase == "ReserveFailed":
            self.due.append((self.now + 1.0, task.name))
        if phase == "Reserved":
            task.ends_at = self.now + RUN_S
        for name, plane in self.planes.items():
            plane.inbox.append(self._group(task, name))
            if phase == "Reserved":
                plane.inbox.append(ev.Permitted(f"Task/{task.name}"))
            elif phase == "ReserveFailed":
                plane.inbox.append(ev.Denied(f"Task/{task.name}"))

    def _end(self, task: Task) -> None:
        task.is_gone = True
        for name, plane in self.planes.items():
            plane.inbox.append(ev.PodGone(f"uid-{name}-{task.name}-{name}"))
            plane.inbox.append(ev.TaskGroupGone(task.name))

    # -- what always holds ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        for name, plane in self.planes.items():
            assert (plane.engine.state.nodes.free >= 0).all()
            for running in plane.running:
                task = self.tasks[running]
                assert task.phase == "Reserved", f"{running} runs at {name} and was never decided"
                for other, theirs in self.planes.items():
                    has_it = running in theirs.running or f"Task/{running}" in theirs.engine.holds
                    assert has_it, f"{running} runs at {name} while {other} has nothing for it"

    def run(self, choices: Sequence[int]) -> None:
        """Until nothing can happen any more; `choices` say which of the possible things comes next."""
        left = deque(choices)
        for _ in range(STEPS_MAX):
            moves = self.moves()
            pick = left.popleft() if left else 0
            if moves and (pick % (len(moves) + 1) < len(moves) or not left):
                self.do(moves[pick % (len(moves) + 1) % len(moves)])
            elif not moves and all(task.is_gone for task in self.tasks.values()):
                return
            else:
                self.let_time_pass()
        waiting = [task.name for task in self.tasks.values() if not task.is_gone]
        raise AssertionError(f"{waiting} still wait after {STEPS_MAX} steps")


@st.composite
def models(draw: st.DrawFn) -> Model:
    cpu = [draw(st.integers(2, 4)) for _ in PARTIES]
    count = draw(st.integers(2, 5))
    tasks = []
    for number in range(count):
        sizes = {name: draw(st.integers(1, size)) for name, size in zip(PARTIES, cpu, strict=True)}
        tasks.append(Task(number, sizes, draw(st.integers(0, 9))))
    return Model(cpu, tasks)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.lists(st.integers(0, 11), max_size=200))
def test_together_or_not_at_all_and_never_stuck(model: Model, choices: list[int]) -> None:
    for task in model.tasks.values():
        model.submit(task)
    model.run(choices)
    for plane in model.planes.values():
        assert not plane.engine.holds
        assert (plane.engine.state.nodes.free == plane.engine.state.nodes.capacity).all()
