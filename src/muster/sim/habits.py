"""Jobs that never were: people with habits, by seed. A workload for predictors and forecasts, which need to know who ran what.

No public trace has users, names and lengths together, so this one is made up, loosely after figures that are public:

- lengths: the median and the mean of Philly's GPU jobs, 874 s and 18,006 s (a mean of 20 medians: very long tails). Here they
  are log-normal with a total spread of about 2.2 (in natural logarithms), of which 0.6 is within the runs of one name and the
  rest between names, types and users; cut at three days;
- sizes: Philly's 1, 2, 4 and 8 GPUs in 76, 2, 9 and 13 of 100 jobs, and one in a hundred has 16;
- arrivals: Poisson, more by day than by night (a cosine over 24 hours, 1.6 times the mean in the afternoon, 0.4 at night), and
  users submit bursts: with probability 0.35 a job comes with some more of its name, a few minutes apart;
- users: their activity falls as 1/(rank + 2); each belongs to a group, and has some names, each with a type, a size and a
  length of its own. Half of the names come with an estimate by their owner, which is too long, by the owner's own factor.

The rate follows from the load: that part of the cluster is in use on average, if `load` is below 1, so equal settings are about
equally hard whatever habits a seed draws. What a seed draws depends on the seed and the settings alone.

Pure. `generate(settings)` gives jobs as a trace has them; see docs/eta.md for what is measured with it.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from muster.sim.entropy import Chance, Entropy
from muster.sim.trace_formats import TraceJob

DAY_S: Final = 86_400.0
RUN_S_MIN: Final = 10.0
RUN_S_MAX: Final = 3 * DAY_S
MEDIAN_S: Final = 874.0
SIZES: Final = ((1, 0.755), (2, 0.02), (4, 0.09), (8, 0.125), (16, 0.01))
TYPES: Final = ("training", "evaluation", "notebook", "preprocessing", "inference")
SPREAD_TYPE: Final = 0.8
SPREAD_USER: Final = 0.9
SPREAD_NAME: Final = 1.6
SPREAD_RUN: Final = 0.6
ESTIMATED: Final = 0.5
BURST: Final = 0.35
BURST_MORE: Final = 0.6
_DRAWS: Final = 64


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    seed: int = 0
    jobs: int = 4_000
    """About a thousand have to wait then: with fewer, chance alone moves the part of intervals that hold by a hundredth."""
    gpus: int = 32
    """Of the cluster."""
    load: float = 0.95
    users: int = 40
    groups: int = 6
    names: int = 8
    """Of a user."""
    has_estimates: bool = True
    estimate_spread: float = 0.7
    """How much owners differ in how far too long their estimates are, in natural logarithms."""
    preemptible: float = 0.0
    """The part of the names whose jobs may be stopped, and save their state every ten minutes."""


class Habit(msgspec.Struct, frozen=True):
    """What one user runs under one name."""

    user: str
    group: str
    name: str
    type: str
    gpus: int
    median_s: float
    weight: float
    overestimate: float | None
    is_preemptible: bool = False


def habits(settings: Settings) -> list[Habit]:
    chance = Entropy(settings.seed).stream("habits")
    of_type = {one: chance.gauss(0.0, SPREAD_TYPE) for one in TYPES}
    found = []
    for rank in range(settings.users):
        user, group = f"user-{rank:03}", f"group-{chance.randrange(settings.groups)}"
        own, over = chance.gauss(0.0, SPREAD_USER), math.exp(abs(chance.gauss(0.0, settings.estimate_spread)))
        for number in range(settings.names):
            sort = TYPES[chance.randrange(len(TYPES))]
            length = math.log(MEDIAN_S) + of_type[sort] + own + chance.gauss(0.0, SPREAD_NAME)
            found.append(
                Habit(
                    user=user,
                    group=group,
                    name=f"{sort}-{number}",
                    type=sort,
                    gpus=_size(chance, settings.gpus),
                    median_s=math.exp(length),
                    weight=1.0 / (rank + 3) / (number + 2),
                    overestimate=over if settings.has_estimates and chance.random() < ESTIMATED else None,
                    is_preemptible=chance.random() < settings.preemptible,
                )
            )
    return found


def generate(settings: Settings) -> list[TraceJob]:
    """Jobs by submission; how many days they take follows from the load."""
    entropy = Entropy(settings.seed)
    kept = habits(settings)
    total = sum(habit.weight for habit in kept)
    bursts = 1.0 + BURST * BURST_MORE / (1.0 - BURST_MORE)
    work_s = sum(habit.weight * habit.gpus * _mean_s(habit, entropy.stream("means", str(at))) for at, habit in enumerate(kept))
    rate = settings.load * settings.gpus / (work_s / total) / bursts
    chance = entropy.stream("arrivals")
    weights = [habit.weight for habit in kept]
    jobs: list[tuple[float, Habit, float]] = []
    now = 0.0
    while len(jobs) < settings.jobs:
        now += chance.expovariate(rate * 1.6)
        # Thinning: kept with the rate of the hour over the largest one.
        if chance.random() * 1.6 > 1.0 + 0.6 * math.cos(2 * math.pi * (now / DAY_S - 0.625)):
            continue
        habit = chance.choices(kept, weights)[0]
        at = now
        jobs.append((at, habit, _length_s(habit, chance)))
        is_burst = chance.random() < BURST
        while is_burst and chance.random() < BURST_MORE:
            at += chance.expovariate(1 / 180.0)
            jobs.append((at, habit, _length_s(habit, chance)))
    jobs.sort(key=lambda job: job[0])
    return [_job(number, at, habit, run_s) for number, (at, habit, run_s) in enumerate(jobs[: settings.jobs])]


def _job(number: int, at: float, habit: Habit, run_s: float) -> TraceJob:
    estimate_s = None if habit.overestimate is None else round(habit.median_s * habit.overestimate * 1.5, -1) + 60.0
    return TraceJob(
        id=f"job-{number:06}",
        submit_s=round(at, 3),
        run_s=round(run_s, 3),
        gpu_milli=1000 * habit.gpus,
        type=habit.type,
        name=habit.name,
        user=habit.user,
        group=habit.group,
        estimate_s=estimate_s,
        preemptible=habit.is_preemptible,
        checkpoint_s=600.0,
        line=number + 2,
    )


def _size(chance: Chance, gpus: int) -> int:
    drawn = chance.random()
    for size, part in SIZES:
        drawn -= part
        if drawn < 0:
            return min(size, gpus)
    return 1


def _length_s(habit: Habit, chance: Chance) -> float:
    return min(max(habit.median_s * math.exp(chance.gauss(0.0, SPREAD_RUN)), RUN_S_MIN), RUN_S_MAX)


def _mean_s(habit: Habit, chance: Chance) -> float:
    return sum(_length_s(habit, chance) for _ in range(_DRAWS)) / _DRAWS
