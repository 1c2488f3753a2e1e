"""The queue run forward: when would what waits start, if run times were these? List scheduling, on amounts alone.

`starts` plays one future: running work ends, new work comes, and whenever room is free the line is gone through in its order,
as the policy's backfilling has it. A pod goes to the first node that has room; rules about nodes, and what the engine would
rather choose, are left out, and what that costs is learned from how forecasts came out (`muster.policy.eta`).

Work of equal request stands in one lane, so going through the line costs as many looks as there are different requests, not as
many as there are units; and a lane that found no room is not looked at again before a node has some. Pure. Bounded: a future
ends after `events_max` events.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

Mode = Literal["None", "Strict", "EASY", "Conservative"]
Amounts = tuple[float, ...]
Held = Sequence[tuple[int, Amounts]]
"""Nodes, and what is held there."""
_Waiting = list[tuple[float, int, float]]
"""Key, number and run time of each unit: a heap."""


class Lane(msgspec.Struct, frozen=True):
    """Units that ask for the same: so many pods of so much."""

    piece: Amounts
    count: int = 1

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


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What all futures have in common."""

    free: Sequence[Sequence[float]]
    """By node."""
    lanes: Sequence[Lane]
    mode: Mode = "None"
    later: Sequence[tuple[float, Sequence[float]]] = ()
    """The keys of the line from some instants on: places change as time passes."""
    events_max: int = 4_000


def starts(
    scene: Scene,
    running: Sequence[tuple[float, Held]],
    line: Sequence[Waits],
    coming: Iterator[Waits],
    wanted: frozenset[int],
) -> dict[int, float]:
    """By index in `line`: seconds until it starts, of those in `wanted`. `coming` is by time, and may go on for ever."""
    play = _Play(scene, running, line)
    found: dict[int, float] = {}
    now, number = 0.0, len(line)
    one = next(coming, None)
    epochs = list(reversed(scene.later))
    for _ in range(scene.events_max):
        if epochs and now >= epochs[-1][0]:
            play.rekey(epochs.pop()[1])
        found.update((at, now) for at in play.start(now) if at in wanted)
        if len(found) == len(wanted):
            break
        end = play.ends[0][0] if play.ends else math.inf
        come = one.comes if one is not None else math.inf
        if end == math.inf and come == math.inf:
            break
        now = max(min(end, come), now)
        if end <= come or one is None:
            play.end(now)
        else:
            heapq.heappush(play.waiting[one.lane], (one.key, number, one.run_s))
            number += 1
            one = next(coming, None)
    # What is still not there after so many events takes at least as long again.
    return {at: found.get(at, 2.0 * now + 1.0) for at in wanted}


class _Play:
    """One future at an instant."""

    def __init__(self, scene: Scene, running: Sequence[tuple[float, Held]], line: Sequence[Waits]) -> None:
        self._lanes, self._mode = scene.lanes, scene.mode
        self._room = [list(one) for one in scene.free]
        self.ends: list[tuple[float, int, Held]] = [(end, -at - 1, held) for at, (end, held) in enumerate(running)]
        heapq.heapify(self.ends)
        self.waiting: list[_Waiting] = [[] for _ in scene.lanes]
        self._is_blocked = [False] * len(scene.lanes)
        """It found no room, and no node has more than then."""
        for at, unit in enumerate(line):
            self.waiting[unit.lane].append((unit.key, at, unit.run_s))
        for lane in self.waiting:
            lane.sort()  # a sorted list is a heap

    def rekey(self, keys: Sequence[float]) -> None:
        """Other keys of the line; those that came since keep theirs."""
        count = len(keys)
        self.waiting = [
            sorted((keys[at] if at < count else key, at, run_s) for key, at, run_s in lane) for lane in self.waiting
        ]

    def end(self, now: float) -> None:
        while self.ends and self.ends[0][0] <= now:
            for node, amounts in heapq.heappop(self.ends)[2]:
                room = self._room[node]
                for row, amount in enumerate(amounts):
                    room[row] += amount
                for at, lane in enumerate(self._lanes):
                    if self._is_blocked[at] and (lane.count > 1 or _fits(lane.piece, room)):
                        self._is_blocked[at] = False

    def start(self, now: float) -> list[int]:
        """Everybody who may start now."""
        started = []
        while (found := self._next(now)) is not None:
            lane, nodes = found
            _, at, run_s = heapq.heappop(self.waiting[lane])
            piece = self._lanes[lane].piece
            for node in nodes:
                room = self._room[node]
                for row, amount in enumerate(piece):
                    room[row] -= amount
            heapq.heappush(self.ends, (now + run_s, at, [(node, piece) for node in nodes]))
            started.append(at)
        return started

    def _next(self, now: float) -> tuple[int, list[int]] | None:
        """The lane whose first may start, and on which nodes; None when none may."""
        is_blocked = self._is_blocked
        ordered = [(lane[0][0], at) for at, lane in enumerate(self.waiting) if lane and not is_blocked[at]]
        if not ordered:
            return None
        if self._mode != "None":
            ordered = [(lane[0][0], at) for at, lane in enumerate(self.waiting) if lane]
        ordered.sort()
        limit: tuple[float, list[float]] | None = None
        for turn, (_, at) in enumerate(ordered):
            nodes = None if is_blocked[at] else self._nodes(self._lanes[at])
            is_blocked[at] = nodes is None
            if nodes is None:
                if self._mode == "Strict":
                    return None
                continue
            if turn and self._mode != "None":
                limit = limit or self._limit(ordered[0][1])
                if now + self.waiting[at][0][2] > limit[0] and not _fits(self._lanes[at].whole, limit[1]):
                    continue
            return at, nodes
        return None

    def _nodes(self, lane: Lane) -> list[int] | None:
        """The first nodes that have room."""
        if lane.count == 1:
            return next(([node] for node, room in enumerate(self._room) if _fits(lane.piece, room)), None)
        found: list[int] = []
        for node, room in enumerate(self._room):
            left = list(room)
            while len(found) < lane.count and _fits(lane.piece, left):
                found.append(node)
                left = [have - amount for have, amount in zip(left, lane.piece, strict=True)]
            if len(found) == lane.count:
                return found
        return None

    def _limit(self, head: int) -> tuple[float, list[float]]:
        """When the blocked head will start, and what is left beside it then, added up over the nodes."""
        later = [sum(amounts) for amounts in zip(*self._room, strict=True)]
        whole, shadow = self._lanes[head].whole, math.inf
        for end, _, held in sorted(self.ends, key=lambda one: one[:2]):
            for _, amounts in held:
                later = [have + amount for have, amount in zip(later, amounts, strict=True)]
            if _fits(whole, later):
                shadow = end
                break
        return shadow, [have - needs for have, needs in zip(later, whole, strict=True)]


def _fits(amounts: Amounts, room: Sequence[float]) -> bool:
    # Far the most frequent question: a loop is faster than a generator.
    for row, amount in enumerate(amounts):  # noqa: SIM110 - see above
        if amount > room[row]:
            return False
    return True
