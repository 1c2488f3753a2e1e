"""The plots of a report, each with the figures that it shows: pictures for who sees them, tables for everybody.

Pure. The first run is what the others are compared with; a run has the same colour in every plot.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import msgspec

from muster.sim import plots
from muster.sim.plots import Axis, Line
from muster.sim.trace_figures import (
    DAY_S,
    HOUR_S,
    Figures,
    by,
    difference,
    figures,
    mean,
    nearest_rank,
    owner_of,
    size_of,
    stretches_of,
)
from muster.sim.trace_run import JobOutcome, Outcome

GROUPS_MAX = 12
_BINS = 120
_PARTS = 10
_FLOOR_H, _SHORT_FLOOR_H = 1 / 120, 0.05 / 3600
_WAITS = (
    *((0.1 / 3600, "0.1 s"), (1 / 3600, "1 s"), (1 / 360, "10 s"), (1 / 60, "1 min"), (1 / 6, "10 min")),
    *((1.0, "1 h"), (10.0, "10 h"), (100.0, "100 h"), (1000.0, "1,000 h"), (10_000.0, "10,000 h")),
)
_PERCENTS = (50, 75, 90, 99, 100)


class Named(msgspec.Struct, frozen=True):
    """One run, and what people know it by."""

    name: str
    outcome: Outcome
    wall_s: float

    @property
    def figures(self) -> Figures:
        return figures(self.outcome, self.wall_s)


class Scale(msgspec.Struct, frozen=True):
    """What times are told in: hours, unless no job takes two of them."""

    name: str
    short: str
    per_h: float


SCALES = (Scale("hours", "h", 1.0), Scale("minutes", "min", 60.0), Scale("seconds", "s", 3600.0))


def scale_of(runs: Sequence[Named]) -> Scale:
    longest_h = max((job.jct_s for run in runs for job in done(run.outcome)), default=HOUR_S) / HOUR_S
    return next((scale for scale in SCALES if longest_h * scale.per_h >= 2), SCALES[-1])


class Drawn(msgspec.Struct, frozen=True):
    """A plot, what it is read for, and the figures in it: a row for each of `rows`, its first cell names it."""

    name: str
    reading: str
    svg: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def drawn(runs: Sequence[Named]) -> list[Drawn]:
    found = [
        _waits(runs),
        _bars(runs, "completion-by-size", "Mean completion time by size", size_of),
        _use(runs),
        _stretch(runs),
    ]
    if len({owner_of(job) for job in runs[0].outcome.jobs}) > 1:
        found.append(_bars(runs, "completion-by-group", "Mean completion time by group", owner_of))
    if len(runs) > 1:
        found.append(_gains(runs))
    return found


def done(outcome: Outcome) -> list[JobOutcome]:
    return [job for job in outcome.jobs if not math.isnan(job.ended)]


def number(value: float) -> str:
    """For a table: three digits that count, and a dash for none."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _table(headers: Sequence[str], names: Sequence[str], columns: Sequence[Sequence[float]]) -> tuple[tuple[str, ...], ...]:
    rows = zip(names, *columns, strict=True)
    return tuple((str(name), *(number(value) for value in values)) for name, *values in rows) if headers else ()


def _waits(runs: Sequence[Named]) -> Drawn:
    scale = scale_of(runs)
    lines, longest, columns = [], 1 / scale.per_h, []
    for run in runs:
        waits = sorted(job.wait_s / HOUR_S for job in done(run.outcome))
        longest = max([longest, *waits[-1:]])
        lines.append(Line(run.name, [(wait, (place + 1) / len(waits)) for place, wait in enumerate(waits)]))
        columns.append([nearest_rank(waits, percent) * scale.per_h for percent in _PERCENTS])
    floor = _FLOOR_H if longest >= 1 else _SHORT_FLOOR_H
    x = Axis("waited at most so long", floor, longest * 1.05, is_log=True, marks=((floor, "none"), *_WAITS))
    headers = (f"of the jobs, {scale.name} at most", *_names(runs))
    return Drawn(
        "waits",
        "Higher and further to the left is better: more jobs waited less. At the upper right are those that waited longest.",
        plots.line_plot("How long jobs waited", lines, x, Axis("share of jobs", 0.0, 1.0, is_percent=True)),
        headers,
        _table(headers, [f"{percent} %" for percent in _PERCENTS], columns),
    )


def _bars(runs: Sequence[Named], name: str, title: str, name_of: Callable[[JobOutcome], str]) -> Drawn:
    first = by(done(runs[0].outcome), name_of)
    if name_of is not size_of:
        first = sorted(first, key=lambda group: -group.jobs)[:GROUPS_MAX]
    names, scale = [group.name for group in first], scale_of(runs)
    values = []
    for run in runs:
        means = {group.name: group.jct_mean_h * scale.per_h for group in by(done(run.outcome), name_of)}
        values.append([means.get(group, math.nan) for group in names])
    headers = (f"{runs[0].outcome.unit}s" if name_of is size_of else "group", *_names(runs))
    return Drawn(
        name,
        f"From submission to end, in {scale.name}: lower is better. Who pays for a short mean is seen here."
        if name_of is size_of
        else "The same by who the jobs belong to: the groups with most jobs.",
        plots.bar_plot(
            title, names, values, _names(runs), scale.name, f"{headers[0]} asked for" if name_of is size_of else "group"
        ),
        headers,
        _table(headers, names, values),
    )


def _stretch(runs: Sequence[Named]) -> Drawn:
    """How many times longer a job took than it ran: the same for all sizes is fair."""
    names = [group.name for group in by(done(runs[0].outcome), size_of)]
    values = []
    for run in runs:
        stretches: dict[str, list[float]] = {}
        for job, stretch in stretches_of(run.outcome):
            stretches.setdefault(size_of(job), []).append(math.log(max(stretch, 1.0)))
        values.append([math.exp(mean(stretches[name])) if name in stretches else math.nan for name in names])
    headers = (f"{runs[0].outcome.unit}s", *_names(runs))
    return Drawn(
        "stretch-by-size",
        "How many times as long a job took, from submission to end, as it ran (geometric mean): 1 is no wait at all, and "
        "the same for all sizes is fair.",
        plots.bar_plot(
            "Fairness: time in all over time that it ran", names, values, _names(runs), "times", f"{headers[0]} asked for"
        ),
        headers,
        _table(headers, names, values),
    )


def _use(runs: Sequence[Named]) -> Drawn:
    unit = runs[0].outcome.unit
    points = [used_share(run.outcome, _BINS) for run in runs]
    last_d = max([1e-6, *(day for each in points for day, _ in each[-1:])])
    since, per_d = (
        ("days", 1.0)
        if last_d >= 1
        else next((scale.name, 24 * scale.per_h) for scale in SCALES if last_d * 24 * scale.per_h >= 1 or scale is SCALES[-1])
    )
    lines = [Line(run.name, [(day * per_d, share) for day, share in each]) for run, each in zip(runs, points, strict=True)]
    title, y = f"{unit}s in use", Axis(f"share of {unit}s", 0.0, 1.0, is_percent=True)
    columns = []
    for run in runs:
        shares = [100 * share for _, share in used_share(run.outcome, _PARTS)]
        columns.append(shares or [math.nan] * _PARTS)
    headers = ("of the time, % in use", *_names(runs))
    return Drawn(
        "use",
        "High for longer is better; what ends early has done all the work sooner.",
        plots.line_plot(title, lines, Axis(f"{since} since the first submission", 0.0, last_d * per_d), y, is_step=True),
        headers,
        _table(headers, [f"{100 * part // _PARTS} to {100 * (part + 1) // _PARTS} %" for part in range(_PARTS)], columns),
    )


def used_share(outcome: Outcome, bins: int) -> list[tuple[float, float]]:
    """Day and mean share of the GPUs that was in use, for `bins` equal times from the first event to the last."""
    use = outcome.use
    if len(use) < 2 or not outcome.gpus:
        return []
    begin, end = use[0][0], use[-1][0]
    width = (end - begin) / bins
    if not width > 0:
        return []
    sums = [0.0] * bins
    for (since, used), (until, _) in itertools.pairwise(use):
        at, place = since, min(int((since - begin) / width), bins - 1)
        while at < until:
            edge = min(until, begin + (place + 1) * width) if place < bins - 1 else until
            sums[place] += used * (edge - at)
            at, place = edge, min(place + 1, bins - 1)
    return [(place * width / DAY_S, total / width / outcome.gpus) for place, total in enumerate(sums)]


def _gains(runs: Sequence[Named]) -> Drawn:
    scale = scale_of(runs)
    lines, low, high, columns = [], -0.1, 0.1, []
    for run in runs[1:]:
        changes = [hours * scale.per_h for _, hours in difference(runs[0].outcome, run.outcome).changes]
        low, high = min([low, *changes[:1]]), max([high, *changes[-1:]])
        lines.append(Line(run.name, [(place / max(len(changes) - 1, 1), hours) for place, hours in enumerate(changes)]))
        columns.append([nearest_rank(changes, 100 * part / _PARTS) if changes else math.nan for part in range(_PARTS + 1)])
    x = Axis("jobs, from who loses most to who gains most", 0.0, 1.0, is_percent=True)
    y = Axis(f"ends earlier by, {scale.name}", low * 1.05, high * 1.05)
    headers = (f"of the jobs, {scale.name} earlier at most", *_names(runs[1:]))
    return Drawn(
        "gains",
        "Every job is on each line. Where it crosses zero is the share of jobs that are worse off; what is below zero is lost.",
        plots.line_plot(f"Who gains and who loses against {runs[0].name}", lines, x, y, has_zero=True, first=1),
        headers,
        _table(headers, [f"{100 * part // _PARTS} %" for part in range(_PARTS + 1)], columns),
    )


def _names(runs: Sequence[Named]) -> list[str]:
    return [run.name for run in runs]
