"""How many bytes are held for clients: of bodies that arrive, of answers on their way, of events that are not read; in all and
for each user.

Concurrency: plain counters on the event loop; what was added is taken away exactly once, by leaving the `with` block.
"""

from __future__ import annotations


class ByteBudget:
    """Counts; whoever adds asks `excess` first, and decides what to do about it."""

    def __init__(self, total_max: int, per_user_max: int) -> None:
        self._total_max = total_max
        self._per_user_max = per_user_max
        self.total = 0
        self._by_user: dict[str, int] = {}

    def of(self, user: str) -> int:
        return self._by_user.get(user, 0)

    def excess(self, user: str, size: int) -> str:
        """Which bound `size` more is beyond, "total" or "user"; "" when it fits.

        The first of all always fits, and so does the first of a user within the total: what is larger than a bound is alone.
        """
        if self.total and self.total + size > self._total_max:
            return "total"
        mine = self._by_user.get(user, 0)
        return "user" if mine and mine + size > self._per_user_max else ""

    def add(self, user: str, size: int) -> None:
        self.total += size
        self._by_user[user] = self._by_user.get(user, 0) + size

    def remove(self, user: str, size: int) -> None:
        self.total -= size
        left = self._by_user[user] - size
        if left:
            self._by_user[user] = left
        else:
            del self._by_user[user]


class Held:
    """What one request holds of a budget, given back at the end of the `with` block."""

    __slots__ = ("_budget", "_user", "size")

    def __init__(self, budget: ByteBudget, user: str) -> None:
        self._budget = budget
        self._user = user
        self.size = 0

    def grow(self, size: int) -> None:
        if size:
            self._budget.add(self._user, size)
            self.size += size

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        size, self.size = self.size, 0
        if size:
            self._budget.remove(self._user, size)
