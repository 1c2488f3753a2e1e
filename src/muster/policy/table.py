"""All units that the order knows, side by side in columns: what waits and what runs, one row each.

A row stays a unit's own from `put` to `drop`; places of units that went are used again. `rows` arguments are arrays of such
places. Columns are longer than the table is full: what is in a free place means nothing.

Names of queues, users and groups are numbers in the columns; `Names` has both directions, and a number is used again once
nobody has it any more. Numbers from attributes and labels become columns when a policy first asks for them (`number`).

Pure, single-threaded. Only `PolicyOrder` changes a table; policies read it. Not known is NaN in a column of floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from muster.engine.columns import Array
from muster.engine.work import NOTHING, Work

NAN: Final = math.nan
NOBODY: Final = -1
NOT_PINNED: Final = 2**31 - 1
NUMBERS_MAX: Final = 64
"""So many (source, key) columns are kept; further ones are worked out each time they are asked for."""

_FLOATS = (
    "submitted",
    "started",
    "estimate_s",
    "predicted_s",
    "predicted_high_s",
    "level",
    "user_level",
    "group_level",
    "deadline",
    "attained_s",
    "preemptions",
    "checkpoint_s",
    "dominant",
    "used_dominant",
    "score",
)
_INTEGERS = ("pin", "queue", "user", "group", "kind", "pods", "place", "refusal")
_FLAGS = ("is_waiting", "is_running", "is_preemptible", "is_held", "is_blocked")
_COLUMNS: Final = frozenset({*_FLOATS, *_INTEGERS, *_FLAGS, "request", "used"})
_LISTS: Final = frozenset({"ids", "works", "labels", "predicted_use"})
_SIZE_FIRST = 64
_LAST = 2**40


class Names:
    """Numbers for names, small and used again: a name has its number until it was given back as often as it was taken."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """By number; "" where it is free."""
        self._numbers: dict[str, int] = {}
        self._counts: list[int] = []
        self._free: list[int] = []
        self.version = 0
        """Grows whenever a number gets another meaning."""

    def __len__(self) -> int:
        """One more than the largest number in use."""
        return len(self.names)

    def find(self, name: str) -> int:
        """Its number; NOBODY when nobody has it."""
        return self._numbers.get(name, NOBODY)

    def take(self, name: str) -> int:
        """Its number, with one more that has it. "" is NOBODY."""
        if not name:
            return NOBODY
        number = self._numbers.get(name)
        if number is None:
            if self._free:
                number = self._free.pop()
                self.names[number] = name
            else:
                number = len(self.names)
                self.names.append(name)
                self._counts.append(0)
            self._numbers[name] = number
            self.version += 1
        self._counts[number] += 1
        return number

    def give(self, number: int) -> None:
        """One less has it."""
        if number < 0:
            return
        self._counts[number] -= 1
        if not self._counts[number]:
            del self._numbers[self.names[number]]
            self.names[number] = ""
            self._free.append(number)
            self.version += 1


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a unit's row is filled with, beside its work."""

    request: Array
    """What its pods ask for, together, by resource row."""
    pods: int = 1
    kind: int = 0
    """Units of one kind find room at the same places, and count against the same limits."""
    queue: str = ""
    user: str = ""
    group: str = ""
    user_level: float = 0.0
    group_level: float = 0.0
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Of its first pod."""


class Table:
    """See the module. Contract: `submitted` and `deadline` are instants; `started` is NaN while nothing of the unit runs;
    `attained_s` is service kept from earlier attempts, without the one that runs; `request` is (resource rows, units);
    `dominant` is the largest share of the cluster that it asks for in any resource, `used_dominant` that of what it holds.
    What the order finds out: `score` and `place` (0 is first) as last ranked, `refusal` (0: none) and `is_blocked`."""

    submitted: Array
    started: Array
    estimate_s: Array
    predicted_s: Array
    predicted_high_s: Array
    level: Array
    user_level: Array
    group_level: Array
    deadline: Array
    attained_s: Array
    preemptions: Array
    checkpoint_s: Array
    dominant: Array
    used_dominant: Array
    pin: Array
    queue: Array
    user: Array
    group: Array
    kind: Array
    pods: Array
    place: Array
    refusal: Array
    score: Array
    is_waiting: Array
    is_running: Array
    is_preemptible: Array
    is_held: Array
    is_blocked: Array

    def __init__(self, resources: int = 1) -> None:
        for name in _FLOATS:
            setattr(self, name, np.full(_SIZE_FIRST, NAN))
        for name in _INTEGERS:
            setattr(self, name, np.full(_SIZE_FIRST, NOBODY, np.int64))
        for name in _FLAGS:
            setattr(self, name, np.zeros(_SIZE_FIRST, np.bool_))
        self.request: Array = np.zeros((resources, _SIZE_FIRST), np.int64)
        self.used: Array = np.zeros((resources, _SIZE_FIRST), np.int64)
        """What its placed pods hold, together."""
        self.ids: list[str] = [""] * _SIZE_FIRST
        self.works: list[Work] = [NOTHING] * _SIZE_FIRST
        self.labels: list[Mapping[str, str]] = [{}] * _SIZE_FIRST
        self.predicted_use: list[Mapping[str, float]] = [{}] * _SIZE_FIRST
        self.row_of: dict[str, int] = {}
        self.queues, self.users, self.groups = Names(), Names(), Names()
        self.pinned = 0
        """How many rows have a pin."""
        self._divisor: Array = np.full(resources, math.inf)
        """What the cluster has of each resource; of what it has nothing, nobody has a share."""
        self._free: list[int] = list(range(_SIZE_FIRST - 1, -1, -1))
        self._numbers: dict[tuple[str, str], Array] = {}

    def __len__(self) -> int:
        return len(self.row_of)

    @property
    def size(self) -> int:
        """The length of the columns."""
        return len(self.ids)

    # -- changing ------------------------------------------------------------------------------------------------------------

    def put(self, unit_id: str, work: Work, filling: Row) -> int:
        """The unit's row with this in it; a new one if it has none. What runs of it stays as it is."""
        row = self.row_of.get(unit_id)
        if row is None:
            if not self._free:
                self._double()
            row = self.row_of[unit_id] = self._free.pop()
            self.ids[row] = unit_id
            self.started[row] = NAN
            self.predicted_s[row] = self.predicted_high_s[row] = NAN
            self.used_dominant[row] = 0.0
            self.used[:, row] = 0
            self.is_running[row] = self.is_waiting[row] = self.is_blocked[row] = False
            self.refusal[row], self.place[row], self.score[row] = 0, _LAST, NAN
            self.predicted_use[row] = {}
        else:
            self._give_back(row)
        self.works[row], self.labels[row] = work, filling.labels
        self.submitted[row] = work.submitted
        self.estimate_s[row] = NAN if work.estimate_s is None else work.estimate_s
        self.deadline[row] = NAN if work.deadline is None else work.deadline
        self.checkpoint_s[row] = NAN if work.checkpoint_s is None else work.checkpoint_s
        self.level[row], self.attained_s[row], self.preemptions[row] = work.level, work.attained_s, work.preemptions
        self.user_level[row], self.group_level[row] = filling.user_level, filling.group_level
        self.pin[row] = NOT_PINNED if work.pin is None else work.pin
        self.pinned += work.pin is not None
        self.queue[row] = self.queues.take(filling.queue)
        self.user[row] = self.users.take(filling.user)
        self.group[row] = self.groups.take(filling.group)
        self.kind[row], self.pods[row] = filling.kind, filling.pods
        self.is_preemptible[row], self.is_held[row] = work.preemptible, bool(work.hold)
        self.ask(row, filling.request)
        for (source, key), column in self._numbers.items():
            column[row] = self._number_of(source, key, row)
        return row

    def drop(self, unit_id: str) -> None:
        row = self.row_of.pop(unit_id, None)
        if row is None:
            return
        self._give_back(row)
        self.ids[row], self.works[row], self.labels[row] = "", NOTHING, {}
        self.queue[row] = self.user[row] = self.group[row] = NOBODY
        self.is_waiting[row] = self.is_running[row] = self.is_blocked[row] = False
        self.refusal[row] = 0
        self._free.append(row)

    def ask(self, row: int, request: Array) -> None:
        """What it asks for from now on."""
        self.widen(len(request))
        self.request[:, row] = 0
        self.request[: len(request), row] = request
        self.dominant[row] = self._share(self.request[:, row])

    def hold(self, row: int, used: Array, *, is_all: bool) -> None:
        """What its placed pods hold from now on; if that `is_all` of it, it asks for nothing else."""
        self.widen(len(used))
        self.used[:, row] = 0
        self.used[: len(used), row] = used
        self.used_dominant[row] = share = self._share(self.used[:, row])
        if is_all:
            self.request[:, row] = self.used[:, row]
            self.dominant[row] = share

    def let_go(self, row: int) -> None:
        """It holds nothing any more."""
        self.used[:, row] = 0
        self.used_dominant[row] = 0.0

    def widen(self, resources: int) -> None:
        """Rows for resources that have appeared since."""
        missing = resources - len(self.request)
        if missing > 0:
            more = np.zeros((missing, self.size), np.int64)
            self.request, self.used = np.concatenate([self.request, more]), np.concatenate([self.used, more])
            self._divisor = np.concatenate([self._divisor, np.full(missing, math.inf)])

    def use_total(self, total: Array) -> None:
        """What the cluster has of each resource, from now on: all dominant shares follow."""
        self.widen(len(total))
        self._divisor[: len(total)] = np.where(total > 0, total, math.inf)
        divisor = self._divisor[:, None]
        self.dominant = (self.request / divisor).max(axis=0)
        self.used_dominant = (self.used / divisor).max(axis=0)

    # -- reading -------------------------------------------------------------------------------------------------------------

    def number(self, source: str, key: str) -> Array:
        """A column of numbers, NaN where the unit has none: `Attribute` and `Label` by their text, `EstimatedUse` and
        `PredictedUse` of a resource, in the engine's units."""
        column = self._numbers.get((source, key))
        if column is None:
            column = np.full(self.size, NAN)
            for row in self.row_of.values():
                column[row] = self._number_of(source, key, row)
            if len(self._numbers) < NUMBERS_MAX:
                self._numbers[source, key] = column
        return column

    def queue_name(self, row: int) -> str:
        """Of work that is in no queue, ""."""
        number = int(self.queue[row])
        return self.queues.names[number] if number >= 0 else ""

    def group_name(self, row: int) -> str:
        number = int(self.group[row])
        return self.groups.names[number] if number >= 0 else ""

    def predict(self, row: int, median_s: float, high_s: float, use: Mapping[str, float] | None = None) -> None:
        """What the system expects of the unit."""
        self.predicted_s[row], self.predicted_high_s[row] = median_s, high_s
        if use is not None:
            self.predicted_use[row] = use
            for (source, key), column in self._numbers.items():
                if source == "PredictedUse":
                    column[row] = self._number_of(source, key, row)

    def select(self, rows: Sequence[int] | Array) -> Table:
        """These rows alone, in this order, to ask what if: names have the same numbers. A copy, but of no more than is read:
        ask before the table changes, and do not add to it."""
        return _Chosen(self, np.asarray(rows, np.intp))

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _number_of(self, source: str, key: str, row: int) -> float:
        find = _NUMBERS.get(source)
        value = find(self, row, key) if find is not None else None
        try:
            number = NAN if value is None else float(value)
        except (TypeError, ValueError):
            return NAN
        return number if math.isfinite(number) else NAN

    def _share(self, amounts: Array) -> float:
        return float(np.maximum.reduce(amounts / self._divisor))

    def _give_back(self, row: int) -> None:
        """What the row counts for, and the names that it has."""
        self.pinned -= self.works[row].pin is not None
        self.queues.give(int(self.queue[row]))
        self.users.give(int(self.user[row]))
        self.groups.give(int(self.group[row]))

    def _double(self) -> None:
        size = self.size
        for name in (*_FLOATS, *_INTEGERS, *_FLAGS):
            setattr(self, name, _doubled(getattr(self, name)))
        self.request, self.used = _doubled(self.request), _doubled(self.used)
        self._numbers = {key: _doubled(column) for key, column in self._numbers.items()}
        self.ids += [""] * size
        self.works += [NOTHING] * size
        self.labels += [{}] * size
        self.predicted_use += [{}] * size
        self._free = list(range(2 * size - 1, size - 1, -1))


class _Chosen(Table):
    """Some rows of another table. Each column is copied when it is first read: of some thirty, a formula reads a few."""

    def __init__(self, whole: Table, index: Array) -> None:
        self._whole, self._index = whole, index
        self.queues, self.users, self.groups = whole.queues, whole.users, whole.groups
        self._divisor, self._free = whole._divisor, []

    def __getattr__(self, name: str) -> Any:
        if name in _COLUMNS:
            found: Any = getattr(self._whole, name)[..., self._index]
        elif name in _LISTS:
            column = getattr(self._whole, name)
            found = [column[row] for row in self._index.tolist()]
        elif name == "row_of":
            found = {unit_id: place for place, unit_id in enumerate(self.ids)}
        elif name == "_numbers":
            found = {key: column[self._index] for key, column in self._whole._numbers.items()}
        else:
            raise AttributeError(name)
        setattr(self, name, found)
        return found


_NUMBERS: Final[Mapping[str, Callable[[Table, int, str], Any]]] = {
    "Attribute": lambda table, row, key: table.works[row].attributes.get(key),
    "Label": lambda table, row, key: table.labels[row].get(key),
    "EstimatedUse": lambda table, row, key: table.works[row].estimate_use.get(key),
    "PredictedUse": lambda table, row, key: table.predicted_use[row].get(key),
}


def _doubled(array: Array) -> Array:
    return np.concatenate([array, np.zeros_like(array)], axis=-1)


class Lateness(msgspec.Struct, frozen=True):
    """The bounds of a moment. `bound_s` is what all but the last few would have taken at most. As many as those may really be
    later, and they are the ones that take longer than `spared_s`."""

    bound_s: float = NAN
    spared_s: float = math.inf

    def of(self, takes_s: Array) -> Array:
        """How late work is that takes so long in all: 1 is at the bound, and never more for those that are spared."""
        late: Array = takes_s / self.bound_s
        return np.where(takes_s > self.spared_s, np.minimum(late, 1.0), late) if self.spared_s < math.inf else late


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What policies may read beside the table. Read only."""

    resources: Mapping[str, int]
    """Row of each resource in `request`, `total` and `free`."""
    total: Array
    free: Array
    """Empty where no factor of the policy reads it."""
    shares: Mapping[str, Array] = msgspec.field(default_factory=dict)
    """`user`, `group`, `queue`: faded use over what it is entitled to, by number: 0 has used nothing, 1 exactly its share. Who
    has no number has used nothing."""
    queue_level: Array = msgspec.field(default_factory=lambda: np.zeros(0))
    lateness: Mapping[str, Lateness] = msgspec.field(default_factory=dict)
    """By the key of a factor `Tail`: from when on work is late."""

    @property
    def pressure(self) -> float:
        """The largest part in use of any resource of the cluster, from 0 to 1."""
        has = self.total > 0
        used = 1.0 - self.free[: len(self.total)][has] / self.total[has]
        return float(np.clip(used, 0.0, 1.0).max()) if has.any() else 0.0
