"""Who waits: units to be tried, in order, and units that were tried and parked, by what would help them.

A parked unit wakes when it could fit after all, and not before: every node that offers more than it did is checked against the
needs of all parked shapes at once, and of units that are alike only as many wake as there is room for: of single pods on that
node, of gangs of equal pods on all nodes together. One of those that does not take the place after all (it is gone, or refused
for another reason) passes it on to the next in line. What was refused by a rule between pods wakes when such pods change.

Pure, single-threaded. Invariants: a unit is active or parked or neither, never both; waking keeps a unit's place in the order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from muster.engine.columns import Array, nonzero
from muster.engine.order import Order, Ranking
from muster.engine.plugin import Wake
from muster.engine.shapes import NOTHING_ASKED, Shape
from muster.engine.units import OrderKey, Unit
from muster.engine.vectors import widened
from muster.objects.reasons import Reason, Verdict

_LAST = 2**62
Key = tuple[int, int, str, str]
Kind = tuple[int, int]
"""Of units that are alike: the number of their pods' shape, and how many of them must start together."""


class Parked(msgspec.Struct):
    """Why a unit waits, and what wakes it besides room on a node."""

    unit: Unit
    verdict: Verdict
    shapes: tuple[Shape, ...]
    wakes: frozenset[Wake]
    copies: int = 0
    """Above 0: so many pods of one shape must start together, and only the shape decides about them: one unit of its kind that
    fails stands for all."""
    retry_at: float | None = None

    @property
    def kind(self) -> Kind | None:
        return (self.shapes[0].number, self.copies) if self.copies else None

    @property
    def is_nominated(self) -> bool:
        """Room was made for it on a certain node, whose changes wake it."""
        return self.verdict.reason is Reason.WAITING_FOR_VICTIMS


class Waiting:
    def __init__(self, order: Order | None = None) -> None:
        """`order` is told who waits and who does not any more."""
        self._order = order
        self.units: dict[str, Unit] = {}
        """Every unit that is active or parked."""
        self.parked: dict[str, Parked] = {}
        self._heap: list[Key] = []
        self._keys: dict[str, Key] = {}
        """Of active units; an entry of the heap that does not agree with it is stale."""
        self._rank: dict[str, int] = {}
        self._places: Ranking = self._rank
        """Whose places count: the order's, or, without one, those in `_rank`."""
        self._by_shape: dict[int, dict[str, None]] = {}
        """Parked units that no room is being made for, by the numbers of their shapes; but for plain ones."""
        self._plain: dict[int, dict[int, dict[str, None]]] = {}
        """Plain ones, by shape, then by how many of it must start together."""
        self._next: dict[Kind, list[Key]] = {}
        """Heaps over plain ones, made when they are asked for. May have entries of units that are not parked any more."""
        self._nominated: dict[int, dict[str, None]] = {}
        """The others, likewise."""
        self._by_wake: dict[Wake, dict[str, None]] = {}
        self._retries: dict[str, float] = {}
        self._woken_first: dict[str, Kind] = {}
        """Active units that woke while others of their kind sleep on."""
        self._trying: tuple[str, Kind | None] = ("", None)
        """The unit that was taken out last; of a kind, if others of it sleep on."""
        self._needs = _Needs()

    def __len__(self) -> int:
        return len(self.units)

    @property
    def has_active(self) -> bool:
        return bool(self._keys)

    @property
    def top_priority(self) -> int:
        """The highest priority of any parked pod; very low when there is none."""
        return self._needs.top_priority

    def active(self) -> list[Unit]:
        """Active units in order."""
        return [self.units[key[3]] for key in sorted(self._keys.values())]

    # -- coming and going --------------------------------------------------------------------------------------------------

    def add(self, unit: Unit) -> None:
        """Make the unit active, whatever it was."""
        self._unpark(unit.id)
        self.units[unit.id] = unit
        if self._order is not None:
            self._order.joined(unit)
        self._activate(unit)
        self._pass_on(self._woken_first.pop(unit.id, None))

    def remove(self, unit_id: str) -> Unit | None:
        self._unpark(unit_id)
        self._keys.pop(unit_id, None)
        self._rank.pop(unit_id, None)
        self._pass_on(self._woken_first.pop(unit_id, None))
        if self._order is not None:
            self._order.left(unit_id)
        return self.units.pop(unit_id, None)

    def pop(self) -> Unit | None:
        """The next unit to try; it is neither active nor parked until it is added or parked again."""
        heap, keys = self._heap, self._keys
        while heap:
            key = heapq.heappop(heap)
            unit_id = key[3]
            if keys.get(unit_id) is key:
                del keys[unit_id]
                self._trying = (unit_id, self._woken_first.pop(unit_id, None))
                return self.units.pop(unit_id)
        return None

    def take(self, unit_id: str) -> Unit | None:
        """A certain active unit, out of order."""
        if unit_id not in self._keys:
            return None
        del self._keys[unit_id]
        self._trying = (unit_id, self._woken_first.pop(unit_id, None))
        return self.units.pop(unit_id)

    def park(self, parked: Parked) -> None:
        unit_id = parked.unit.id
        kind = parked.kind
        if self._trying[0] == unit_id and self._trying[1] != kind:
            self._pass_on(self._trying[1])
        self._trying = ("", None)
        self.units[unit_id] = parked.unit
        self.parked[unit_id] = parked
        if kind is not None and not parked.is_nominated:
            self._plain.setdefault(kind[0], {}).setdefault(kind[1], {})[unit_id] = None
            if kind in self._next:
                heapq.heappush(self._next[kind], self._key(parked.unit))
        else:
            by_shape = self._nominated if parked.is_nominated else self._by_shape
            for shape in parked.shapes:
                by_shape.setdefault(shape.number, {})[unit_id] = None
        for shape in parked.shapes:
            self._needs.add(shape)
        for wake in parked.wakes:
            self._by_wake.setdefault(wake, {})[unit_id] = None
        if parked.retry_at is not None:
            self._retries[unit_id] = parked.retry_at

    def rank(self, order: Sequence[str]) -> None:
        """Another order. Units that are not in it come behind, in their own."""
        self._rank = {unit_id: place for place, unit_id in enumerate(order) if unit_id in self.units}
        self.use(self._rank)

    def use(self, places: Ranking) -> None:
        """Other places for all that waits. Only those of active units are looked up."""
        self._places = places
        self.forget_places()
        active = [self.units[unit_id] for unit_id in self._keys]
        self._heap, self._keys = [], {}
        for unit in active:
            self._activate(unit)

    def forget_places(self) -> None:
        """The places in use may have changed: who is next of each kind is found out anew."""
        self._next.clear()

    def ranking(self) -> list[str]:
        """The order in force, as far as there is one: ids, the first to be tried first."""
        return sorted(self._rank, key=self._rank.__getitem__)

    def keep_ranking(self, order: Sequence[str]) -> None:
        """An order from before, for units that are about to come."""
        self._rank = {unit_id: place for place, unit_id in enumerate(order)}
        self._places = self._rank
        self.forget_places()

    # -- waking ------------------------------------------------------------------------------------------------------------

    def wake_all(self, unit_ids: Iterable[str] | None = None) -> int:
        """Returns how many woke."""
        before = len(self.parked)
        for unit_id in list(self.parked if unit_ids is None else unit_ids):
            self._wake(unit_id)
        return before - len(self.parked)

    def wake_by(self, kinds: Iterable[Wake]) -> None:
        found = [kind for kind in kinds if self._by_wake.get(kind)]
        for kind in sorted(found, key=lambda wake: wake.value) if len(found) > 1 else found:
            for unit_id in list(self._by_wake.get(kind, ())):
                self._wake(unit_id)

    def wake_due(self, now: float) -> None:
        if self._retries:
            for unit_id in [unit_id for unit_id, retry_at in self._retries.items() if retry_at <= now]:
                self._wake(unit_id)

    @property
    def next_retry(self) -> float | None:
        return min(self._retries.values(), default=None)

    def wake_for(
        self,
        free: Array,
        fits: Callable[[Shape], bool],
        room: Callable[[Shape, int], int],
        spare: Callable[[Shape], int] | None = None,
    ) -> int:
        """A node offers `free` (rows): wake the units that could use it. `fits` asks the filters about that node, `room` says
        how many units of so many pods of the shape could use it, `spare` how many pods if those come that it is kept for.
        Returns how many woke. Without `spare` who has room coming elsewhere is left alone."""
        woken = 0
        for shape in self._needs.within(free):
            # A unit of several shapes may have woken for one of them already.
            others = list(self._by_shape.get(shape.number, ()))
            plain = self._plain.get(shape.number, {})
            nominated = self._nominated.get(shape.number) if spare is not None else None
            if not (plain or others or nominated) or not fits(shape):
                continue
            if nominated and spare is not None and (count := spare(shape)) > 0:
                others += heapq.nsmallest(count, nominated, key=lambda unit_id: self._key(self.parked[unit_id].unit))
            for copies in sorted(plain):
                others += self._first_of((shape.number, copies), room(shape, copies))
            for unit_id in others:
                self._wake(unit_id)
                woken += 1
        return woken

    def _first_of(self, kind: Kind, count: int) -> list[str]:
        """So many units of the kind, in order, which are about to wake for room; they pass it on if they do not take it."""
        there = self._plain[kind[0]][kind[1]]
        if count <= 0:
            return []
        first = list(there) if len(there) <= 1 else self._take_first(kind, count)
        if len(first) < len(there):
            self._woken_first.update(dict.fromkeys(first, kind))
        return first

    def _take_first(self, kind: Kind, count: int) -> list[str]:
        """So many of the plain units of the kind, in order; they are about to wake."""
        plain = self._plain.get(kind[0], {}).get(kind[1], {})
        heap = self._next.get(kind)
        if heap is None:
            heap = self._next[kind] = [self._key(self.parked[unit_id].unit) for unit_id in plain]
            heapq.heapify(heap)
        found: dict[str, None] = {}
        while heap and len(found) < count:
            unit_id = heapq.heappop(heap)[3]
            if unit_id in plain:
                found[unit_id] = None
        return list(found)

    def _pass_on(self, kind: Kind | None) -> None:
        """A unit that was woken for a place did not take it: the next of its kind is."""
        for unit_id in self._take_first(kind, 1) if kind is not None else ():
            if kind is not None:
                self._woken_first[unit_id] = kind
            self._wake(unit_id)

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _key(self, unit: Unit) -> Key:
        order: OrderKey = unit.order_key
        return (self._places.get(unit.id, _LAST), order[0], order[1], unit.id)

    def _activate(self, unit: Unit) -> None:
        key = self._keys[unit.id] = (self._places.get(unit.id, _LAST), unit.order_key[0], unit.order_key[1], unit.id)
        heapq.heappush(self._heap, key)

    def _wake(self, unit_id: str) -> None:
        parked = self._unpark(unit_id)
        if parked is not None:
            self._activate(parked.unit)

    def _unpark(self, unit_id: str) -> Parked | None:
        parked = self.parked.pop(unit_id, None)
        if parked is None:
            return None
        self._retries.pop(unit_id, None)
        for shape in parked.shapes:
            if self._forget(parked, shape.number) and not any(
                shape.number in each for each in (self._by_shape, self._plain, self._nominated)
            ):
                self._needs.remove(shape)
        for wake in parked.wakes:
            self._by_wake[wake].pop(unit_id, None)
        return parked

    def _forget(self, parked: Parked, shape: int) -> bool:
        """Take the unit out of those that a shape wakes; whether it was the last there."""
        if parked.is_nominated or not parked.copies:
            return _drop(self._nominated if parked.is_nominated else self._by_shape, shape, parked.unit.id)
        kinds = self._plain[shape]
        if _drop(kinds, parked.copies, parked.unit.id):
            self._next.pop((shape, parked.copies), None)
        if kinds:
            return False
        del self._plain[shape]
        return True


def _drop(units: dict[int, dict[str, None]], number: int, unit_id: str) -> bool:
    """Whether it was the last."""
    ids = units[number]
    ids.pop(unit_id, None)
    if not ids:
        del units[number]
    return not ids


class _Needs:
    """What parked shapes need, side by side, so that one comparison asks them all."""

    def __init__(self) -> None:
        self._columns: dict[int, int] = {}
        self._shapes: list[Shape | None] = []
        self._free: list[int] = []
        self._need: Array = np.full((0, 0), NOTHING_ASKED, np.int64)
        self._top: int | None = None

    @property
    def top_priority(self) -> int:
        if self._top is None:
            self._top = max((shape.priority for shape in self._shapes if shape is not None), default=-_LAST)
        return self._top

    def add(self, shape: Shape) -> None:
        if shape.number in self._columns:
            return
        rows, size = self._need.shape
        if len(shape.need) > rows or not self._free:
            grown = np.full((max(rows, len(shape.need)), size if self._free else max(64, 2 * size)), NOTHING_ASKED, np.int64)
            grown[:rows, :size] = self._need
            if not self._free:
                self._free = list(range(grown.shape[1] - 1, size - 1, -1))
                self._shapes += [None] * (grown.shape[1] - size)
            self._need = grown
        column = self._columns[shape.number] = self._free.pop()
        self._shapes[column] = shape
        if self._top is not None:
            self._top = max(self._top, shape.priority)
        self._need[: len(shape.need), column] = shape.need
        self._need[len(shape.need) :, column] = NOTHING_ASKED

    def remove(self, shape: Shape) -> None:
        column = self._columns.pop(shape.number)
        self._shapes[column] = None
        if shape.priority == self._top:
            self._top = None
        self._free.append(column)

    def within(self, free: Array) -> list[Shape]:
        """Shapes whose needs `free` covers, in the order in which the shapes were made."""
        if not self._columns:
            return []
        rows = len(self._need)
        mask = np.bitwise_and.reduce(widened(free, rows)[:rows, None] >= self._need)
        found = [shape for column in nonzero(mask).tolist() if (shape := self._shapes[column]) is not None]
        return sorted(found, key=lambda shape: shape.number)
