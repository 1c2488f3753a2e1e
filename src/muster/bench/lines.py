"""What a scheduling benchmark reports: one line per scenario, place and size, as JSON or as a table row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

Say = Callable[[str], None]
On = Literal["engine", "embedded", "kubernetes"]


class SchedulingLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line, as `--json` prints it. `decision_*` are microseconds per decision, of the scheduler's own thinking."""

    scenario: str
    on: On
    nodes: int
    pods: int
    pods_per_s: float
    decision_p50_us: float | None = None
    decision_p99_us: float | None = None
    rss_mb: float | None = None
    """Resident memory of the process that schedules. On `embedded` it holds the store as well."""
    peer: str | None = None
    peer_pods_per_s: float | None = None
    peer_rss_mb: float | None = None
    ratio: float | None = None
    """Median over the pairs of our rate to the peer's in the same pair."""
    pairs: list[tuple[float, float]] = []
    """Our rate and the peer's, pair by pair."""
    events_per_pod: float | None = None
    event_lag_s: float | None = None
    """From the last binding until the last event was stored; in the rate in proportion."""
    peer_events_per_pod: float | None = None
    peer_event_lag_s: float | None = None
    drain_s: float | None = None
    """From the start of the scheduler's process to its last binding and event: what comes before the first binding counts."""
    peer_drain_s: float | None = None
    unbound: int = 0
    """Measured pods that were left without a node. 0 in a good run."""
    seed: int = 0
    bound_by: str = ""
    note: str = ""


class Outcome(msgspec.Struct, kw_only=True):
    """One scheduler's run over one workload."""

    pods_per_s: float
    rss_mb: float
    unbound: int = 0
    events: int = 0
    event_lag_s: float = 0.0
    drain_s: float = 0.0
    decision_p50_us: float | None = None
    decision_p99_us: float | None = None
    bound_by: str = ""


class DecisionTimes(msgspec.Struct, kw_only=True):
    """What a scheduler process writes down about itself when it ends."""

    decisions: int = 0
    p50_us: float | None = None
    p99_us: float | None = None


def percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


HEADER = (
    f"{'scenario':14}{'on':11}{'nodes':>7}{'pods':>7}{'pods/s':>10}{'p50 us':>9}{'p99 us':>9}"
    f"{'RSS MB':>8}{'peer/s':>9}{'ratio':>7}  bound by"
)


def row(line: SchedulingLine) -> str:
    def cell(value: float | None, width: int, digits: int = 0) -> str:
        return f"{value:>{width},.{digits}f}" if value is not None else f"{'-':>{width}}"

    note = "; ".join(part for part in (line.bound_by, line.note, f"{line.unbound} unbound" if line.unbound else "") if part)
    return (
        f"{line.scenario:14}{line.on:11}{line.nodes:>7}{line.pods:>7}{cell(line.pods_per_s, 10)}"
        f"{cell(line.decision_p50_us, 9, 1)}{cell(line.decision_p99_us, 9, 1)}{cell(line.rss_mb, 8)}"
        f"{cell(line.peer_pods_per_s, 9)}{cell(line.ratio, 7, 2)}  {note}"
    )
