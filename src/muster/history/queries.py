"""Questions to a log: who ran what where when, how long things waited and for what, what was used of what was asked for.

Each answer is a `Table`: names of columns and rows of plain values, times as seconds since 1970. `sql.py` puts the same tables
before DuckDB. Blocking, single-threaded; reads the log once per question, from front to back.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from muster.engine.decisions import AnyDecision, Evict, Hold, Park, Place, Release
from muster.engine.facts import RunFacts
from muster.engine.plugins.past_runs import NODE
from muster.history.reader import Finding, Log, Segment
from muster.history.records import Action, Step
from muster.history.segments import SegmentDamaged
from muster.history.tracking import Run, Tracker
from muster.objects.amounts import amount_text, unit_of

logger = logging.getLogger(__name__)

Value = str | int | float | bool | None


class Table(msgspec.Struct, frozen=True):
    columns: tuple[str, ...]
    rows: Sequence[tuple[Value, ...]]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of the log. Empty means all."""

    start: float | None = None
    stop: float | None = None
    user: str = ""
    group: str = ""
    queue: str = ""
    namespace: str = ""
    job: str = ""
    """A job, unit or pod: the end of its name is enough."""

    def takes(self, run: Run) -> bool:
        if self.start is not None and run.ended is not None and run.ended < self.start:
            return False
        if self.stop is not None and run.submitted is not None and run.submitted > self.stop:
            return False
        told = ((self.user, run.user), (self.group, run.group), (self.queue, run.queue), (self.namespace, run.namespace))
        if any(wanted and wanted != found for wanted, found in told):
            return False
        return not self.job or _is_named(self.job, run.job, run.unit, f"{run.namespace}/{run.pod}")


def _is_named(wanted: str, *names: str) -> bool:
    return any(name == wanted or name.endswith(f"/{wanted}") for name in names)


ALL = Wanted()
Note = Callable[[Finding], None]


def _read(log: Log, wanted: Wanted, tracker: Tracker | None = None, note: Note | None = None) -> Iterator[Step | Action]:
    """The records of the part that is asked for; a tracker sees everything from its beginning on. Of a segment that is damaged
    what stands before the damage counts, and the next one begins anew, if there is a `note` to be told; else SegmentDamaged."""
    for name in log.between(wanted.start, wanted.stop):
        try:
            with log.open(name) as segment:
                yield from _read_one(segment, wanted, tracker)
                for finding in segment.findings if note is not None else ():
                    note(finding)  # type: ignore[misc]
        except SegmentDamaged as error:
            if note is None:
                raise
            note(Finding(str(name), str(error).removeprefix(f"{name}: ")))


def _read_one(segment: Segment, wanted: Wanted, tracker: Tracker | None) -> Iterator[Step | Action]:
    if not segment.is_usable:
        segment.findings.append(Finding(segment.name, segment.nothing_in_it, is_loss=False))
        return
    if tracker is not None:
        kept = segment.checkpoint()
        if kept is not None and wanted.stop is not None and kept.now > wanted.stop:
            return
        tracker.segment(segment.header, kept)
    for record in segment.records():
        at = record.now if isinstance(record, Step) else record.at
        if wanted.stop is not None and at > wanted.stop:
            continue
        if tracker is not None and isinstance(record, Step):
            tracker.step(record)
        if wanted.start is None or at >= wanted.start:
            yield record


def runs(log: Log, wanted: Wanted = ALL, note: Note | None = None) -> Iterator[Run]:
    """Every pod of the log: when it ended, or, at the end, as it was last known."""
    tracker = Tracker()
    for record in _read(log, wanted, tracker, note):
        if isinstance(record, Step):
            yield from filter(wanted.takes, tracker.take())
    yield from filter(wanted.takes, tracker.finish())


def past_runs(log: Log, wanted: Wanted = ALL, note: Note | None = None) -> Iterator[RunFacts]:
    """Runs that ended well or failed, oldest first, as the engine takes them in (`events.RunsSeen`)."""
    for run in runs(log, wanted, note):
        if run.outcome in ("Succeeded", "Failed") and run.run_s is not None and run.ended is not None:
            yield RunFacts(
                user=run.user,
                group=run.group,
                name=run.name,
                type=run.type,
                seconds=run.run_s,
                ended=run.ended,
                requests=dict(run.requests),
                used={name: round(amount) for name, amount in run.used_max.items()},
                attributes=dict(run.attributes),
                labels={NODE: run.node} if run.node else {},
                failed=run.outcome == "Failed",
            )


def recent_runs(log: Log, until: float, *, segments_max: int = 8, runs_max: int = 5_000) -> list[RunFacts]:
    """The last of `past_runs` from before `until`, from the newest segments only: what predictions begin with. What is damaged
    is left out, and said in the program's log."""
    names = log.names[-segments_max:]
    wanted = Wanted(start=names[0].instant if names else None, stop=until)
    return list(deque(past_runs(log, wanted, _logged), maxlen=runs_max))


def _logged(finding: Finding) -> None:
    if not finding.is_open:
        logger.warning("predictions begin without a part of the decision log: %s: %s", finding.segment, finding.text)


# -- tables ------------------------------------------------------------------------------------------------------------------

RUN_COLUMNS = (
    "job", "user", "group", "queue", "type", "namespace", "pod", "node", "outcome",
    "submitted", "placed", "started", "ended", "wait_s", "run_s", "requests", "used_mean", "used_max", "waited_for", "score",
)  # fmt: skip


def runs_table(found: Iterable[Run]) -> Table:
    """One row per pod."""
    return Table(RUN_COLUMNS, [_run_row(run) for run in found])


def _run_row(run: Run) -> tuple[Value, ...]:
    return (
        run.job, run.user, run.group, run.queue, run.type, run.namespace, run.pod, run.node, run.outcome,
        run.submitted, run.placed, run.started, run.ended, run.wait_s, run.run_s,
        _written(run.requests), _written(run.used_mean), _written(run.used_max), _amounts(run.reasons_s), run.score,
    )  # fmt: skip


def _amounts(amounts: Mapping[str, int | float]) -> str:
    return ",".join(f"{name}={amount:.6g}" for name, amount in sorted(amounts.items()))


def _written(amounts: Mapping[str, int | float]) -> str:
    """As manifests have them: `cpu=500m,memory=4Gi`."""
    return ",".join(f"{name}={amount_text(name, round(amount))}" for name, amount in sorted(amounts.items()))


def running_at(found: Iterable[Run], instant: float) -> Iterator[Run]:
    """Those that had a node at that moment: who used what."""
    for run in found:
        began = run.placed if run.placed is not None else run.started
        if run.node and began is not None and began <= instant and (run.ended is None or run.ended > instant):
            yield run


JOB_COLUMNS = (
    "job", "user", "group", "queue", "type", "pods", "nodes", "outcome", "submitted", "placed", "ended", "wait_s", "run_s",
    "evictions",
)  # fmt: skip


def jobs_table(found: Iterable[Run]) -> Table:
    """One row per job, or per pod or gang that belongs to none. Placed when its first pod was, ended when its last one did."""
    by_job: dict[str, list[Run]] = {}
    for run in found:
        by_job.setdefault(run.job or f"Pod/{run.namespace}/{run.pod}", []).append(run)
    return Table(JOB_COLUMNS, [_job_row(job, pods) for job, pods in by_job.items()])


def _job_row(job: str, pods: Sequence[Run]) -> tuple[Value, ...]:
    first = pods[0]
    submitted = min((run.submitted for run in pods if run.submitted is not None), default=None)
    placed = min((run.placed for run in pods if run.placed is not None), default=None)
    is_over = all(run.ended is not None for run in pods)
    ended = max((run.ended for run in pods if run.ended is not None), default=None) if is_over else None
    nodes = sorted({run.node for run in pods if run.node})
    return (
        job, first.user, first.group, first.queue, first.type, len({run.pod for run in pods}), ",".join(nodes), _outcome(pods),
        submitted, placed, ended,
        max(placed - submitted, 0.0) if placed is not None and submitted is not None else None,
        _ran_s(pods) if placed is not None and ended is not None else None,
        sum(run.outcome == "Evicted" for run in pods),
    )  # fmt: skip


def _ran_s(pods: Sequence[Run]) -> float:
    """How long any of them had a node: attempts together, without the time between them."""
    found, until = 0.0, -math.inf
    for begin, end in sorted((run.placed, run.ended) for run in pods if run.placed is not None and run.ended is not None):
        found += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return found


def _outcome(pods: Sequence[Run]) -> str:
    """Of the last attempt of each pod."""
    last = {run.pod: run.outcome for run in pods}
    for outcome in ("Running", "Waiting", "Failed", "Unknown", "Gone", "Evicted"):
        if outcome in last.values():
            return outcome
    return "Succeeded"


WAIT_COLUMNS = ("count", "mean_s", "p50_s", "p90_s", "p99_s", "max_s", "still_waiting")


def waits_table(found: Iterable[Run], by: str) -> Table:
    """How long pods waited, by user, group, queue, namespace, type, node or job; by `reason`: how long for what."""
    waited: dict[str, list[float]] = {}
    waiting: dict[str, int] = {}
    for run in found:
        if by == "reason":
            for reason, seconds in run.reasons_s.items():
                waited.setdefault(reason, []).append(seconds)
                waiting[reason] = waiting.get(reason, 0) + (run.outcome == "Waiting")
            continue
        key = str(getattr(run, by))
        waiting[key] = waiting.get(key, 0) + (run.outcome == "Waiting")
        waited.setdefault(key, []).extend([run.wait_s] if run.wait_s is not None else [])
    rows = [(key, *_figures(np.asarray(values)), waiting[key]) for key, values in sorted(waited.items())]
    return Table((by, *WAIT_COLUMNS), rows)


def _figures(values: Any) -> tuple[Value, ...]:
    if not len(values):
        return 0, None, None, None, None, None
    points = np.quantile(values, (0.5, 0.9, 0.99), method="inverted_cdf").tolist()
    return len(values), float(values.mean()), *points, float(values.max())


USE_COLUMNS = ("resource", "unit", "runs", "requested", "used_mean", "used_max", "used_share", "resource_hours")
_UNITS: Mapping[str, tuple[str, float]] = {"milli": ("cores", 1000.0), "bytes": ("GiB", float(1 << 30)), "bps": ("bit/s", 1.0)}
"""What amounts are told in, by how the engine counts them, and how many of its units that is."""


def use_table(found: Iterable[Run], by: str) -> Table:
    """What was asked for and what was used of it, per run on average, and for how many hours it was asked for: core-hours,
    GiB-hours. Runs that nobody measured count only for what they asked for."""
    rows: dict[tuple[str, str, str], list[tuple[float, float | None, float | None, float]]] = {}
    for run in found:
        if run.outcome == "Waiting" or not run.node:
            continue
        hours = (run.run_s or 0.0) / 3600
        for resource, asked in run.requests.items():
            unit, per = _UNITS.get(unit_of(resource), ("", 1.0))
            mean, most = (
                None if one is None else one / per for one in (run.used_mean.get(resource), run.used_max.get(resource))
            )
            rows.setdefault((str(getattr(run, by)), resource, unit), []).append((asked / per, mean, most, asked / per * hours))
    return Table((by, *USE_COLUMNS), [(*key, *_use(values)) for key, values in sorted(rows.items())])


def _use(values: Sequence[tuple[float, float | None, float | None, float]]) -> tuple[Value, ...]:
    measured = [(asked, mean, most) for asked, mean, most, _ in values if mean is not None and most is not None]
    asked = float(np.mean([one[0] for one in values]))
    hours = float(np.sum([one[3] for one in values]))
    if not measured:
        return len(values), asked, None, None, None, hours
    figures = np.asarray(measured)
    share = float(figures[:, 1].sum() / figures[:, 0].sum()) if figures[:, 0].sum() else None
    return len(values), asked, float(figures[:, 1].mean()), float(figures[:, 2].max()), share, hours


DECISION_COLUMNS = ("at", "decision", "unit", "pods", "nodes", "reason", "message", "factors")


def decisions(log: Log, wanted: Wanted = ALL, note: Note | None = None) -> Iterator[tuple[Value, ...]]:
    """Rows of DECISION_COLUMNS, in order."""
    for record in _read(log, wanted, note=note):
        if isinstance(record, Step):
            for decision in record.decisions:
                if not wanted.job or _is_named(wanted.job, decision.unit):
                    yield (record.now, *_decision_row(decision), _amounts((record.factors or {}).get(decision.unit, {})))


def _decision_row(decision: AnyDecision) -> tuple[Value, ...]:
    kind, unit = type(decision).__name__, decision.unit
    match decision:
        case Place(pods=pods) | Hold(pods=pods):
            nodes = ",".join(sorted({pod.node for pod in pods}))
            message = f"until {decision.until:.15g}" if isinstance(decision, Hold) else ""
            return kind, unit, len(pods), nodes, "", message
        case Park(verdict=verdict, pods=uids):
            return kind, unit, len(uids), "", str(verdict.reason), verdict.message
        case Evict(victims=victims, node=node, reason=reason):
            names = ",".join(f"{victim.namespace}/{victim.name}" for victim in victims)
            return kind, unit, len(victims), node, str(reason), f"evicts {names}"
        case Release(reason=reason, message=message, pods=uids):
            return kind, unit, len(uids), "", str(reason), message


ACTION_COLUMNS = ("at", "user", "verb", "resource", "namespace", "name", "subresource", "code", "note")


def actions(log: Log, wanted: Wanted = ALL, note: Note | None = None) -> Iterator[tuple[Value, ...]]:
    """Rows of ACTION_COLUMNS, segment by segment, and in order in each."""
    for one in _read(log, wanted, note=note):
        if isinstance(one, Action):
            is_wanted = not wanted.user or wanted.user == one.user
            is_wanted &= not wanted.namespace or wanted.namespace == one.namespace
            if is_wanted and (not wanted.job or _is_named(wanted.job, one.name)):
                yield (
                    one.at, one.user, one.verb, one.resource, one.namespace, one.name, one.subresource, one.code, one.note,
                )  # fmt: skip


SEGMENT_COLUMNS = ("segment", "began", "holder", "epoch", "term", "sequence", "bytes", "steps", "actions", "state")


def segments_table(log: Log) -> Table:
    """One row per segment, whole or not: reads all of the log."""
    rows: list[tuple[Value, ...]] = []
    sizes = {one.name: one.size_bytes for one in log.store.segments()}
    for name in log.names:
        steps = acted = 0
        try:
            with log.open(name) as segment:
                header = segment.header
                for record in segment.records() if segment.is_usable else ():
                    steps += isinstance(record, Step)
                    acted += isinstance(record, Action)
                state = "; ".join(finding.text for finding in segment.findings) or "whole"
                if not segment.is_usable:
                    state = segment.nothing_in_it
        except SegmentDamaged as error:
            term = ("", name.epoch, name.term, name.sequence)
            rows.append((str(name), name.instant, *term, sizes.get(name, 0), steps, acted, str(error)))
            continue
        term = (header.holder, name.epoch, name.term, name.sequence)
        rows.append((str(name), header.began or name.instant, *term, sizes.get(name, 0), steps, acted, state))
    return Table(SEGMENT_COLUMNS, rows)


BY = ("user", "group", "queue", "namespace", "type", "node", "job", "reason")
assert {*BY} - {"reason"} <= {*Run.__struct_fields__}
