"""Who is served next: fair queuing of requests by level and, within a level, by flow (a user, a node, an address).

Pure: no clock, no tasks; `flow.py` drives it on the event loop. Start-time fair queuing twice over: every flow has a tag, the
sum of what it was served, lifted to the level's virtual time when it comes back from idleness, and the flow with the smallest
tag is next; levels are chosen among each other in the same way, by tag over weight. So idleness saves nothing up, and how much
a flow asks for delays only itself: another flow that asks once is passed at most once by each flow that was there before it.

Three kinds of tickets wait: to read and to write each take one of a bounded number of seats, which is held until it is given
back; a turn takes no seat, only its place in the order (the next piece of a long answer, the next events of a watch).

| level | bound on its seats |
|---|---|
| `is_first` (administrators, health) | all, and a reserve on top; served before the others, whatever their tags |
| any other | all but the guaranteed seats of the others that these do not use now |
| one flow | `per_flow_max` of each kind |

Invariants: seats in use never exceed the bounds; while a ticket could be served, `next` serves one; a ticket's seat is given
back exactly once, whenever and however often `give_back` is called; what is remembered is bounded by the tickets that are
there, and FLOWS_KEPT_MAX idle flows for each level.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

FLOWS_KEPT_MAX: Final = 1024
"""Idle flows of one level whose recent use is remembered; the ones nearest to being forgotten go first."""

_HEAP_SLACK: Final = 64


class Kind(enum.IntEnum):
    READ = 0
    WRITE = 1
    TURN = 2


_KINDS: Final = tuple(Kind)
_SEATED: Final = (Kind.READ, Kind.WRITE)


class Level(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    weight: float = 1.0
    """Its part of the turns, as long as several levels have something to do."""
    share: float = 0.0
    """The part of all seats that is kept free for it."""
    is_first: bool = False


class State(enum.Enum):
    WAITING = enum.auto()
    SERVED = enum.auto()
    DONE = enum.auto()


class Ticket:
    """One request's place. `data` belongs to the caller."""

    __slots__ = ("cost", "data", "flow", "kind", "number", "state")

    def __init__(self, flow: _Flow, kind: Kind, cost: float, number: int = 0) -> None:
        self.flow = flow
        self.number = number
        self.kind = kind
        self.cost = cost
        self.state = State.WAITING
        self.data: Any = None


class _Flow:
    __slots__ = ("held", "in_heap", "key", "level", "tag", "waiting", "waiting_len")

    def __init__(self, key: str, level: _Level) -> None:
        self.key = key
        self.level = level
        self.tag = level.virtual
        self.waiting: list[OrderedDict[Ticket, None] | None] = [None, None, None]
        self.waiting_len = 0
        self.held = [0, 0, 0]
        self.in_heap = [False, False, False]

    @property
    def is_idle(self) -> bool:
        return not self.waiting_len and not self.held[0] and not self.held[1]


class _Level:
    __slots__ = ("config", "flows", "guaranteed", "heaps", "held", "idle", "tag", "virtual", "waiting_len")

    def __init__(self, config: Level, seats: Sequence[int]) -> None:
        self.config = config
        self.tag = 0.0
        self.virtual = 0.0
        self.flows: dict[str, _Flow] = {}
        self.heaps: list[list[tuple[float, int, _Flow]]] = [[], [], []]
        """By kind: flows with something waiting, by a tag that may be older and so smaller than theirs."""
        self.idle: list[tuple[float, int, _Flow]] = []
        self.held = [0, 0, 0]
        self.guaranteed = [int(seats[kind] * config.share) for kind in _SEATED]
        self.waiting_len = 0


class FairQueue:
    def __init__(self, levels: Sequence[Level], *, seats: tuple[int, int], reserved: int, per_flow_max: int) -> None:
        """`seats`: to read and to write; `reserved` of each on top for levels that are first."""
        self._seats = seats
        self._reserved = reserved
        self._per_flow_max = per_flow_max
        self._levels = [_Level(level, seats) for level in levels]
        self._common = [seats[kind] - sum(level.guaranteed[kind] for level in self._levels) for kind in _SEATED]
        """Seats that are there for anybody, whatever the others hold."""
        self._by_name = {level.config.name: level for level in self._levels}
        self._held = [0, 0, 0]
        self._virtual = 0.0
        self._numbers = itertools.count()
        self.waiting_len = 0

    # --- what there is

    def held(self, kind: Kind, level: str = "") -> int:
        return self._by_name[level].held[kind] if level else self._held[kind]

    def waiting_in(self, level: str) -> int:
        return self._by_name[level].waiting_len

    def waiting_of(self, level: str, key: str) -> int:
        flow = self._by_name[level].flows.get(key)
        return flow.waiting_len if flow is not None else 0

    @property
    def flows_len(self) -> int:
        """Flows that are remembered, idle or not."""
        return sum(len(level.flows) for level in self._levels)

    # --- asking

    def take(self, level: str, key: str, kind: Kind, cost: float) -> Ticket | None:
        """Served at once, if there is a seat and nobody waits whom that would pass. For a level that is first: only its own."""
        chosen = self._by_name[level]
        if (chosen.waiting_len if chosen.config.is_first else self.waiting_len) or not self._has_seat(chosen, kind):
            return None
        flow = self._flow(chosen, key)
        if kind is not Kind.TURN and flow.held[kind] >= self._per_flow_max and not chosen.config.is_first:
            return None
        self._lift(flow)
        ticket = Ticket(flow, kind, cost)
        self._serve(ticket)
        return ticket

    def ask(self, level: str, key: str, kind: Kind, cost: float) -> Ticket:
        """A place in the queue, until `next` serves it or it is given back."""
        chosen = self._by_name[level]
        flow = self._flow(chosen, key)
        self._lift(flow)
        ticket = Ticket(flow, kind, cost, next(self._numbers))
        line = flow.waiting[kind]
        if line is None:
            line = flow.waiting[kind] = OrderedDict()
        line[ticket] = None
        flow.waiting_len += 1
        chosen.waiting_len += 1
        self.waiting_len += 1
        self._offer(flow, kind)
        return ticket

    def next(self) -> Ticket | None:
        """Serve the one whose turn it is; None when nobody waits who could be."""
        best: _Level | None = None
        best_flow: _Flow | None = None
        best_kind = Kind.READ
        for level in self._levels:
            if not level.waiting_len or (best is not None and level.tag >= best.tag):
                continue
            found = self._first_of(level)
            if found is None:
                continue
            best, (best_flow, best_kind) = level, found
            if level.config.is_first:
                break
        if best_flow is None:
            return None
        line = best_flow.waiting[best_kind]
        assert line is not None
        ticket, _ = line.popitem(last=False)
        self._drop_waiting(best_flow)
        self._serve(ticket)
        return ticket

    def give_back(self, ticket: Ticket) -> None:
        """The request is over, or does not want to wait any longer."""
        flow, kind = ticket.flow, ticket.kind
        if ticket.state is State.WAITING:
            line = flow.waiting[kind]
            assert line is not None
            del line[ticket]
            self._drop_waiting(flow)
        elif ticket.state is State.SERVED:
            self._held[kind] -= 1
            flow.level.held[kind] -= 1
            flow.held[kind] -= 1
            if flow.waiting[kind]:
                self._offer(flow, kind)  # it may have been at its bound
        else:
            return
        ticket.state = State.DONE
        self._settle(flow)

    # --- inside

    def _flow(self, level: _Level, key: str) -> _Flow:
        flow = level.flows.get(key)
        if flow is None:
            flow = level.flows[key] = _Flow(key, level)
        return flow

    def _lift(self, flow: _Flow) -> None:
        """Time in which it wanted nothing is not saved up."""
        level = flow.level
        if not flow.waiting_len and flow.tag < level.virtual:
            flow.tag = level.virtual
        if not level.waiting_len and level.tag < self._virtual:
            level.tag = self._virtual

    def _has_seat(self, level: _Level, kind: Kind) -> bool:
        if kind is Kind.TURN or self._held[kind] < self._common[kind]:
            return True
        kept = 0
        for other in self._levels:
            if other is not level:
                unused = other.guaranteed[kind] - other.held[kind]
                if unused > 0:
                    kept += unused
        bound = self._seats[kind] + (self._reserved if level.config.is_first else 0)
        return self._held[kind] + kept < bound

    def _first_of(self, level: _Level) -> tuple[_Flow, Kind] | None:
        """The flow with the smallest tag, and its oldest ticket that there is a seat for; among equals the oldest ticket."""
        best: tuple[float, int] | None = None
        found: tuple[_Flow, Kind] | None = None
        for kind in _KINDS:
            heap = level.heaps[kind]
            if not heap or not self._has_seat(level, kind):
                continue
            while heap:
                tag, number, flow = heap[0]
                line = flow.waiting[kind]
                if not line or self._is_at_bound(flow, kind):
                    heapq.heappop(heap)
                    flow.in_heap[kind] = False
                elif tag < flow.tag:
                    heapq.heapreplace(heap, (flow.tag, number, flow))
                else:
                    place = (tag, next(iter(line)).number)
                    if best is None or place < best:
                        best, found = place, (flow, kind)
                    break
        return found

    def _is_at_bound(self, flow: _Flow, kind: Kind) -> bool:
        return kind is not Kind.TURN and flow.held[kind] >= self._per_flow_max and not flow.level.config.is_first

    def _offer(self, flow: _Flow, kind: Kind) -> None:
        if flow.in_heap[kind]:
            return
        level = flow.level
        heap = level.heaps[kind]
        if len(heap) > _HEAP_SLACK and len(heap) > 2 * level.waiting_len:
            for entry in heap:
                entry[2].in_heap[kind] = bool(entry[2].waiting[kind])  # the others gave up waiting, and may come again
            heap = level.heaps[kind] = [entry for entry in heap if entry[2].in_heap[kind]]
            heapq.heapify(heap)
        flow.in_heap[kind] = True
        heapq.heappush(heap, (flow.tag, next(self._numbers), flow))

    def _drop_waiting(self, flow: _Flow) -> None:
        flow.waiting_len -= 1
        flow.level.waiting_len -= 1
        self.waiting_len -= 1

    def _serve(self, ticket: Ticket) -> None:
        flow, kind = ticket.flow, ticket.kind
        level = flow.level
        level.virtual = max(level.virtual, flow.tag)
        flow.tag += ticket.cost
        if not level.config.is_first:
            self._virtual = max(self._virtual, level.tag)
            level.tag += ticket.cost / level.config.weight
        if kind is Kind.TURN:
            ticket.state = State.DONE
            self._settle(flow)
            return
        ticket.state = State.SERVED
        self._held[kind] += 1
        level.held[kind] += 1
        flow.held[kind] += 1

    def _settle(self, flow: _Flow) -> None:
        """Forget what is of no use any more: all of a level at rest, and flows that have no more behind them than the rest."""
        level = flow.level
        if not level.waiting_len and not level.held[0] and not level.held[1]:
            if len(level.flows) > 1 or level.idle or any(level.heaps):
                level.flows.clear()
                level.idle.clear()
                for heap in level.heaps:
                    heap.clear()
            else:
                flow.tag = 0.0  # the only one: it may well be the next
            level.virtual = 0.0
            return
        if flow.is_idle:
            heapq.heappush(level.idle, (flow.tag, next(self._numbers), flow))
        while level.idle and (level.idle[0][0] <= level.virtual or len(level.idle) > FLOWS_KEPT_MAX):
            tag, _, idle = heapq.heappop(level.idle)
            if idle.is_idle and tag == idle.tag and level.flows.get(idle.key) is idle:
                del level.flows[idle.key]
