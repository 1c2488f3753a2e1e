"""What was used, by whom, from when to when: runs added up by day, user, group, queue and resource, exactly.

A run contributes what it asked for times how long it ran, clipped to each day (UTC). Amounts are whole numbers of
resource-milliseconds (thousandths of a core, bytes, devices, bits per second, each times milliseconds), so that sums are exact
in any order, and over any period: every period is made of days (`quota.periods`). Where it was measured what a run moved over
the network, that counts instead of what it had asked for; it is spread evenly over the run.

Pure, one caller at a time. Invariants: a run counts once, whatever is told how often (`Run.key`); the sums over all users, over
all groups and over all queues are equal; a ledger made anew from the same runs, in any order, is equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from muster.quota.limits import NodeKey, NodeKind
from muster.quota.periods import DAY_MS, day_of

BITS_MS_PER_BYTE: Final = 8_000
"""A byte moved, in the unit of bandwidth: bits per second times milliseconds."""
RUN_MS_MAX: Final = 100 * 366 * DAY_MS
"""A longer run is cut to this: times that make no sense must not cost a million days."""

Totals = dict[str, int]
"""Resource-milliseconds by resource."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one pod: who ran, on how much, from when to when."""

    key: str
    """One for each attempt: the uid of the pod."""
    user: str = ""
    group: str = ""
    queue: str = ""
    work: str = ""
    """`Job/namespace/name`, or the pod."""
    amounts: Mapping[str, int] = {}
    start_ms: int
    end_ms: int | None = None
    """None while it runs."""
    moved: Mapping[str, int] = {}
    """Bytes measured, by direction (`bandwidth-egress`, `bandwidth-ingress`), instead of what was asked for."""

    def until(self, now_ms: int) -> Run:
        """The run as if it ended now, unless it has ended before."""
        end = now_ms if self.end_ms is None else min(self.end_ms, now_ms)
        return msgspec.structs.replace(self, end_ms=max(end, self.start_ms))

    def within(self, since_ms: int, until_ms: int) -> Totals:
        """What the ended run used in [since, until)."""
        assert self.end_ms is not None, "a run that goes on has no sums yet: see `until`"
        start, end = self.start_ms, min(self.end_ms, self.start_ms + RUN_MS_MAX)
        first, last = min(max(start, since_ms), end), min(max(start, until_ms), end)
        found = {
            name: amount * (last - first)
            for name, amount in self.amounts.items()
            if amount > 0 and last > first and name not in self.moved
        }
        for name, total_bytes in self.moved.items():
            part = _share(total_bytes, start, end, last) - _share(total_bytes, start, end, first)
            # A run of no length moved what it moved at its start.
            if start == end and since_ms <= start < until_ms:
                part = total_bytes
            if part > 0:
                found[name] = part * BITS_MS_PER_BYTE
        return found

    def days(self) -> Iterator[tuple[int, Totals]]:
        """What it used on each day; days on which it used nothing are left out."""
        assert self.end_ms is not None
        last = min(self.end_ms, self.start_ms + RUN_MS_MAX)
        for day in range(day_of(self.start_ms), day_of(max(last - 1, self.start_ms)) + 1):
            found = self.within(day * DAY_MS, (day + 1) * DAY_MS)
            if found:
                yield day, found


def _share(total: int, start: int, end: int, at: int) -> int:
    """Of `total`, what belongs before `at`: rounded down, so that the parts of any division add up to the whole."""
    return total * (at - start) // (end - start) if end > start else 0


class Row(NamedTuple):
    """Whose and when a sum is."""

    day: int
    user: str
    group: str
    queue: str


def add_into(totals: Totals, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        totals[name] = totals.get(name, 0) + amount


_FIELD: Final[Mapping[NodeKind, int]] = {"User": 1, "UserGroup": 2, "Queue": 3}


class Ledger:
    """See the module."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._rows: dict[Row, Totals] = {}
        self._days: dict[tuple[NodeKind, str], dict[int, Totals]] = {}
        """By whom and day: what `_rows` has, ready to add up."""
        self._ended: set[str] = set()
        self._open: dict[str, Run] = {}
        self._open_of: dict[tuple[NodeKind, str], dict[str, Run]] = {}
        for run in runs:
            self.add(run)

    # -- entries -------------------------------------------------------------------------------------------------------------

    def add(self, run: Run) -> bool:
        """Take in a run that has ended; False when it was there already. One that was open is not open any more."""
        assert run.end_ms is not None, f"run {run.key} has not ended"
        self.close(run.key)
        if run.key in self._ended:
            return False
        self._ended.add(run.key)
        for day, totals in run.days():
            self.add_sum(Row(day, run.user, run.group, run.queue), totals)
        return True

    def add_sum(self, row: Row, totals: Mapping[str, int]) -> None:
        """Take in what runs used whose own entries are not kept any more. Not idempotent: the caller keeps entries apart."""
        add_into(self._rows.setdefault(row, {}), totals)
        for kind, field in _FIELD.items():
            add_into(self._days.setdefault((kind, str(row[field])), {}).setdefault(row.day, {}), totals)

    def forget(self, keys: Iterable[str]) -> None:
        """These keys will not be told again; their use stays."""
        self._ended.difference_update(keys)

    def has(self, key: str) -> bool:
        return key in self._ended

    def open(self, run: Run) -> None:
        """A run goes on; it counts up to the moment that is asked about. Nothing for one that has ended."""
        if run.key in self._ended or self._open.get(run.key) == run:
            return
        self.close(run.key)
        self._open[run.key] = run
        for node in nodes_of(run.user, run.group, run.queue):
            self._open_of.setdefault(node, {})[run.key] = run

    def close(self, key: str) -> None:
        """The run is not open any more, and `add` tells what it used, or it used nothing."""
        run = self._open.pop(key, None)
        if run is not None:
            for node in nodes_of(run.user, run.group, run.queue):
                runs = self._open_of[node]
                del runs[key]
                if not runs:
                    del self._open_of[node]

    # -- questions -----------------------------------------------------------------------------------------------------------

    def used(self, kind: NodeKind, names: Iterable[str], since_ms: int, until_ms: int, now_ms: int) -> Totals:
        """What these users (groups, queues) used in whole days of [since, until), up to now."""
        first, last = day_of(since_ms), day_of(until_ms - 1)
        found: Totals = {}
        for name in names:
            days = self._days.get((kind, name), {})
            some = days.keys() if last - first > len(days) else range(first, last + 1)
            for day in some:
                if first <= day <= last and day in days:
                    add_into(found, days[day])
            for run in self._open_of.get((kind, name), {}).values():
                add_into(found, run.until(now_ms).within(since_ms, until_ms))
        return found

    def rates(self, kind: NodeKind, names: Iterable[str]) -> Totals:
        """How fast use grows now: amounts of what runs (what is measured counts as it comes in)."""
        found: Totals = {}
        for name in names:
            for run in self._open_of.get((kind, name), {}).values():
                if run.end_ms is None:
                    add_into(found, {key: amount for key, amount in run.amounts.items() if key not in run.moved})
        return found

    def going(self, key: str) -> Run | None:
        """The run that is open under that key."""
        return self._open.get(key)

    def open_runs(self) -> list[Run]:
        return list(self._open.values())

    def running(self, kind: NodeKind, name: str) -> list[Run]:
        return list(self._open_of.get((kind, name), {}).values())

    def known(self, kind: NodeKind) -> list[str]:
        """Everyone of the kind that has ever used something; "" stands for work of nobody."""
        names = {name for one, name in self._days if one == kind} | {name for one, name in self._open_of if one == kind}
        return sorted(names)

    def rows(self, now_ms: int | None = None) -> dict[Row, Totals]:
        """Everything, by day and by whom; with `now_ms`, what runs counts too."""
        found = {row: dict(totals) for row, totals in self._rows.items()}
        if now_ms is not None:
            for run in self._open.values():
                for day, totals in run.until(now_ms).days():
                    add_into(found.setdefault(Row(day, run.user, run.group, run.queue), {}), totals)
        return dict(sorted(found.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._rows == other._rows

    __hash__ = None  # type: ignore[assignment]


def nodes_of(user: str, group: str, queue: str) -> tuple[NodeKey, ...]:
    """Whose sums a run counts in; the nodes above them add up what is below."""
    return ("User", user), ("UserGroup", group), ("Queue", queue)
