"""The order's books: which unit waits and which runs, of whom, in which queue, holding what.

Fed by `PolicyOrder` (objects, units that join and leave) and by its plugin (pods that are placed and go). Pods are only noted
as they move, as most that a gang tries are given back at once; `settle` then writes down what has really changed.

Pure, single-threaded. Invariants, after `settle`: a unit has a row while it waits or holds anything; `used` of a row, the
charges of the quota tree and the rates of faded use are sums over the same placed pods; `version` grows with every change of
who waits and what runs, and the counters beside it with a part of them each: what was worked out from the books holds as long
as the counters that it depends on stand still.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from muster.engine.columns import Array
from muster.engine.pods import Phase, PodRecord
from muster.engine.state import State
from muster.engine.units import Unit
from muster.engine.work import Work, work_of
from muster.objects.time import time_or
from muster.policy.expecting import end_said
from muster.policy.kinds import Kinds, pieces_of
from muster.policy.limits import Limits
from muster.policy.people import People
from muster.policy.queues import QueueTree
from muster.policy.ranking import Line
from muster.policy.table import Row, Table
from muster.quota.tree import Breach, NodeKind, NodeSpec

MARKED_MAX: Final = 4_096
"""So many marks are kept until somebody looks; after more, everything is looked at again."""


class _Placed:
    """A pod that counts on a node, as it was written down."""

    __slots__ = ("index", "request", "unit")

    def __init__(self, pod: PodRecord) -> None:
        self.unit, self.index, self.request = pod.unit, pod.index, pod.request

    def is_still(self, pod: PodRecord) -> bool:
        return self.unit == pod.unit and self.index == pod.index and self.request is pod.request


class Book:
    def __init__(self, state: State) -> None:
        self.state = state
        self.table = Table(len(state.table))
        self.tree = QueueTree()
        self.limits = Limits(state, self.table)
        self.people = People(self.table, self.tree)
        self.line = Line()
        """Those that wait in a queue."""
        self.version = 0
        self.room_version = 0
        """As `version`, for pods that were placed or went alone."""
        self.epoch = 0
        """Grows with every event."""
        self.line_version = 0
        """As `version`, for units that joined the line, or are others than they were."""
        self.surprises = 0
        """How often room came or went otherwise than was expected: what was planned by it does not hold any more."""
        self.blocked_version = 0
        """Grows when others wait in vain than before, or might: by one with each mark."""
        self.marked: list[int] = []
        """Rows that were marked since the front of the line was looked at last."""
        self.stops = 0
        """Grows when a unit stops running."""
        self.row_at: Array = np.full(64, -1, np.int64)
        """By index of the placed pods: the row of its unit."""
        self._kinds = Kinds()
        self.pieces = self._kinds.pieces
        self.jobs: dict[str, dict[str, None]] = {}
        """By `Work.job`: its units."""
        self.leading: dict[str, str] = {}
        """By unit: the pod that speaks for it."""
        self._moved: dict[str, PodRecord] = {}
        self._placed: dict[str, _Placed] = {}
        self._pods_of: dict[str, dict[str, None]] = {}
        """By unit: its placed pods."""
        self.finding: Callable[[int], None] | None = None
        """Told of the row of a unit that runs and was never seen waiting."""
        self.stopping: Callable[[str, int], None] | None = None
        """Told of a unit and its row when nothing of it runs any more, before the row forgets."""

    # -- units -----------------------------------------------------------------------------------------------------------------

    def join(self, unit: Unit) -> int | None:
        """The unit waits, as it is now; None when it has no pods of its own."""
        pods = [pod for uid in unit.pods if (pod := self.state.pods.get(uid)) is not None]
        if not pods:
            self.leave(unit.id)
            return None
        row = self._put(unit.id, pods[0], pods, self._required(unit) or pods)
        self.table.is_waiting[row] = True
        self.table.refusal[row] = 0
        self._line_up(row)
        self.version += 1
        self.line_version += 1
        return row

    def leave(self, unit_id: str) -> None:
        """It waits no more."""
        row = self.table.row_of.get(unit_id)
        if row is None:
            return
        self._unline(row)
        self.mark(row, refusal=0, is_blocked=False)
        self.table.is_waiting[row] = False
        self.version += 1
        self.settle()
        if self.table.row_of.get(unit_id) == row and not self.table.is_running[row]:
            self._drop(unit_id)

    def mark(self, row: int, *, refusal: int, is_blocked: bool) -> None:
        """Why it sleeps, and whether it was tried in vain."""
        table = self.table
        if table.refusal[row] != refusal or table.is_blocked[row] != is_blocked:
            table.refusal[row], table.is_blocked[row] = refusal, is_blocked
            self.blocked_version += 1
            if len(self.marked) < MARKED_MAX:
                self.marked.append(row)

    def reread(self, pod: PodRecord) -> bool:
        """The pod was seen again: whether it says something else about its work."""
        row = self.table.row_of.get(pod.unit)
        if row is None or self.leading.get(pod.unit) != pod.uid or self._work(pod) == self.table.works[row]:
            return False
        self._refill(pod.unit, pod)
        self.others_than_before()
        return True

    def refill(self) -> None:
        """Queues, users or groups changed: who belongs where, and at which level."""
        for unit_id in list(self.table.row_of):
            pod = self.state.pods.get(self.leading.get(unit_id, ""))
            if pod is not None:
                self._refill(unit_id, pod)
        self.others_than_before()

    def others_than_before(self) -> None:
        """What is known of units has changed, so lines and plans were made of something else."""
        self.version += 1
        self.line_version += 1
        self.surprises += 1

    def _refill(self, unit_id: str, pod: PodRecord) -> None:
        row = self._put(unit_id, pod, None, ())
        self._line_up(row)
        if self.table.is_running[row]:
            self._charge(unit_id, row)

    def _required(self, unit: Unit) -> list[PodRecord]:
        """The pods that must find a place before anything starts."""
        groups = [group for group in unit.groups if group.controlled]
        uids = [uid for group in groups for uid in group.pods[: group.missing or len(group.pods)]]
        return [pod for uid in uids if (pod := self.state.pods.get(uid)) is not None]

    def _put(self, unit_id: str, pod: PodRecord, pods: Sequence[PodRecord] | None, required: Sequence[PodRecord]) -> int:
        """The unit's row, out of the line; with `pods`, what it asks for is theirs."""
        table, work, people = self.table, self._work(pod), self.people
        row = table.row_of.get(unit_id)
        if row is not None:
            self._unline(row)
            self._unjob(unit_id, row)
        queue = work.queue or self.tree.default
        group = people.group_of(work.user, work.group)
        if pods is not None or row is None:
            members = pods or [pod]
            request = _sum(members)
            pieces, count = pieces_of(required or members), len(members)
        else:
            request, pieces, count = table.request[:, row].copy(), self.pieces[int(table.kind[row])], int(table.pods[row])
        old = int(table.kind[row]) if row is not None else -1
        kind = self._kinds.take(unit_id, queue, work.user, group, pieces)
        if old >= 0:
            self._kinds.give(old)
        filling = Row(
            request=request,
            pods=count,
            kind=kind,
            queue=queue,
            user=work.user,
            group=group,
            user_level=people.user_level(work.user),
            group_level=people.group_level(group),
            labels=pod.facts.metadata.labels,
        )
        row = table.put(unit_id, work, filling)
        self.leading[unit_id] = pod.uid
        if work.job:
            self.jobs.setdefault(work.job, {})[unit_id] = None
        return row

    def _work(self, pod: PodRecord) -> Work:
        work = work_of(pod.seen)
        if work.submitted:
            return work
        return msgspec.structs.replace(work, submitted=time_or(pod.seen.metadata.creation_timestamp, self.state.now))

    def _drop(self, unit_id: str) -> None:
        row = self.table.row_of[unit_id]
        self._unjob(unit_id, row)
        self._kinds.give(int(self.table.kind[row]))
        self.leading.pop(unit_id, None)
        self.table.drop(unit_id)

    def _unjob(self, unit_id: str, row: int) -> None:
        job = self.table.works[row].job
        units = self.jobs.get(job)
        if units is not None:
            units.pop(unit_id, None)
            if not units:
                del self.jobs[job]

    def _line_up(self, row: int) -> None:
        table = self.table
        if table.is_waiting[row] and table.queue[row] >= 0:
            self.line.add(float(table.submitted[row]), table.ids[row], row)

    def _unline(self, row: int) -> None:
        table = self.table
        if table.is_waiting[row] and table.queue[row] >= 0:
            self.line.remove(float(table.submitted[row]), table.ids[row], row)

    # -- pods ------------------------------------------------------------------------------------------------------------------

    def note(self, pod: PodRecord) -> None:
        """The pod was placed, or taken away."""
        self._moved[pod.uid] = pod

    def settle(self) -> None:
        """Write down which pods really came to be placed, or went."""
        if not self._moved:
            return
        moved, self._moved = self._moved, {}
        changed: dict[str, None] = {}
        come: list[PodRecord] = []
        is_foreign = False
        for uid, pod in moved.items():
            before = self._placed.get(uid)
            is_placed = pod.index >= 0 and pod.is_ours and self.state.pods.get(uid) is pod
            if is_placed and before is not None and before.is_still(pod):
                continue  # taken away for a question, and put back
            is_foreign |= not pod.is_ours
            if before is not None:
                del self._placed[uid]
                changed[before.unit] = None
                self.row_at[before.index] = -1
                pods = self._pods_of[before.unit]
                del pods[uid]
                if not pods:
                    del self._pods_of[before.unit]
            if is_placed:
                come.append(pod)
        for pod in come:
            self._placed[pod.uid] = _Placed(pod)
            changed[pod.unit] = None
            self._pods_of.setdefault(pod.unit, {})[pod.uid] = None
        for unit_id in changed:
            self._count(unit_id)
        self.surprises += is_foreign
        if changed or is_foreign:
            self.version += 1
            self.room_version += 1

    def _count(self, unit_id: str) -> None:
        """Add up what the unit's placed pods hold."""
        table = self.table
        uids = self._pods_of.get(unit_id, ())
        row = table.row_of.get(unit_id)
        if not uids:
            if row is not None and table.is_running[row]:
                # Who ends when it was expected to changes nothing that was planned.
                self.surprises += not math.isclose(end_said(table, row), self.state.now, rel_tol=0, abs_tol=1e-3)
                self._stop(unit_id, row)
            return
        self.surprises += 1
        pods = [self.state.pods[uid] for uid in uids]
        is_found = row is None
        if row is None:
            row = self._put(unit_id, pods[0], pods, pods)
        if not table.is_running[row]:
            table.is_running[row] = True
            table.started[row] = min(self._started(pod) for pod in pods)
        is_all = not table.is_waiting[row]
        table.hold(row, _sum(pods), is_all=is_all)
        if is_all:
            table.pods[row] = len(pods)
        for pod in pods:
            index = self._placed[pod.uid].index
            if index >= len(self.row_at):
                self.row_at = np.concatenate([self.row_at, np.full(max(index + 1, len(self.row_at)), -1, np.int64)])
            self.row_at[index] = row
        if is_found and self.finding is not None:
            self.finding(row)
        self._charge(unit_id, row)

    def _started(self, pod: PodRecord) -> float:
        """When a pod that was found on its node began; what is placed here begins now."""
        now = self.state.now
        return min(time_or(pod.facts.status.start_time, now), now) if pod.phase is Phase.BOUND else now

    def _charge(self, unit_id: str, row: int) -> None:
        """What it holds counts against limits, and as use that fades."""
        table = self.table
        self.limits.charge(row, self._jobs_more(row))
        names = (table.works[row].user, table.group_name(row), table.queue_name(row))
        self.people.charge(unit_id, names, float(table.used_dominant[row]), self.state.now)

    def _stop(self, unit_id: str, row: int) -> None:
        table = self.table
        if self.stopping is not None:
            self.stopping(unit_id, row)
        self.stops += 1
        table.is_running[row] = False
        table.started[row] = np.nan
        table.let_go(row)
        self.limits.stop(unit_id)
        self.people.charge(unit_id, ("", "", ""), 0.0, self.state.now)
        self._pass_job(table.works[row].job)
        if not table.is_waiting[row]:
            self._drop(unit_id)

    def _pass_job(self, job: str) -> None:
        """A unit of the job ended: another that still runs counts as the job from now on."""
        for other in self.jobs.get(job, ()):
            row = self.table.row_of.get(other)
            if row is not None and self._pods_of.get(other):
                self._charge(other, row)
                break

    # -- limits ----------------------------------------------------------------------------------------------------------------

    def check(self, row: int) -> Breach | None:
        """The limit that starting the unit would break."""
        return self.limits.check(row, self._jobs_more(row))

    def set_limits(self, spec: NodeSpec) -> None:
        """An object with limits was seen."""
        self.blocked_version += 1
        self.limits.put(spec)

    def drop_limits(self, kind: NodeKind, name: str) -> None:
        self.blocked_version += 1
        self.limits.drop(kind, name)

    def _jobs_more(self, row: int) -> int:
        """How many jobs run because the unit does, or would: none, if others of its job run."""
        units = self.jobs.get(self.table.works[row].job, ())
        return 0 if any(other != self.table.ids[row] and self._pods_of.get(other) for other in units) else 1

    # -- placed pods -----------------------------------------------------------------------------------------------------------

    def unit_of_placed(self, uid: str) -> str:
        """The unit of a pod that has a place, as far as that is written down; "" of others."""
        placed = self._placed.get(uid)
        return placed.unit if placed is not None else ""

    def placed_pods(self, unit_id: str) -> list[tuple[int, Array]]:
        """Slots and requests of the unit's pods that have a place."""
        pods = [self.state.pods[uid] for uid in self._pods_of.get(unit_id, ())]
        return [(self.state.nodes.slots[pod.node], pod.request) for pod in pods]


def _sum(pods: Sequence[PodRecord]) -> Array:
    if len(pods) == 1:
        return pods[0].request.copy()
    total: Array = np.zeros(max(len(pod.request) for pod in pods), np.int64)
    for pod in pods:
        total[: len(pod.request)] += pod.request
    return total
