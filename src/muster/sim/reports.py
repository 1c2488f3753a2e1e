"""Runs of the same jobs beside each other: a table for the terminal, and one HTML file that needs no network.

The first run is what the others are compared with. Pure: text in, text out; every text from a trace or a log is escaped, and
the page has no script, so that nothing in a trace can run in whoever's browser opens the report.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence

import msgspec

from muster.sim import plots
from muster.sim.plots import Axis, Line
from muster.sim.trace_figures import (
    DAY_S,
    HOUR_S,
    Figures,
    by,
    difference,
    fairness,
    figures,
    mean,
    owner_of,
    size_of,
)
from muster.sim.trace_run import JobOutcome, Outcome

GROUPS_MAX = 12
ROWS_MAX = 10
_BINS = 200
_FLOOR_H = 0.01
LABELS: Mapping[str, str] = {
    "jct_mean_h": "mean completion time, h",
    "jct_p99_h": "99th percentile of it, h",
    "jct_max_h": "longest, h",
    "wait_mean_h": "mean wait, h",
    "wait_wide_mean_h": "mean wait of 16 GPUs and more, h",
    "preemptions_per_job": "stops per job",
    "gpu_use": "use of GPUs",
    "makespan_d": "until all is done, days",
    "unstarted": "jobs that never started",
    "wall_s": "took, s",
}
_MORE_IS_BETTER = frozenset({"gpu_use"})
_PLAIN = frozenset({"wall_s"})


class Named(msgspec.Struct, frozen=True):
    """One run, and what people know it by."""

    name: str
    outcome: Outcome
    wall_s: float

    @property
    def figures(self) -> Figures:
        return figures(self.outcome, self.wall_s)


def table(runs: Sequence[Named]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows: a figure a row, a run a column; from the second on with the change from the first."""
    all_figures = [run.figures for run in runs]
    rows = []
    for field, label in LABELS.items():
        values = [float(getattr(one, field)) for one in all_figures]
        cells = [f"{values[0]:,.4g}"]
        cells += [f"{value:,.4g}{_change(field, values[0], value)}" for value in values[1:]]
        rows.append([label, *cells])
    return ["", *(run.name for run in runs)], rows


def _change(field: str, before: float, after: float) -> str:
    if field in _PLAIN or not before or before == after:
        return ""
    return f" ({(after - before) / before * 100:+.0f} %)"


def figure_plots(runs: Sequence[Named]) -> dict[str, str]:
    """By name of file, without its ending: the plots as SVG."""
    found = {
        "waits": _waits(runs),
        "completion-by-size": _bars(runs, f"Mean completion time by size ({runs[0].outcome.unit}s)", size_of),
        "use": _use(runs),
        "stretch-by-size": _stretch(runs),
    }
    if len({owner_of(job) for job in runs[0].outcome.jobs}) > 1:
        found["completion-by-group"] = _bars(runs, "Mean completion time by group", owner_of)
    if len(runs) > 1:
        found["gains"] = _gains(runs)
    return found


def html_report(title: str, runs: Sequence[Named], notes: Sequence[str] = ()) -> str:
    """The whole page."""
    drawn = figure_plots(runs)
    said = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    figures_html = "".join(f"<figure>{svg}</figure>" for svg in drawn.values())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{html.escape(title)}</title><style>{_CSS}</style></head><body><h1>{html.escape(title)}</h1>{said}"
        f"{_table_html(runs)}{_groups_html(runs)}{figures_html}{_gains_html(runs)}</body></html>\n"
    )


# -- plots ---------------------------------------------------------------------------------------------------------------------


def _done(outcome: Outcome) -> list[JobOutcome]:
    return [job for job in outcome.jobs if not math.isnan(job.ended)]


def _waits(runs: Sequence[Named]) -> str:
    lines, longest = [], 1.0
    for run in runs:
        waits = sorted(job.wait_s / HOUR_S for job in _done(run.outcome))
        longest = max([longest, *waits[-1:]])
        lines.append(Line(run.name, [(wait, (place + 1) / len(waits)) for place, wait in enumerate(waits)]))
    x = Axis("waited at most so long, hours", _FLOOR_H, longest * 1.05, is_log=True)
    return plots.line_plot("Waiting", lines, x, Axis("share of jobs", 0.0, 1.0, is_percent=True))


def _bars(runs: Sequence[Named], title: str, name_of: object) -> str:
    grouping = size_of if name_of is size_of else owner_of
    first = by(_done(runs[0].outcome), grouping)
    if grouping is owner_of:
        first = sorted(first, key=lambda group: -group.jobs)[:GROUPS_MAX]
    names = [group.name for group in first]
    values = []
    for run in runs:
        means = {group.name: group.jct_mean_h for group in by(_done(run.outcome), grouping)}
        values.append([means.get(name, math.nan) for name in names])
    return plots.bar_plot(title, names, values, [run.name for run in runs], "hours")


def _stretch(runs: Sequence[Named]) -> str:
    """How many times longer a job took than it ran: the same for all sizes is fair."""
    names = [group.name for group in by(_done(runs[0].outcome), size_of)]
    values = []
    for run in runs:
        stretches: dict[str, list[float]] = {}
        for job in _done(run.outcome):
            if job.held_s >= 60:
                stretches.setdefault(size_of(job), []).append(math.log(max(job.jct_s / job.held_s, 1.0)))
        values.append([math.exp(mean(stretches[name])) if name in stretches else math.nan for name in names])
    return plots.bar_plot(
        f"Fairness: time in all over time that it ran (geometric mean), by {runs[0].outcome.unit}s",
        names,
        values,
        _names(runs),
        "times",
    )


def _use(runs: Sequence[Named]) -> str:
    unit = runs[0].outcome.unit
    lines, last_d = [], 1e-6
    for run in runs:
        points = used_share(run.outcome, _BINS)
        last_d = max([last_d, *(day for day, _ in points[-1:])])
        lines.append(Line(run.name, points))
    return plots.line_plot(
        f"{unit}s in use", lines, Axis("days", 0.0, last_d), Axis(f"share of {unit}s", 0.0, 1.0, is_percent=True), is_step=True
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
        at, number = since, min(int((since - begin) / width), bins - 1)
        while at < until:
            edge = min(until, begin + (number + 1) * width) if number < bins - 1 else until
            sums[number] += used * (edge - at)
            at, number = edge, min(number + 1, bins - 1)
    return [(number * width / DAY_S, total / width / outcome.gpus) for number, total in enumerate(sums)]


def _gains(runs: Sequence[Named]) -> str:
    lines, low, high = [], -0.1, 0.1
    for run in runs[1:]:
        changes = [hours for _, hours in difference(runs[0].outcome, run.outcome).changes]
        low, high = min([low, *changes[:1]]), max([high, *changes[-1:]])
        lines.append(Line(run.name, [(place / max(len(changes) - 1, 1), hours) for place, hours in enumerate(changes)]))
    x = Axis("jobs, from who loses most to who gains most", 0.0, 1.0, is_percent=True)
    y = Axis("ends earlier by, hours", low * 1.05, high * 1.05)
    return plots.line_plot(f"Who gains and who loses against {runs[0].name}", lines, x, y, has_zero=True)


def _names(runs: Sequence[Named]) -> list[str]:
    return [run.name for run in runs]


# -- the page ------------------------------------------------------------------------------------------------------------------

_CSS = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}th,td{padding:.25rem .8rem;text-align:right;border-bottom:1px solid #8884}"
    "th:first-child,td:first-child{text-align:left}.better{color:#009e73}.worse{color:#d55e00}figure{margin:1.5rem 0}"
    "svg{width:100%;height:auto}caption{text-align:left;font-weight:600;padding:.3rem 0}"
)


def _cells(tag: str, values: Sequence[str]) -> str:
    return "".join(f"<{tag}>{html.escape(value)}</{tag}>" for value in values)


def _table_html(runs: Sequence[Named]) -> str:
    headers, rows = table(runs)
    all_figures = [run.figures for run in runs]
    body = []
    for field, (label, first, *others) in zip(LABELS, rows, strict=True):
        cells = _cells("td", [label, first])
        before = float(getattr(all_figures[0], field))
        for one, text in zip(all_figures[1:], others, strict=True):
            cells += f'<td class="{_verdict(field, before, float(getattr(one, field)))}">{html.escape(text)}</td>'
        body.append(f"<tr>{cells}</tr>")
    fair = [f"{fairness(run.outcome):.3f}" for run in runs]
    body.append(f"<tr>{_cells('td', ['fairness (Jain, of stretch)', *fair])}</tr>")
    return f"<table><thead><tr>{_cells('th', headers)}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _verdict(field: str, before: float, after: float) -> str:
    if field in _PLAIN or math.isclose(before, after, rel_tol=0.01):
        return ""
    return "better" if (after > before) == (field in _MORE_IS_BETTER) else "worse"


def _groups_html(runs: Sequence[Named]) -> str:
    """Waits by size, as figures."""
    found = [{group.name: group for group in by(_done(run.outcome), size_of)} for run in runs]
    rows = []
    for name, group in found[0].items():
        cells = [name, str(group.jobs)]
        for groups in found:
            one = groups.get(name)
            cells.append(f"{one.wait_mean_h:,.3g} / {one.wait_p99_h:,.3g}" if one is not None else "–")
        rows.append(f"<tr>{_cells('td', cells)}</tr>")
    head = _cells("th", [f"{runs[0].outcome.unit}s", "jobs", *_names(runs)])
    caption = "<caption>Waits by size: mean / 99th percentile, hours</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _gains_html(runs: Sequence[Named]) -> str:
    parts = []
    jobs = {job.id: job for job in runs[0].outcome.jobs}
    for run in runs[1:]:
        change = difference(runs[0].outcome, run.outcome)
        text = (
            f"{run.name} against {runs[0].name}: {change.gained} jobs end earlier, by {change.gained_mean_h:,.3g} h in the "
            f"mean; {change.lost} end later, by {change.lost_mean_h:,.3g} h; {change.same} end when they did."
        )
        parts.append(f"<h2>{html.escape(text)}</h2>")
        for caption, some in (("lose most", change.changes[:ROWS_MAX]), ("gain most", change.changes[: -ROWS_MAX - 1 : -1])):
            rows = "".join(
                f"<tr>{_cells('td', [name[:80], f'{jobs[name].gpus:g}', owner_of(jobs[name])[:40], f'{hours:+,.4g}'])}</tr>"
                for name, hours in some
            )
            head = _cells("th", ["job", f"{runs[0].outcome.unit}s", "group", "ends earlier by, h"])
            parts.append(
                f"<table><caption>Who would {caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
            )
    return "".join(parts)
