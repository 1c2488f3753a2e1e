"""First come, first served, played beside the real order: what would have become of everybody who just waited for their turn.

A schedule on paper. It has one resource, the share of the cluster that work asks for, and lets work in strictly in the order in
which it came. It is played up to the present with the run times that are known now: what has really ended counts with its true
one, the rest as its owner says or as runs like it suggest; so wrong estimates do not add up. The last `WINDOW` jobs are
remembered, and all that are open in truth or on paper: how long each really took, and how long it would have.

From this a policy knows how late work is (`Lateness`): beside the last of all, or beside all but one of a hundred.

Fed by `PolicyOrder`: units that join, are found running, stop or go, each with the time. Pure, single-threaded; the same calls
give the same figures, and `kept` and `restore` carry them over a checkpoint. A call costs what it moves, not what there is.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from muster.engine.columns import Array
from muster.policy.table import NAN, Lateness, Table

WINDOW: Final = 10_000
"""So many jobs are remembered that are over, in truth and on paper."""
JOBS_MAX: Final = 200_000
"""So many jobs there are at most; then the one that came first is forgotten, whatever it does."""
WHOLE: Final = 1_000_000_000
"""The cluster, in the unit that shares are counted in: whole numbers, so that what is taken and given back adds up."""


class _Job:
    """One job, in truth and on paper. NaN is what has not happened, or is not known."""

    __slots__ = (
        "came",
        "end",
        "has_ended",
        "is_ending",
        "is_gone",
        "key",
        "run_s",
        "share",
        "since",
        "took_s",
        "unit",
        "would_s",
    )

    def __init__(self, key: str, came: float, share: int) -> None:
        self.key, self.came, self.share = key, came, share
        self.unit = ""
        """Which of the units it is; empty once it has ended in truth."""
        self.run_s = NAN
        self.since = self.end = self.would_s = NAN
        """On paper: when it started, when it ends (infinite while nobody knows), and how long after its submission that is."""
        self.has_ended = False
        """On paper."""
        self.is_ending = False
        """In truth: a pod of it has come to its end by itself."""
        self.took_s = NAN
        """In truth, since it was submitted."""
        self.is_gone = False
        """It is forgotten."""

    @property
    def is_over(self) -> bool:
        return self.has_ended and not math.isnan(self.took_s)


class FirstCome:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._clear()

    def _clear(self) -> None:
        self._clock = -math.inf
        """Up to here the paper has been played."""
        self._jobs: dict[str, _Job] = {}
        self._of_unit: dict[str, _Job] = {}
        self._free = WHOLE
        self._waiting: deque[_Job] = deque()
        self._running: list[tuple[float, int, _Job]] = []
        """A heap by end; an end that is not the job's any more is passed over."""
        self._number = 0
        self._over: deque[_Job] = deque()
        """Over in truth and on paper, the first first."""
        self._would: list[float] = []
        """Sorted: what those take that have started on paper."""
        self._coming: list[float] = []
        """Sorted: run time less submission of those that wait on paper: with the present time, the least that they take."""
        self._took: list[float] = []
        """Sorted: what those took that have really ended."""

    def __len__(self) -> int:
        return len(self._jobs)

    # -- what happens ----------------------------------------------------------------------------------------------------------

    def joined(self, row: int, now: float) -> None:
        """A unit waits, for the first time or again."""
        job = self._job_of(row)
        if job is None:
            job = self._add(row, now)
            self._waiting.append(job)
            _put(self._coming, job.run_s - job.came)
        elif not math.isnan(job.took_s):
            # It is there, so that was no end.
            _take(self._took, job.took_s)
            job.took_s = NAN
            self._learn(job, self._expected_s(row), now)
        job.is_ending = False
        self._play(now)

    def found(self, row: int, now: float) -> None:
        """A unit is seen running that nobody saw wait."""
        if self._job_of(row) is None:
            self._start(self._add(row, now), min(float(self._table.started[row]), now))
            self._play(now)

    def ending(self, unit_id: str) -> None:
        """A pod of the unit has come to its end by itself: when the unit stops, its work is done."""
        job = self._of_unit.get(unit_id)
        if job is not None:
            job.is_ending = True

    def stopped(self, unit_id: str, run_s: float, now: float) -> None:
        """Nothing of the unit runs any more. If its work is done, that took `run_s`; otherwise it will be back."""
        job = self._of_unit.get(unit_id)
        if job is None or not job.is_ending:
            return
        self._play(now)
        del self._of_unit[unit_id]
        job.unit, job.took_s = "", now - job.came
        _put(self._took, job.took_s)
        self._learn(job, run_s, now)
        self._retire(job)
        self._play(now)

    def gone(self, unit_id: str, now: float) -> None:
        """The unit was taken away before it ever ran."""
        job = self._of_unit.get(unit_id)
        if job is not None:
            self._play(now)
            self._erase(job)
            self._play(now)

    # -- what it says ----------------------------------------------------------------------------------------------------------

    def lateness(self, percent: float, takes_s: Array, now: float) -> Lateness:
        """The bounds for `percent` of all jobs; `takes_s` is what each that is there will have taken, if it goes on now."""
        if math.isnan(percent):
            return Lateness()
        self._play(now)
        spared = int(len(self._jobs) * (100.0 - percent) / 100.0)
        bound_s = self._largest(spared, now)
        if not spared or not len(takes_s) or not takes_s.max() > bound_s:
            return Lateness(bound_s)
        later = np.concatenate([takes_s[takes_s > bound_s], self._took[-spared:]])
        if len(later) <= spared:
            return Lateness(bound_s, bound_s)
        at = len(later) - spared - 1
        return Lateness(bound_s, max(float(np.partition(later, at)[at]), bound_s))

    def _largest(self, spared: int, now: float) -> float:
        """The most that anybody would have taken, beside `spared` who take longer; NaN when nothing is known of any."""
        would, coming = len(self._would) - 1, len(self._coming) - 1
        found = NAN
        for _ in range(spared + 1):
            started = self._would[would] if would >= 0 else -math.inf
            waits = self._coming[coming] + now if coming >= 0 else -math.inf
            if started == waits == -math.inf:
                break
            found = max(started, waits)
            if started >= waits:
                would -= 1
            else:
                coming -= 1
        return found

    # -- the paper -------------------------------------------------------------------------------------------------------------

    def _play(self, now: float) -> None:
        """Start and end what is due until now."""
        running, waiting = self._running, self._waiting
        while True:
            while waiting and (waiting[0].is_gone or waiting[0].share <= self._free):
                job = waiting.popleft()
                if not job.is_gone:
                    _take(self._coming, job.run_s - job.came)
                    self._start(job, self._clock)
            if not running or running[0][0] > now:
                break
            end, _, job = heapq.heappop(running)
            if end == job.end and not job.has_ended and not job.is_gone:
                self._clock = max(self._clock, end)
                self._free += job.share
                job.has_ended = True
                self._retire(job)
        self._clock = max(self._clock, now)

    def _start(self, job: _Job, since: float) -> None:
        job.since = since
        self._free -= job.share
        self._set_run(job, job.run_s, -math.inf)

    def _learn(self, job: _Job, run_s: float, now: float) -> None:
        """Something else is known of its run time than before."""
        if math.isnan(job.since):
            _take(self._coming, job.run_s - job.came)
            job.run_s = run_s
            _put(self._coming, run_s - job.came)
        else:
            _take(self._would, job.would_s)
            self._set_run(job, run_s, now)

    def _set_run(self, job: _Job, run_s: float, not_before: float) -> None:
        """Of one that has started: how long it runs, and so when it ends."""
        job.run_s = run_s
        job.would_s = job.since - job.came + run_s
        _put(self._would, job.would_s)
        if not job.has_ended:
            job.end = math.inf if math.isnan(run_s) else max(job.since + run_s, not_before)
            self._push(job)

    def _push(self, job: _Job) -> None:
        if job.end < math.inf:
            self._number += 1
            heapq.heappush(self._running, (job.end, self._number, job))

    # -- keeping ---------------------------------------------------------------------------------------------------------------

    def _add(self, row: int, now: float) -> _Job:
        table = self._table
        self._play(now)
        while len(self._jobs) >= JOBS_MAX:
            self._erase(next(iter(self._jobs.values())))
        # Rounded down: what fills the cluster together must fit on paper too. Who has no share, takes nothing.
        share = float(table.dominant[row])
        job = _Job(self._key(row), float(table.submitted[row]), 0 if math.isnan(share) else int(min(share, 1.0) * WHOLE))
        job.unit, job.run_s = table.ids[row], self._expected_s(row)
        self._jobs[job.key] = self._of_unit[job.unit] = job
        return job

    def _expected_s(self, row: int) -> float:
        """How long the work runs from a start from nothing: as its owner says, else as predicted; NaN where nobody knows."""
        estimate_s = float(self._table.estimate_s[row])
        return float(self._table.predicted_s[row]) if math.isnan(estimate_s) else estimate_s

    def _job_of(self, row: int) -> _Job | None:
        """The job that the unit is of, if it was here before; from now on it is this unit."""
        unit, key = self._table.ids[row], self._key(row)
        job = self._jobs.get(key)
        if job is not None and job.unit != unit:
            self._of_unit.pop(job.unit, None)
            job.unit, self._of_unit[unit] = unit, job
        return job

    def _key(self, row: int) -> str:
        """All attempts of a job have it in common. A namesake that is submitted later has another, and so has another unit of
        the job while the first is still there."""
        table = self._table
        unit, submitted = table.ids[row], float(table.submitted[row])
        key = f"{table.works[row].job or unit} {submitted}"
        job = self._jobs.get(key)
        is_another = job is not None and job.unit != unit and job.unit in table.row_of
        return f"{unit} {submitted}" if is_another else key

    def _retire(self, job: _Job) -> None:
        """Once it is over, it is one of those that are forgotten in time."""
        if not job.is_over:
            return
        self._over.append(job)
        while len(self._over) > WINDOW:
            first = self._over.popleft()
            if first.is_over and not first.is_gone:  # it may have come back since
                self._erase(first)

    def _erase(self, job: _Job) -> None:
        job.is_gone = True
        self._jobs.pop(job.key, None)
        self._of_unit.pop(job.unit, None)
        if math.isnan(job.since):
            _take(self._coming, job.run_s - job.came)
        else:
            _take(self._would, job.would_s)
            if not job.has_ended:
                self._free += job.share
        _take(self._took, job.took_s)

    # -- checkpoints -----------------------------------------------------------------------------------------------------------

    def kept(self) -> dict[str, Any]:
        """What does not follow from the objects."""
        places = {key: place for place, key in enumerate(self._jobs)}
        return {
            "clock": _known(self._clock),
            "jobs": [_kept(job) for job in self._jobs.values()],
            "over": [places[job.key] for job in self._over if not job.is_gone],
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take over what another one kept; what is here and unknown to that joins now."""
        self._clear()
        clock = kept["clock"]
        self._clock = -math.inf if clock is None else float(clock)
        jobs = [_restored(values) for values in kept["jobs"]]
        for job in jobs:
            self._jobs[job.key] = job
            if job.unit:
                self._of_unit[job.unit] = job
            _put(self._took, job.took_s)
            if math.isnan(job.since):
                self._waiting.append(job)
                _put(self._coming, job.run_s - job.came)
                continue
            _put(self._would, job.would_s)
            if not job.has_ended:
                self._free -= job.share
                self._push(job)
        self._over.extend(jobs[int(place)] for place in kept["over"])
        self._meet()

    def _meet(self) -> None:
        table = self._table
        for row in table.row_of.values():
            if table.is_running[row]:
                self.found(row, self._clock)
            elif self._job_of(row) is None:
                self.joined(row, self._clock)


def _put(values: list[float], value: float) -> None:
    """Into a sorted list; what is no number is not known, and not there."""
    if not math.isnan(value):
        bisect.insort(values, value)


def _take(values: list[float], value: float) -> None:
    if not math.isnan(value):
        del values[bisect.bisect_left(values, value)]


def _kept(job: _Job) -> list[Any]:
    numbers = (job.came, job.run_s, job.since, job.end, job.would_s, job.took_s)
    return [job.key, job.unit, job.share, job.has_ended, job.is_ending, *map(_known, numbers)]


def _restored(values: Sequence[Any]) -> _Job:
    key, unit, share, has_ended, is_ending, *numbers = values
    came, run_s, since, end, would_s, took_s = (NAN if number is None else float(number) for number in numbers)
    job = _Job(str(key), came, int(share))
    job.unit, job.has_ended, job.is_ending = str(unit), bool(has_ended), bool(is_ending)
    job.run_s, job.since, job.would_s, job.took_s = run_s, since, would_s, took_s
    job.end = math.inf if math.isnan(end) and not math.isnan(since) else end
    return job


def _known(number: float) -> float | None:
    """For a log, which has no word for what is not known."""
    return number if math.isfinite(number) else None
