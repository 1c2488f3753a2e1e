"""What a run came to, in figures: completion times, waits, use. Pure.

Percentiles are by nearest rank: the smallest value that so many percent of the jobs do not exceed. Jobs that never started have
no completion time: they are counted in `unstarted` and are in no mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from muster.sim.trace_run import JobOutcome, Outcome

HOUR_S = 3600.0
DAY_S = 86_400.0
WIDE_GPUS = 16
NOTHING_H = 1e-5
"""A job that ends earlier or later by less ends when it did."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON line of a run. Times in hours (`_h`), days (`_d`) or seconds (`_s`)."""

    jobs: int
    jct_mean_h: float
    """From submission to the end."""
    jct_p99_h: float
    jct_max_h: float
    wait_mean_h: float
    """All the time in which the job was there and did not run."""
    wait_wide_mean_h: float
    """Of jobs of 16 GPUs and more; 0 when there are none."""
    preemptions_per_job: float
    gpu_use: float
    """GPU time that was held, over GPU time that there was from the first submission to the last end."""
    makespan_d: float
    unstarted: int
    wall_s: float
    """How long the simulation itself took."""


def figures(outcome: Outcome, wall_s: float) -> Figures:
    done = [job for job in outcome.jobs if not math.isnan(job.ended)]
    jct_s = sorted(job.jct_s for job in done)
    begin = min((job.submitted for job in outcome.jobs), default=0.0)
    end = max((job.ended for job in done), default=begin)
    span_s = end - begin
    held_gpu_s = math.fsum(job.held_s * job.gpus for job in done)
    return Figures(
        jobs=len(outcome.jobs),
        jct_mean_h=_rounded(mean(jct_s) / HOUR_S),
        jct_p99_h=_rounded(nearest_rank(jct_s, 99) / HOUR_S),
        jct_max_h=_rounded(nearest_rank(jct_s, 100) / HOUR_S),
        wait_mean_h=_rounded(mean([job.wait_s for job in done]) / HOUR_S),
        wait_wide_mean_h=_rounded(mean([job.wait_s for job in done if job.gpus >= WIDE_GPUS]) / HOUR_S),
        preemptions_per_job=_rounded(sum(job.preemptions for job in outcome.jobs) / max(len(outcome.jobs), 1)),
        gpu_use=_rounded(held_gpu_s / (outcome.gpus * span_s) if outcome.gpus and span_s else 0.0),
        makespan_d=_rounded(span_s / DAY_S),
        unstarted=len(outcome.jobs) - len(done),
        wall_s=round(wall_s, 3),
    )


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def nearest_rank(ordered: Sequence[float], percent: float) -> float:
    """Of values in ascending order; 0 when there are none."""
    return ordered[max(math.ceil(percent / 100 * len(ordered)), 1) - 1] if ordered else 0.0


def _rounded(value: float) -> float:
    """Seven digits that count: a log of seconds is told in hours, too."""
    return float(f"{value:.7g}")


# -- by group ------------------------------------------------------------------------------------------------------------------


class GroupFigures(msgspec.Struct, frozen=True):
    """Of the jobs of one size, user group, queue or type."""

    name: str
    jobs: int
    jct_mean_h: float
    wait_mean_h: float
    wait_p99_h: float


def size_of(job: JobOutcome) -> str:
    """The class of its size: the next larger power of two."""
    if job.gpus <= 0:
        return "none"
    if job.gpus < 1:
        return "under 1"
    size = next((size for size in SIZES if job.gpus <= size), None)
    return str(size) if size is not None else f"over {SIZES[-1]}"


def owner_of(job: JobOutcome) -> str:
    return job.group or job.user or job.queue or job.type or "all"


def by(jobs: Iterable[JobOutcome], name_of: Callable[[JobOutcome], str]) -> list[GroupFigures]:
    """In the order in which sizes grow, or of the names."""
    groups: dict[str, list[JobOutcome]] = {}
    for job in jobs:
        if not math.isnan(job.ended):
            groups.setdefault(name_of(job), []).append(job)
    found = []
    for name in sorted(groups, key=lambda name: (min(job.gpus for job in groups[name]) if name_of is size_of else 0, name)):
        members = groups[name]
        waits = sorted(job.wait_s for job in members)
        found.append(
            GroupFigures(
                name,
                len(members),
                mean([job.jct_s for job in members]) / HOUR_S,
                mean(waits) / HOUR_S,
                nearest_rank(waits, 99) / HOUR_S,
            )
        )
    return found


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all have the same, 1/n when one has everything."""
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else 1.0


def stretches_of(outcome: Outcome) -> list[tuple[JobOutcome, float]]:
    """How many times longer than it held anything each job took; of jobs over a minute, if there are any."""
    some = [job for job in outcome.jobs if not math.isnan(job.ended) and job.held_s > 0]
    long = [job for job in some if job.held_s >= 60]
    return [(job, job.jct_s / job.held_s) for job in long or some]


def fairness(outcome: Outcome) -> float:
    """How evenly jobs are slowed down: Jain's index over their stretches."""
    return jain([stretch for _, stretch in stretches_of(outcome)])


def group_fairness(outcome: Outcome) -> float:
    """The same between groups: over the mean stretch of the jobs of each."""
    stretches: dict[str, list[float]] = {}
    for job, stretch in stretches_of(outcome):
        stretches.setdefault(owner_of(job), []).append(stretch)
    return jain([mean(each) for each in stretches.values()])


class Difference(msgspec.Struct, frozen=True):
    """Who gains and who loses, job by job: by how many hours each ends earlier (positive) or later."""

    gained: int
    lost: int
    same: int
    gained_mean_h: float
    lost_mean_h: float
    changes: tuple[tuple[str, float], ...]
    """Job and hours, from the one that loses most to the one that gains most."""


def difference(before: Outcome, after: Outcome) -> Difference:
    """Of two runs of the same jobs. A job that ended in only one of them is in neither sum."""
    ended = {job.id: job.ended for job in before.jobs}
    changes = []
    for job in after.jobs:
        change_h = (ended.get(job.id, math.nan) - job.ended) / HOUR_S
        if not math.isnan(change_h):
            changes.append((job.id, change_h))
    changes.sort(key=lambda change: (change[1], change[0]))
    gains = [hours for _, hours in changes if hours > NOTHING_H]
    losses = [hours for _, hours in changes if hours < -NOTHING_H]
    return Difference(
        len(gains), len(losses), len(changes) - len(gains) - len(losses), mean(gains), -mean(losses), tuple(changes)
    )
