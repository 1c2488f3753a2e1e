"""Limits on what users, groups and queues may have at once, as forecasts play them: what is left, and what each unit takes.

A purse is one limit of one node of the quota tree: so much of a resource, or so many jobs. Work whose purse is empty does not
start, and keeps nobody else from starting. Made anew for each play, from what runs then. Pure.
"""

from __future__ import annotations

from muster.engine.columns import Array
from muster.policy.book import Book
from muster.policy.forward import Dues
from muster.quota.limits import NodeKey

_JOBS = -1
"""In place of the row of a resource: jobs are counted."""


class Purses:
    def __init__(self, book: Book) -> None:
        self._book = book
        self.left: list[float] = []
        """What may still be taken from each."""
        self._limits: list[float] = []
        self._numbers: dict[tuple[NodeKey, str], int] = {}
        self._accounts: dict[tuple[str, str, str], tuple[tuple[int, int], ...]] = {}
        """By user, group and queue: the purses, and the row of the resource that each is of."""

    def dues(self, row: int, amounts: Array) -> Dues:
        """What the unit takes of each purse, if it has `amounts`; nothing where nothing limits it."""
        book = self._book
        if not book.limits.is_any:
            return ()
        table = book.table
        whose = table.works[row].user, table.group_name(row), table.queue_name(row)
        account = self._accounts.get(whose)
        if account is None:
            account = self._accounts[whose] = self._account(*whose)
        return tuple(
            (number, 1.0 if at == _JOBS else float(amounts[at]))
            for number, at in account
            if at == _JOBS or (at < len(amounts) and amounts[at] > 0)
        )

    def could_ever(self, dues: Dues) -> bool:
        """Whether it would start if nothing else ran."""
        return all(amount <= self._limits[number] for number, amount in dues)

    def _account(self, user: str, group: str, queue: str) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        for spec, use in self._book.limits.quota.over_work(user, queue, group=group):
            for resource, limit in sorted(spec.limits.concurrent.items()):
                at = self._book.state.table.rows.get(resource)
                if at is not None:
                    found.append((self._purse((spec.key, resource), limit, use.amounts.get(resource, 0)), at))
            if spec.limits.jobs_running is not None:
                found.append((self._purse((spec.key, ""), spec.limits.jobs_running, use.jobs), _JOBS))
        return tuple(found)

    def _purse(self, key: tuple[NodeKey, str], limit: int, used: int) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.left)
            self.left.append(float(limit - used))
            self._limits.append(float(limit))
        return number
