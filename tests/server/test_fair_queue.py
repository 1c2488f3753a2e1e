"""The fair queue alone: who is next, who is never kept out, and that every seat comes back exactly once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from muster.server.fair_queue import FLOWS_KEPT_MAX, FairQueue, Kind, Level, State, Ticket

LEVELS = (
    Level(name="first", is_first=True),
    Level(name="high", weight=3, share=0.25),
    Level(name="low", weight=1, share=0.25),
)
ONE = (Level(name="low"),)


def _queue(seats: int = 8, per_flow_max: int = 8, levels: tuple[Level, ...] = LEVELS, reserved: int = 2) -> FairQueue:
    return FairQueue(levels, seats=(seats, seats), reserved=reserved, per_flow_max=per_flow_max)


def _served(queue: FairQueue) -> list[str]:
    """Serve all, one after the other: whose they were, in order."""
    order = []
    while (ticket := queue.next()) is not None:
        order.append(ticket.flow.key)
        queue.give_back(ticket)
    return order


# --- order


def test_a_single_request_passes_a_flood() -> None:
    queue = _queue(levels=ONE)
    for _ in range(500):
        queue.ask("low", "flood", Kind.READ, 1)
    for _ in range(3):
        served = queue.next()
        assert served is not None
        queue.give_back(served)
    queue.ask("low", "quiet", Kind.READ, 1)
    assert _served(queue).index("quiet") == 0


@given(
    flood=st.integers(1, 60),
    cost=st.floats(0.1, 50),
    flows=st.integers(1, 8),
    before=st.integers(0, 200),
    quiet_cost=st.floats(0.1, 50),
)
def test_who_was_idle_is_passed_at_most_once_by_each(
    flood: int, cost: float, flows: int, before: int, quiet_cost: float
) -> None:
    """However much others ask for and however cheap it is: the length of the queue does not matter."""
    queue = _queue(levels=ONE)
    for number in range(flood * flows):
        queue.ask("low", f"flow-{number % flows}", Kind.READ, cost * (1 + number % flows))
    for _ in range(min(before, flood * flows - 1)):
        served = queue.next()
        assert served is not None
        queue.give_back(served)
    queue.ask("low", "quiet", Kind.WRITE, quiet_cost)
    order = _served(queue)
    passed = Counter(order[: order.index("quiet")])
    assert all(count <= 1 for count in passed.values())


def test_cost_is_what_is_shared() -> None:
    """One asks for lists that cost ten times as much: it gets one for ten of the other's."""
    queue = _queue(levels=ONE)
    for _ in range(100):
        queue.ask("low", "lists", Kind.READ, 10)
        queue.ask("low", "gets", Kind.READ, 1)
    order = _served(queue)[:55]
    assert 4 <= order.count("lists") <= 6


def test_idleness_saves_nothing_up() -> None:
    queue = _queue(levels=ONE)
    for _ in range(50):
        queue.ask("low", "busy", Kind.READ, 1)
    for _ in range(40):
        served = queue.next()
        assert served is not None
        queue.give_back(served)
    for _ in range(10):
        queue.ask("low", "late", Kind.READ, 1)
    order = _served(queue)
    assert 4 <= order[:10].count("late") <= 6


def test_levels_share_by_weight_and_the_first_goes_first() -> None:
    queue = _queue()
    for _ in range(40):
        queue.ask("low", "l", Kind.READ, 1)
        queue.ask("high", "h", Kind.READ, 1)
    queue.ask("first", "admin", Kind.READ, 1)
    order = _served(queue)
    assert order[0] == "admin"
    assert 28 <= order[1:41].count("h") <= 32  # three of four
    assert order.count("l") == order.count("h") == 40


def test_within_a_flow_the_oldest_is_next_whatever_its_kind() -> None:
    queue = _queue(levels=ONE)
    asked = [queue.ask("low", "a", kind, 1) for kind in (Kind.WRITE, Kind.READ, Kind.TURN, Kind.READ, Kind.TURN, Kind.WRITE)]
    assert [queue.next() for _ in asked] == asked


# --- seats


def test_guaranteed_seats_are_free_for_those_they_are_kept_for() -> None:
    queue = _queue(seats=8, per_flow_max=100)
    for _ in range(20):
        queue.ask("low", "l", Kind.WRITE, 1)
    while queue.next() is not None:
        pass
    assert queue.held(Kind.WRITE) == 6  # two of eight are kept for "high"
    assert queue.take("high", "h", Kind.WRITE, 1) is None, "somebody waits"
    queue.ask("high", "h", Kind.WRITE, 1)
    queue.ask("high", "h", Kind.WRITE, 1)
    assert [ticket.flow.key for ticket in (queue.next(), queue.next()) if ticket] == ["h", "h"]
    assert queue.next() is None
    assert queue.take("first", "admin", Kind.WRITE, 1) is not None, "the reserve is on top"


def test_one_flow_does_not_get_all_seats() -> None:
    queue = _queue(seats=8, per_flow_max=3, levels=ONE)
    for _ in range(10):
        queue.ask("low", "a", Kind.WRITE, 1)
    mine = [ticket for _ in range(10) if (ticket := queue.next()) is not None]
    assert len(mine) == 3
    queue.ask("low", "b", Kind.WRITE, 1)
    other = queue.next()
    assert other is not None
    assert other.flow.key == "b"
    assert queue.next() is None
    queue.give_back(mine[0])
    following = queue.next()
    assert following is not None
    assert following.flow.key == "a"


def test_reads_go_on_while_all_that_write_wait() -> None:
    queue = _queue(seats=2, levels=ONE)
    for number in range(50):
        queue.ask("low", f"w{number}", Kind.WRITE, 1)
    assert [queue.next() is not None for _ in range(3)] == [True, True, False]
    read = queue.ask("low", "w7", Kind.READ, 1)
    assert queue.next() is read


@pytest.mark.parametrize("times", [1, 3])
def test_giving_back_twice_frees_one_seat(times: int) -> None:
    queue = _queue(seats=2, levels=ONE)
    first, second = queue.take("low", "a", Kind.READ, 1), queue.take("low", "b", Kind.READ, 1)
    assert first is not None
    assert second is not None
    for _ in range(times):
        queue.give_back(first)
    assert queue.held(Kind.READ) == 1


# --- memory


def test_flows_are_forgotten() -> None:
    queue = _queue(seats=4, levels=ONE)
    stays = queue.take("low", "stays", Kind.READ, 1)
    assert stays is not None
    for number in range(5 * FLOWS_KEPT_MAX):
        ticket = queue.ask("low", f"u{number}", Kind.READ, 1 + number % 7)
        if number % 3:
            assert queue.next() is ticket
        queue.give_back(ticket)
    assert queue.flows_len <= FLOWS_KEPT_MAX + 2
    queue.give_back(stays)
    assert queue.flows_len <= 1


def test_who_gives_up_leaves_nothing() -> None:
    queue = _queue(seats=1, levels=ONE)
    assert queue.take("low", "holder", Kind.WRITE, 1) is not None
    for number in range(10_000):
        queue.give_back(queue.ask("low", f"u{number}", Kind.WRITE, 1))
    level = queue._by_name["low"]
    assert queue.waiting_len == 0
    assert sum(len(heap) for heap in level.heaps) < 200
    assert len(level.idle) <= FLOWS_KEPT_MAX
    assert queue.flows_len <= FLOWS_KEPT_MAX + 1


def test_who_gave_up_and_comes_again_is_served() -> None:
    """Also when its place was tidied away meanwhile, and it was never idle since: it has a seat all the time."""
    queue = _queue(seats=100, levels=ONE)
    held = [queue.take("low", f"u{number}", Kind.WRITE, 1) for number in range(100)]
    for ticket in [queue.ask("low", f"u{number}", Kind.WRITE, 1) for number in range(100)]:
        queue.give_back(ticket)
    other = queue.ask("low", "other", Kind.WRITE, 1)
    assert len(queue._by_name["low"].heaps[Kind.WRITE]) == 1, "the rest was tidied away"
    again = queue.ask("low", "u0", Kind.WRITE, 1)
    for seat in held[1:3]:
        assert seat is not None
        queue.give_back(seat)
    assert {queue.next(), queue.next()} == {other, again}


# --- whatever happens


class Anything(RuleBasedStateMachine):
    """Requests come, are served, end and are given up in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = _queue(seats=4, per_flow_max=2)
        self.waiting: list[Ticket] = []
        self.serving: list[Ticket] = []

    @rule(
        level=st.sampled_from(("first", "high", "low")),
        key=st.sampled_from("abc"),
        kind=st.sampled_from(tuple(Kind)),
        cost=st.floats(0.1, 20),
    )
    def come(self, level: str, key: str, kind: Kind, cost: float) -> None:
        ticket = self.queue.take(level, key, kind, cost)
        if ticket is None:
            self.waiting.append(self.queue.ask(level, key, kind, cost))
        elif kind is not Kind.TURN:
            self.serving.append(ticket)

    @rule()
    def serve(self) -> None:
        ticket = self.queue.next()
        if ticket is None:
            assert not any(self._could_be_served(one) for one in self.waiting), "work-conserving"
            return
        self.waiting.remove(ticket)
        if ticket.kind is Kind.TURN:
            assert ticket.state is State.DONE
        else:
            self.serving.append(ticket)

    @precondition(lambda self: self.serving)
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        ticket = self.serving.pop(data.draw(st.integers(0, len(self.serving) - 1)))
        self.queue.give_back(ticket)
        self.queue.give_back(ticket)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: Any) -> None:
        ticket = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.queue.give_back(ticket)
        self.queue.give_back(ticket)

    def _could_be_served(self, ticket: Ticket) -> bool:
        if ticket.kind is Kind.TURN:
            return True
        level = ticket.flow.level.config
        same = [one for one in self.serving if one.kind is ticket.kind]
        kept = sum(
            max(0, int(4 * other.share) - sum(one.flow.level.config is other for one in same))
            for other in LEVELS
            if other is not level
        )
        mine = sum(one.flow.key == ticket.flow.key and one.flow.level.config is level for one in same)
        return len(same) + kept < 4 + (2 if level.is_first else 0) and (level.is_first or mine < 2)

    @invariant()
    def counts_are_right(self) -> None:
        assert self.queue.waiting_len == len(self.waiting)
        for kind in (Kind.READ, Kind.WRITE):
            held = [one for one in self.serving if one.kind is kind]
            assert self.queue.held(kind) == len(held) <= 6
            assert sum(not one.flow.level.config.is_first for one in held) <= 4
        assert self.queue.flows_len <= 9

    def teardown(self) -> None:
        for ticket in (*self.waiting, *self.serving):
            self.queue.give_back(ticket)
        assert (self.queue.waiting_len, self.queue.held(Kind.READ), self.queue.held(Kind.WRITE)) == (0, 0, 0)
        assert self.queue.flows_len <= len(LEVELS)


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
