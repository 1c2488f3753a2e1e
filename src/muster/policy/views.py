"""What policies see beside the table: the size of the cluster, what is free, shares that fade, from when on work is late.

One `View` per policy, worked out when it is first asked for at a moment, and only as much of it as the policy's factors read.
Fed by nothing: it reads the engine's state and the books. Pure, single-threaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from muster.engine.columns import Array, nonzero
from muster.objects.kinds.muster_queues import SchedulingPolicySpec
from muster.policy.book import Book
from muster.policy.factors import OF_FREE, tail_percent, takes_s
from muster.policy.first_come import FirstCome
from muster.policy.table import Lateness, View

_NOT_READ: Final[Array] = np.zeros(0, np.int64)
SPECS_MAX: Final = 256
"""Of so many policies it is remembered what they read."""


class Views:
    def __init__(self, book: Book, first_come: FirstCome) -> None:
        self._book, self._first_come, self._state = book, first_come, book.state
        self._total: Array = np.zeros(0, np.int64)
        self.total_version = -1
        """Of the nodes that `_total` was added up from."""
        self._views: dict[int, View] = {}
        """By policy, for the moment."""
        self._views_of: tuple[object, ...] = ()
        self._late: dict[int, Mapping[str, Lateness]] = {}
        self._late_of: tuple[float, int] = (-1.0, -1)
        """By policy, and for which moment: whoever starts takes as long as before, so only the time and events change it."""
        self._sources: dict[int, tuple[SchedulingPolicySpec, frozenset[str]]] = {}
        """By policy: what its factors read."""

    def of(self, spec: SchedulingPolicySpec) -> View:
        state, book = self._state, self._book
        made_of = (state.now, book.version, book.epoch, book.tree.version, self.total_version)
        if made_of != self._views_of:
            self._views, self._views_of = {}, made_of
        found = self._views.get(id(spec))
        if found is None:
            sources = self._sources_of(spec)
            found = self._views[id(spec)] = View(
                resources=state.table.rows,
                total=self._total,
                free=state.nodes.free.sum(axis=1) if sources & OF_FREE else _NOT_READ,
                shares=book.people.shares(spec, state.now) if "FairShare" in sources else {},
                queue_level=book.tree.layout(book.table.queues).queue_level,
                lateness=self._lateness(spec) if "Tail" in sources else {},
            )
        return found

    def _lateness(self, spec: SchedulingPolicySpec) -> Mapping[str, Lateness]:
        """By the key of each factor `Tail`."""
        table, now = self._book.table, self._state.now
        if self._late_of != (now, self._book.epoch):
            self._late, self._late_of = {}, (now, self._book.epoch)
        found = self._late.get(id(spec))
        if found is None:
            there = takes_s(table, nonzero(table.is_waiting | table.is_running), now)
            keys = sorted({factor.key for factor in spec.factors if factor.source == "Tail"})
            found = {key: self._first_come.lateness(tail_percent(key), there, now) for key in keys}
            self._late[id(spec)] = found
        return found

    def _sources_of(self, spec: SchedulingPolicySpec) -> frozenset[str]:
        kept = self._sources.get(id(spec))
        if kept is None or kept[0] is not spec:
            if len(self._sources) >= SPECS_MAX:
                self._sources.clear()
            kept = self._sources[id(spec)] = (spec, frozenset(factor.source for factor in spec.factors))
        return kept[1]

    def add_up(self) -> None:
        """Nodes may have come or gone: the cluster's totals follow, and with them all shares of it in the table."""
        nodes = self._state.nodes
        if self.total_version != nodes.version or len(self._total) != len(nodes.capacity):
            self.total_version = nodes.version
            total: Array = nodes.capacity.sum(axis=1)
            if not np.array_equal(total, self._total):
                self._total = total
                self._book.table.use_total(total)

    def totals(self) -> dict[str, float]:
        """What the cluster has, by the name of the resource."""
        self.add_up()
        names = self._state.table.names
        return {name: float(self._total[row]) for row, name in enumerate(names) if row < len(self._total)}
