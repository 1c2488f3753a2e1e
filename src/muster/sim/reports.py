"""Runs of the same jobs beside each other: a table for the terminal, and one HTML file that needs no network.

The first run is what the others are compared with. Pure: text in, text out; every text from a trace or a log is escaped, and
the page has no script, so that nothing in a trace can run in whoever's browser opens the report. What colours say is said in
signs, too, and every plot has its figures in a table.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence

from muster.sim.report_plots import GROUPS_MAX, Drawn, Named, Scale, done, drawn, number, scale_of
from muster.sim.trace_figures import NOTHING_H, by, difference, fairness, group_fairness, mean, owner_of, size_of
from muster.sim.trace_run import JobOutcome

ROWS_MAX = 10
LABELS: Mapping[str, str] = {
    "jct_mean_h": "mean completion time",
    "jct_p99_h": "99th percentile of it",
    "jct_max_h": "longest",
    "wait_mean_h": "mean wait",
    "wait_wide_mean_h": "mean wait of 16 GPUs and more",
    "preemptions_per_job": "stops per job",
    "gpu_use": "use of GPUs",
    "makespan_d": "until all is done",
    "unstarted": "jobs that never started",
    "wall_s": "took, s",
}
_MORE_IS_BETTER = frozenset({"gpu_use"})
_PLAIN = frozenset({"wall_s"})
_SIGNS = {"better": "✓", "worse": "✗"}


def table(runs: Sequence[Named]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows: a figure a row, a run a column; from the second on with the change from the first."""
    all_figures, scale = [run.figures for run in runs], scale_of(runs)
    rows = []
    for field, label in LABELS.items():
        unit, factor = "", 1.0
        if field.endswith("_h"):
            unit, factor = f", {scale.short}", scale.per_h
        elif field == "makespan_d":
            unit, factor = (", days", 1.0) if scale.per_h == 1 else (f", {scale.short}", 24 * scale.per_h)
        values = [float(getattr(one, field)) * factor for one in all_figures]
        cells = [f"{values[0]:,.4g}"]
        cells += [f"{value:,.4g}{_change(field, values[0], value)}" for value in values[1:]]
        rows.append([label + unit, *cells])
    return ["", *(run.name for run in runs)], rows


def _change(field: str, before: float, after: float) -> str:
    if field in _PLAIN or not before or before == after:
        return ""
    return f" ({(after - before) / before * 100:+.0f} %)"


def figure_plots(runs: Sequence[Named]) -> dict[str, str]:
    """By name of file, without its ending: the plots as SVG."""
    return {one.name: one.svg for one in drawn(runs)}


def html_report(title: str, runs: Sequence[Named], notes: Sequence[str] = ()) -> str:
    """The whole page."""
    said = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    figures_html = "".join(map(_figure_html, drawn(runs)))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{html.escape(title)}</title><style>{_CSS}</style></head><body><main><h1>{html.escape(title)}</h1>{said}"
        f"{_summary_html(runs)}<h2>Figures</h2>{_figures_html(runs)}{_sizes_html(runs)}"
        f"<h2>Plots</h2>{figures_html}{_gains_html(runs)}</main></body></html>\n"
    )


# -- the page ------------------------------------------------------------------------------------------------------------------

_CSS = (
    ":root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--line:#8884;--good:#00664b;--bad:#a63c00;"
    "--back:#fff;--box:#8881}"
    "@media (prefers-color-scheme:dark){:root{--ink:#e6e6e6;--soft:#a0a0a0;--good:#4fd1a5;--bad:#ff9b63;--back:#161616}}"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);margin:0}"
    "main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 4rem}h1{font-size:1.5rem;line-height:1.25;overflow-wrap:anywhere}"
    "h2{font-size:1.2rem;margin:2.5rem 0 .5rem;overflow-wrap:anywhere}p{margin:.4rem 0;max-width:46rem}"
    ".scroll{overflow-x:auto;margin:1rem 0}.sides{display:flex;flex-wrap:wrap;gap:0 2.5rem}.sides>*{max-width:100%}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}caption{text-align:left;font-weight:600;padding:.3rem 0}"
    "th,td{padding:.25rem .8rem .25rem 0;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}"
    "th{color:var(--soft);font-weight:600}thead th{white-space:nowrap;max-width:14rem;overflow:hidden;text-overflow:ellipsis}"
    "th:first-child,td:first-child{text-align:left}tbody th{color:var(--ink);font-weight:400;max-width:22rem}"
    "td{white-space:nowrap}.better{color:var(--good)}.worse{color:var(--bad)}.soft,summary,figcaption{color:var(--soft)}"
    "figure{margin:1.5rem 0 2rem}svg{display:block;width:100%;min-width:34rem;height:auto}summary{cursor:pointer}"
    ".summary{background:var(--box);padding:.6rem 1rem;border-radius:.5rem}.summary li{margin:.2rem 0}ul{padding-left:1.2rem}"
    "@media print{details{display:none}main{max-width:none}}"
)


def _cells(values: Sequence[str], marks: Sequence[str] = ()) -> str:
    """A row: its first cell names it. `marks` are `better`, `worse` or nothing, by cell after the first."""
    marked = [*marks, *[""] * (len(values) - 1 - len(marks))]
    cells = [f'<th scope="row">{html.escape(values[0])}</th>']
    for value, mark in zip(values[1:], marked, strict=True):
        sign = f' <span role="img" aria-label="{mark}" title="{mark}">{_SIGNS[mark]}</span>' if mark else ""
        cells.append(f"<td{f' class={mark!r}' if mark else ''}>{html.escape(value)}{sign}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _table_html(caption: str, headers: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in headers)
    said = html.escape(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{said}"><table><caption>{said}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _figure_html(one: Drawn) -> str:
    shown = _table_html("Figures of this plot", one.headers, [_cells(row) for row in one.rows])
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="plot">{one.svg}</div><figcaption>'
        f"{html.escape(one.reading)}<details><summary>The same as a table</summary>{shown}</details></figcaption></figure>"
    )


def _summary_html(runs: Sequence[Named]) -> str:
    """What a reader in a hurry wants to know: one sentence for each run."""
    if len(runs) < 2:
        return ""
    before, scale = runs[0].figures, scale_of(runs)
    items = []
    for run in runs[1:]:
        after, change = run.figures, difference(runs[0].outcome, run.outcome)
        told = [
            f"{label} {_told(new, scale)} instead of {_told(old, scale)}"
            for label, old, new in (
                ("jobs take", before.jct_mean_h, after.jct_mean_h),
                ("the slowest hundredth at least", before.jct_p99_h, after.jct_p99_h),
                ("those of 16 GPUs and more wait", before.wait_wide_mean_h, after.wait_wide_mean_h),
            )
            if old or new
        ]
        told.append(f"{change.gained:,} jobs end earlier and {change.lost:,} later")
        if after.preemptions_per_job:
            told.append(f"{number(after.preemptions_per_job)} stops per job")
        items.append(f"<li><strong>{html.escape(run.name)}</strong>: {html.escape('; '.join(told))}.</li>")
    return f'<div class="summary"><p>Against {html.escape(runs[0].name)}:</p><ul>{"".join(items)}</ul></div>'


def _told(hours: float, scale: Scale) -> str:
    return f"{number(hours * scale.per_h)} {scale.short}"


def _figures_html(runs: Sequence[Named]) -> str:
    headers, rows = table(runs)
    all_figures = [run.figures for run in runs]
    body = []
    for field, row in zip(LABELS, rows, strict=True):
        before = float(getattr(all_figures[0], field))
        marks = ["", *(_verdict(field, before, float(getattr(one, field))) for one in all_figures[1:])]
        body.append(_cells(row, marks))
    for label, measure in (("jobs", fairness), ("groups", group_fairness)):
        fair = [measure(run.outcome) for run in runs]
        marks = ["", *(_verdict("gpu_use", fair[0], one) for one in fair[1:])]
        body.append(_cells([f"fairness between {label}, 0 to 1", *(f"{one:.3f}" for one in fair)], marks))
    reading = (
        "✓ is better and ✗ worse than the first column, by more than 1 %. " if len(runs) > 1 else ""
    ) + "Fairness is Jain's index of how many times longer than its run a job took: 1 when that is the same for all."
    return f"{_table_html('All jobs', ['', *headers[1:]], body)}<p class=soft>{reading}</p>"


def _verdict(field: str, before: float, after: float) -> str:
    if field in _PLAIN or math.isclose(before, after, rel_tol=0.01):
        return ""
    return "better" if (after > before) == (field in _MORE_IS_BETTER) else "worse"


def _sizes_html(runs: Sequence[Named]) -> str:
    """Waits by size, as figures."""
    found = [{group.name: group for group in by(done(run.outcome), size_of)} for run in runs]
    rows, scale = [], scale_of(runs)
    for name, group in found[0].items():
        cells = [name, f"{group.jobs:,}"]
        for groups in found:
            one = groups.get(name)
            cells.append(
                f"{number(one.wait_mean_h * scale.per_h)} / {number(one.wait_p99_h * scale.per_h)}" if one is not None else "–"
            )
        rows.append(_cells(cells))
    headers = [f"{runs[0].outcome.unit}s", "jobs", *(run.name for run in runs)]
    return _table_html(f"Waits by size: mean / 99th percentile, {scale.name}", headers, rows)


def _gains_html(runs: Sequence[Named]) -> str:
    parts, scale = [], scale_of(runs)
    jobs = {job.id: job for job in runs[0].outcome.jobs}
    for run in runs[1:]:
        change = difference(runs[0].outcome, run.outcome)
        text = (
            f"{change.gained:,} jobs end earlier, by {_told(change.gained_mean_h, scale)} in the mean; {change.lost:,} end "
            f"later, by {_told(change.lost_mean_h, scale)}; {change.same:,} end when they did."
        )
        parts.append(f"<h2>{html.escape(f'{run.name} against {runs[0].name}: who gains, who loses')}</h2><p>{text}</p>")
        hours = [(jobs[name], hours) for name, hours in change.changes if name in jobs]
        sides = [
            _change_table(f"By {unit}s", hours, by_what, scale)
            for unit, by_what in ((runs[0].outcome.unit, size_of), ("group", owner_of))
        ]
        losers = [one for one in hours[:ROWS_MAX] if one[1] < -NOTHING_H]
        winners = [one for one in hours[: -ROWS_MAX - 1 : -1] if one[1] > NOTHING_H]
        sides += [
            _job_table(f"Who would {what} most", some, runs[0], scale)
            for what, some in (("lose", losers), ("gain", winners))
            if some
        ]
        parts.append(f'<div class="sides">{"".join(sides)}</div>')
    return "".join(parts)


def _change_table(
    caption: str, hours: Sequence[tuple[JobOutcome, float]], name_of: Callable[[JobOutcome], str], scale: Scale
) -> str:
    """Of each size or group: how many end earlier and later, and by how much in the mean."""
    groups: dict[str, list[tuple[JobOutcome, float]]] = {}
    for job, change in hours:
        groups.setdefault(name_of(job), []).append((job, change))
    order = (lambda name: groups[name][0][0].gpus) if name_of is size_of else (lambda name: -len(groups[name]))
    rows = []
    for name in sorted(sorted(groups), key=order)[:GROUPS_MAX]:
        changes = [change for _, change in groups[name]]
        earlier, later = sum(change > NOTHING_H for change in changes), sum(change < -NOTHING_H for change in changes)
        average = mean(changes)
        mark = "better" if average > NOTHING_H else "worse" if average < -NOTHING_H else ""
        rows.append(_cells([name[:40], f"{earlier:,}", f"{later:,}", f"{average * scale.per_h:+,.3g}"], ["", "", mark]))
    return _table_html(caption, ["", "earlier", "later", f"mean, {scale.short} earlier"], rows)


def _job_table(caption: str, some: Sequence[tuple[JobOutcome, float]], first: Named, scale: Scale) -> str:
    rows = [_cells([job.id[:80], f"{job.gpus:g}", owner_of(job)[:40], f"{hours * scale.per_h:+,.3g}"]) for job, hours in some]
    return _table_html(caption, ["job", f"{first.outcome.unit}s", "group", f"{scale.short} earlier"], rows)
