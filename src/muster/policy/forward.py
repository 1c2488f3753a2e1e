"""The queue run forward: when would what waits start, if run times were these? List scheduling, on amounts alone.

`starts` plays one future: running work ends, new work comes, and whenever room is free the line is gone through in its order,
as the policy's backfilling has it. A pod goes to the first node that has room; rules about nodes, and what the engine would
rather choose, are left out, and what that costs is learned from how forecasts came out (`muster.policy.eta`). Where the policy
has work make way for others, it does so here too: what may be stopped says for whom, and comes back into the line.

Work of equal request stands in one lane, so going through the line costs as many looks as there are different requests, not as
many as there are units; and a lane that found no room is not looked at again before a node has some. Who may pass a blocked
head is decided as the policy would: by what is said of run times (`said_s`, `said_end`), not by what they will be. Work at a
limit (a purse that is empty, see `purses`) waits until some of it is given back, and nobody waits behind it. Pure. Bounded: a
future ends after `events_max` events.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from muster.engine.columns import Array
from muster.policy.expecting import OVERRUN_S_MIN

Mode = Literal["None", "Strict", "EASY", "Conservative"]
Amounts = tuple[float, ...]
Held = Sequence[tuple[int, Amounts]]
"""Nodes, and what is held there."""
Dues = tuple[tuple[int, float], ...]
"""Purses, and what is taken of each."""
GRID_MIN: Final = 48
"""With more nodes than this, all are looked at in one operation on an array, which costs about as much as so many looks."""


class Lane(msgspec.Struct, frozen=True):
    """Units that ask for the same: so many pods of so much."""

    piece: Amounts
    count: int = 1
    length: int = 0
    """Where shorter work may pass longer work: of about the same length, too. Only the first of a lane is looked at."""
    dues: Dues = ()
    """And under the same limits."""

    @property
    def whole(self) -> Amounts:
        return tuple(self.count * amount for amount in self.piece)


class Waits(msgspec.Struct, frozen=True):
    """Work that waits, or will come."""

    key: float
    """Its place: smaller is sooner."""
    lane: int
    run_s: float
    comes: float = 0.0
    """From now."""
    yields_to: float = -math.inf
    """Once it runs, it makes way for work whose key is at most this."""
    said_s: float | None = None
    """How long the policy thinks that it runs; None for what it will."""


class Runs(msgspec.Struct, frozen=True):
    """Work that runs."""

    end: float
    held: Held
    yields_to: float = -math.inf
    key: float = 0.0
    """Its place, should it have to wait again."""
    lane: int = -1
    since: float = 0.0
    """When it started, from now: not after it."""
    said_end: float | None = None
    """When the policy thinks that it ends; None for when it will."""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What all futures have in common."""

    free: Sequence[Sequence[float]]
    """By node."""
    lanes: Sequence[Lane]
    mode: Mode = "None"
    later: Sequence[tuple[float, Sequence[float]]] = ()
    """The keys of the line from some instants on: places change as time passes."""
    restart_s: float = 0.0
    """What a stop costs; nobody is stopped who has not run for so long."""
    purses: Sequence[float] = ()
    """What is left of each limit on what is in use at once."""
    events_max: int = 4_000


def starts(
    scene: Scene, running: Sequence[Runs], line: Sequence[Waits], coming: Iterator[Waits], wanted: frozenset[int]
) -> dict[int, float]:
    """By index in `line`: seconds until it starts, of those in `wanted`. `coming` is by time, and may go on for ever."""
    play = _Play(scene, running, line)
    found: dict[int, float] = {}
    now, number = 0.0, len(line)
    one = next(coming, None)
    epochs = list(reversed(scene.later))
    is_due = True
    for _ in range(scene.events_max):
        if epochs and now >= epochs[-1][0]:
            play.rekey(epochs.pop()[1])
            is_due = True
        for at in play.start(now) if is_due else ():
            if at in wanted:
                found.setdefault(at, now)
        if len(found) == len(wanted):
            break
        end = play.ends[0][0] if play.ends else math.inf
        come = one.comes if one is not None else math.inf
        if end == math.inf and come == math.inf:
            break
        now = max(min(end, come), now)
        if end <= come or one is None:
            play.end(now)
            is_due = True
        else:
            is_due = play.may_start(one)
            heapq.heappush(play.waiting[one.lane], _entry(one, number))
            number += 1
            one = next(coming, None)
    # What is still not there after so many events takes at least as long again.
    return {at: found.get(at, 2.0 * now + 1.0) for at in wanted}


_Unit = tuple[float, int, float, float, float]
"""Key, number, run time, `yields_to` and `said_s` of a unit that waits."""
_End = tuple[float, int, Held, float, float, int, float, float]
"""When, the number, what is given back, and of `Runs`: yields_to, key, lane, since, said_end. By time."""


def _entry(unit: Waits, number: int) -> _Unit:
    return unit.key, number, unit.run_s, unit.yields_to, unit.run_s if unit.said_s is None else unit.said_s


class _Play:
    """One future at an instant."""

    def __init__(self, scene: Scene, running: Sequence[Runs], line: Sequence[Waits]) -> None:
        self._lanes, self._mode, self._restart_s = scene.lanes, scene.mode, scene.restart_s
        self._wholes = [lane.whole for lane in scene.lanes]
        self._purses = list(scene.purses)
        self._is_barred = [self._lacks(lane) for lane in scene.lanes]
        """A limit keeps the lane from starting anything."""
        self._under: dict[int, list[int]] = {}
        """By purse: the lanes that take from it."""
        for at, one in enumerate(scene.lanes):
            for purse, _ in one.dues:
                self._under.setdefault(purse, []).append(at)
        self._room = [list(one) for one in scene.free]
        self._grid: Array | None = np.array(scene.free, np.float64) if len(scene.free) > GRID_MIN else None
        """The same as an array, where there are many nodes."""
        self.ends: list[_End] = sorted(
            (
                *(one.end, -at - 1, one.held, one.yields_to, one.key, one.lane, one.since),
                one.end if one.said_end is None else one.said_end,
            )
            for at, one in enumerate(running)
        )
        self._said = sorted((one[7], one[1], one[2]) for one in self.ends) if self._mode != "None" else []
        """The same by when they are said to end, where anybody asks."""
        self.waiting: list[list[_Unit]] = [[] for _ in scene.lanes]
        self._is_blocked = [False] * len(scene.lanes)
        """It found no room, and no node has more than then."""
        self._most_yielding = max((one.yields_to for one in running), default=-math.inf)
        """Nobody whose key is larger has anybody make way."""
        self._head: tuple[int, float, list[float]] | None = None
        """The blocked head's number, when it will start, and what is left beside it then."""
        for at, unit in enumerate(line):
            self.waiting[unit.lane].append(_entry(unit, at))
        for lane in self.waiting:
            lane.sort()  # a sorted list is a heap

    def may_start(self, unit: Waits) -> bool:
        """Whether work that comes is worth a look at all: there is room for it, or others may make way."""
        return not self._is_blocked[unit.lane] or unit.key <= self._most_yielding

    def rekey(self, keys: Sequence[float]) -> None:
        """Other keys of the line; those that came since keep theirs."""
        count = len(keys)
        self.waiting = [
            sorted((keys[at] if 0 <= at < count else key, at, *rest) for key, at, *rest in lane)  # type: ignore[misc]
            for lane in self.waiting
        ]

    def end(self, now: float) -> None:
        while self.ends and self.ends[0][0] <= now:
            one = self.ends.pop(0)
            self._give_back(one[2])
            self._pay(one[5], -1.0)
            self._unsay(one)
            self._head = None  # sooner than was said, or later: the head's start is planned anew

    def _unsay(self, one: _End) -> None:
        if self._mode != "None":
            del self._said[bisect_left(self._said, (one[7], one[1]))]

    def _pay(self, lane: int, times: float) -> None:
        """Take the dues of a lane from the purses; with -1, give them back."""
        if not self._purses or lane < 0:
            return
        for purse, amount in self._lanes[lane].dues:
            self._purses[purse] -= times * amount
        for purse, _ in self._lanes[lane].dues:
            for at in self._under[purse]:
                self._is_barred[at] = self._lacks(self._lanes[at])

    def _lacks(self, lane: Lane) -> bool:
        purses = self._purses
        for purse, amount in lane.dues:  # noqa: SIM110 - a loop is faster than a generator
            if amount > purses[purse]:
                return True
        return False

    def _give_back(self, held: Held) -> None:
        is_blocked = self._is_blocked
        for node, amounts in held:
            room = self._room[node]
            for row, amount in enumerate(amounts):
                room[row] += amount
            if self._grid is not None:
                self._grid[node] = room
            for at, lane in enumerate(self._lanes):
                if is_blocked[at] and (lane.count > 1 or _fits(lane.piece, room)):
                    is_blocked[at] = False

    def _take(self, held: Held) -> None:
        for node, amounts in held:
            room = self._room[node]
            for row, amount in enumerate(amounts):
                room[row] -= amount
            if self._grid is not None:
                self._grid[node] = room

    def start(self, now: float) -> list[int]:
        """Everybody who may start now."""
        started = []
        while (found := self._next(now)) is not None:
            lane, nodes = found
            key, at, run_s, yields_to, said_s = heapq.heappop(self.waiting[lane])
            piece = self._lanes[lane].piece
            held = [(node, piece) for node in nodes]
            self._take(held)
            self._pay(lane, 1.0)
            insort(self.ends, (now + run_s, at, held, yields_to, key, lane, now, now + said_s))
            if self._mode != "None":
                insort(self._said, (now + said_s, at, held))
            self._most_yielding = max(self._most_yielding, yields_to)
            self._note_start(at, lane, now + said_s)
            started.append(at)
        return started

    def _note_start(self, at: int, lane: int, end: float) -> None:
        """The blocked head will find less beside it, or is not the head any more."""
        if self._head is not None:
            number, shadow, beside = self._head
            if at == number:
                self._head = None
            elif end > shadow:
                self._head = (number, shadow, [have - needs for have, needs in zip(beside, self._wholes[lane], strict=True)])

    def _next(self, now: float) -> tuple[int, list[int]] | None:
        """The lane whose first may start, and on which nodes; None when none may."""
        is_blocked, is_barred, mode, waiting = self._is_blocked, self._is_barred, self._mode, self.waiting
        if mode == "None":
            ordered = [(lane[0][0], at) for at, lane in enumerate(waiting) if lane and not is_blocked[at] and not is_barred[at]]
        elif any(lane and not is_blocked[at] and not is_barred[at] for at, lane in enumerate(waiting)):
            ordered = [(lane[0][0], at) for at, lane in enumerate(waiting) if lane and not is_barred[at]]
        else:
            ordered = []
        ordered.sort()
        for turn, (_, at) in enumerate(ordered):
            if is_blocked[at]:
                if mode == "Strict":
                    break
                continue
            if turn and mode != "None" and not self._may_pass(at, ordered[0][1], now):
                continue
            nodes = self._nodes(self._lanes[at])
            if nodes is not None:
                return at, nodes
            is_blocked[at] = True
            if mode == "Strict":
                break
        return self._made_room(now) if self._most_yielding > -math.inf else None

    def _may_pass(self, at: int, head: int, now: float) -> bool:
        """Whether the first of the lane does not delay the head of the line."""
        number = self.waiting[head][0][1]
        if self._head is None or self._head[0] != number or now >= self._head[1]:
            self._head = (number, *self._limit(head, now))
        _, shadow, beside = self._head
        return now + self.waiting[at][0][4] <= shadow or _fits(self._wholes[at], beside)

    def _limit(self, head: int, now: float) -> tuple[float, list[float]]:
        """When the blocked head is said to start, and what is left beside it then, added up over the nodes."""
        later = [sum(amounts) for amounts in zip(*self._room, strict=True)]
        whole, shadow = self._wholes[head], math.inf
        for end, _, held in self._said:
            for _, amounts in held:
                for row, amount in enumerate(amounts):
                    later[row] += amount
            if _fits(whole, later):
                # What is over its time is expected to run as long again as it is over.
                shadow = end if end > now else now + max(now - end, OVERRUN_S_MIN)
                break
        return shadow, [have - needs for have, needs in zip(later, whole, strict=True)]

    def _nodes(self, lane: Lane) -> list[int] | None:
        """The first nodes that have room."""
        if self._grid is not None:
            return _nodes_of(self._grid, lane)
        if lane.count == 1:
            piece = lane.piece
            for node, room in enumerate(self._room):
                for row, amount in enumerate(piece):
                    if amount > room[row]:
                        break
                else:
                    return [node]
            return None
        found: list[int] = []
        for node, room in enumerate(self._room):
            left = list(room)
            while len(found) < lane.count and _fits(lane.piece, left):
                found.append(node)
                left = [have - amount for have, amount in zip(left, lane.piece, strict=True)]
            if len(found) == lane.count:
                return found
        return None

    def _made_room(self, now: float) -> tuple[int, list[int]] | None:
        """The first in line, if it finds room once others make way. These wait again, with what they had left and a restart."""
        firsts = [(lane[0][0], at) for at, lane in enumerate(self.waiting) if lane and not self._is_barred[at]]
        key, at = min(firsts, default=(math.inf, -1))
        if key > self._most_yielding:
            return None
        # The least worthy first: those that would yield to most.
        able = [one for one in self.ends if one[3] >= key and one[5] >= 0 and now - one[6] >= self._restart_s]
        able.sort(key=lambda one: (-one[3], one[1]))
        whole, have = self._wholes[at], [sum(amounts) for amounts in zip(*self._room, strict=True)]
        stopped: list[_End] = []
        for one in able:
            stopped.append(one)
            for _, amounts in one[2]:
                have = [here + amount for here, amount in zip(have, amounts, strict=True)]
            if _fits(whole, have):
                break
        else:
            return None
        for one in stopped:
            self.ends.remove(one)
            self._give_back(one[2])
            self._pay(one[5], -1.0)
            self._unsay(one)
        nodes = self._nodes(self._lanes[at])
        for one in stopped:
            end, number, held, yields_to, own, lane, _, said_end = one
            if nodes is None:  # there was room in all, and on no node: nobody is stopped for that
                insort(self.ends, one)
                self._take(held)
                self._pay(lane, 1.0)
                if self._mode != "None":
                    insort(self._said, (said_end, number, held))
            else:
                left_s, said_s = end - now + self._restart_s, max(said_end - now, 0.0) + self._restart_s
                heapq.heappush(self.waiting[lane], (own, number, left_s, yields_to, said_s))
        self._head = None
        return None if nodes is None else (at, nodes)


def _nodes_of(grid: Array, lane: Lane) -> list[int] | None:
    """As `_Play._nodes`, over all nodes at once."""
    if lane.count == 1:
        fits: Array = np.all(grid >= np.array(lane.piece), axis=1)
        first = int(fits.argmax())
        return [first] if fits[first] else None
    piece = np.array(lane.piece)
    rows = np.flatnonzero(piece > 0.0)
    if not len(rows):
        return [0] * lane.count
    # A hair more, as pieces may be thirds.
    times = np.maximum(np.floor((grid[:, rows] / piece[rows]).min(axis=1) + 1e-9), 0.0)
    there = np.minimum(np.cumsum(times), lane.count)
    if there[-1] < lane.count:
        return None
    found: list[int] = np.repeat(np.arange(len(grid)), np.diff(there, prepend=0.0).astype(np.int64)).tolist()
    return found


def _fits(amounts: Amounts, room: Sequence[float]) -> bool:
    # Far the most frequent question: a loop is faster than a generator.
    for row, amount in enumerate(amounts):  # noqa: SIM110 - see above
        if amount > room[row]:
            return False
    return True
