"""The pages of the ledger (UsageRecords): what counts, when pages are folded into sums, and what may be deleted. Pure.

A page is written once and never changed, so that a crash at any moment leaves it written or not written. Folding writes one
new page with the sums of many and the names of those many (`replaces`); from that moment they do not count, and are deleted at
leisure, the oldest generation first. So each step is a single write, and use is neither lost nor counted twice whatever happens
in between.

Pages of runs are folded when they are a day old: until then fading use is exact, and a second word about one of their runs is
recognised. Sums of days that are long past become sums of months.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from muster.controllers.ledger_runs import run_of
from muster.objects.kinds.muster_usage import (
    REPLACED_MAX,
    ROWS_MAX,
    RUNS_MAX,
    RunRecord,
    UsageRecord,
    UsageRecordSpec,
    UsageSum,
)
from muster.objects.labels import Kubernetes
from muster.objects.status import Raw
from muster.quota.ledger import Ledger, Row, Totals, add_into
from muster.quota.periods import DAY_MS, day_of

FOLD_AFTER_MS: Final = DAY_MS
FOLD_PAGES_MIN: Final = 32
"""So many pages that can be folded before it is done."""
DAYS_KEPT: Final = 400
"""Older days are kept as months."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def day_text(day: int) -> str:
    return (_EPOCH + timedelta(days=day)).date().isoformat()


def day_number(text: str) -> int:
    """ValueError when it is no day."""
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH).days


class Pages:
    """All UsageRecords that are there."""

    def __init__(self) -> None:
        self.specs: dict[str, UsageRecordSpec] = {}
        self.problems: dict[str, str] = {}

    def put(self, name: str, page: UsageRecord) -> None:
        self.specs[name] = page.spec

    def drop(self, name: str) -> None:
        self.specs.pop(name, None)

    @property
    def replaced(self) -> set[str]:
        return {name for spec in self.specs.values() for name in spec.replaces} & self.specs.keys()

    @property
    def disposable(self) -> set[str]:
        """Those of `replaced` that may be deleted now: what they replace themselves is gone, and can't count again."""
        return {name for name in self.replaced if self.specs.keys().isdisjoint(self.specs[name].replaces)}

    def counting(self) -> dict[str, UsageRecordSpec]:
        """The pages that count, by name."""
        gone = self.replaced
        return {name: spec for name, spec in sorted(self.specs.items()) if name not in gone}

    def ledger(self) -> Ledger:
        """Everything that counts, from the beginning."""
        ledger = Ledger()
        for name, spec in self.counting().items():
            for record in spec.runs:
                ledger.add(run_of(record))
            for row, totals in self.sums_of(name, spec):
                ledger.add_sum(row, totals)
        return ledger

    def sums_of(self, name: str, spec: UsageRecordSpec) -> Iterable[tuple[Row, Totals]]:
        for index, one in enumerate(spec.sums):
            try:
                day = day_number(one.day)
                totals = {resource: int(amount) for resource, amount in one.amounts.items()}
            except ValueError as error:
                # Nobody but the ledger writes these; whatever it is, the rest still counts.
                self.problems[name] = f"spec.sums[{index}] of UsageRecord {name}: {error}"
                continue
            yield Row(day, one.user, one.group, one.queue), totals

    def fold(self, now_ms: int, unsettled: set[str], pages_min: int = FOLD_PAGES_MIN) -> Raw | None:
        """A page that takes the place of old ones, when there are enough of them. `unsettled`: runs that may be told again."""
        counting = self.counting()
        runs = [
            name
            for name, spec in counting.items()
            if spec.runs
            and all(one.end_ms + FOLD_AFTER_MS <= now_ms for one in spec.runs)
            and not any(one.uid in unsettled for one in spec.runs)
        ]
        sums = sorted((len(spec.sums), name) for name, spec in counting.items() if spec.sums and not spec.runs)
        # Small pages of sums go along, so that their number stays small too.
        chosen = [*runs[: REPLACED_MAX // 2], *(name for rows, name in sums if rows < ROWS_MAX // 2)][:REPLACED_MAX]
        if len(chosen) < pages_min:
            return None
        while chosen := _together(chosen, counting):
            rows = self._folded([counting[name] for name in chosen], now_ms)
            if len(rows) <= ROWS_MAX:
                return sums_page(rows, chosen)
            chosen = chosen[: len(chosen) // 2]
        return None

    def _folded(self, specs: Sequence[UsageRecordSpec], now_ms: int) -> dict[Row, Totals]:
        pages = Pages()
        pages.specs = {str(number): msgspec.structs.replace(spec, replaces=[]) for number, spec in enumerate(specs)}
        found: dict[Row, Totals] = {}
        oldest = day_of(now_ms) - DAYS_KEPT
        for row, totals in pages.ledger().rows().items():
            kept = row if row.day >= oldest else row._replace(day=_first_of_month(row.day))
            add_into(found.setdefault(kept, {}), totals)
        return found


def _together(chosen: Sequence[str], counting: Mapping[str, UsageRecordSpec]) -> list[str]:
    """Without pages of which a run is noted on another page too (by two leaders): folded apart, it counts twice."""
    pages: dict[str, set[str]] = {}
    for name, spec in counting.items():
        for one in spec.runs:
            pages.setdefault(one.uid, set()).add(name)
    left = set(chosen)
    shared = [names for names in pages.values() if len(names) > 1]
    while apart := [names for names in shared if names & left and not names <= left]:
        left.difference_update(*apart)
    return [name for name in chosen if name in left]


def _first_of_month(day: int) -> int:
    return ((_EPOCH + timedelta(days=day)).replace(day=1) - _EPOCH).days


def runs_page(records: Sequence[RunRecord]) -> Raw:
    """A new page of runs, named after the first: a second try finds the first one's work."""
    assert 0 < len(records) <= RUNS_MAX
    return _page(f"runs-{records[0].uid}", UsageRecordSpec(runs=list(records)))


def sums_page(rows: Mapping[Row, Totals], replaces: Sequence[str]) -> Raw:
    names = sorted(replaces)
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:24]
    sums = [
        UsageSum(
            day=day_text(row.day),
            user=row.user,
            group=row.group,
            queue=row.queue,
            amounts={name: str(amount) for name, amount in sorted(totals.items())},
        )
        for row, totals in sorted(rows.items())
    ]
    return _page(f"sums-{digest}", UsageRecordSpec(sums=sums, replaces=names))


def _page(name: str, spec: UsageRecordSpec) -> Raw:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "UsageRecord",
        "metadata": {"name": name, "labels": {Kubernetes.MANAGED_BY: "muster"}},
        "spec": msgspec.to_builtins(spec),
    }
