"""Who may go before blocked work: never so that it starts later, in any resource, on any node."""

from __future__ import annotations

import heapq
import random
from typing import Any

import msgspec
import pytest

from muster.engine import events as ev
from muster.engine.work import Work, encode_work
from muster.objects.labels import Muster
from tests.engine.building import pod
from tests.policy.building import GPU, World

Job = tuple[float, int, float]
"""When it comes, how many GPUs, for how long."""


def textbook(jobs: list[Job], gpus: int) -> list[float]:
    """EASY on one pool of GPUs, as the papers have it: when each job starts."""
    started, running, waiting = [0.0] * len(jobs), list[tuple[float, int]](), list[int]()
    order, free = sorted(range(len(jobs)), key=lambda i: (jobs[i][0], i)), gpus

    def go(number: int, now: float) -> None:
        nonlocal free
        started[number] = now
        free -= jobs[number][1]
        heapq.heappush(running, (now + jobs[number][2], number))

    while order or running:
        now = min([jobs[i][0] for i in order[:1]] + [end for end, _ in running[:1]])
        while running and running[0][0] <= now:
            free += jobs[heapq.heappop(running)[1]][1]
        while order and jobs[order[0]][0] <= now:
            waiting.append(order.pop(0))
        while waiting and jobs[waiting[0]][1] <= free:
            go(waiting.pop(0), now)
        if not waiting:
            continue
        shadow, left = None, free
        for end, number in sorted(running):
            if shadow is not None and end > shadow:
                break
            left += jobs[number][1]
            if left >= jobs[waiting[0]][1]:
                shadow = end
        assert shadow is not None
        extra = left - jobs[waiting[0]][1]
        for number in list(waiting[1:]):
            _, size, seconds = jobs[number]
            if size <= free and (now + seconds <= shadow or size <= extra):
                extra -= size if now + seconds > shadow else 0
                waiting.remove(number)
                go(number, now)
    return started


def played(jobs: list[Job], world: World) -> list[float]:
    """The same through the engine."""
    moments = [(at, 1, number) for number, (at, _, _) in enumerate(jobs)]
    heapq.heapify(moments)
    started: dict[str, float] = {}
    while moments:
        now = moments[0][0]
        # What ends and comes in one instant is one step, ends first.
        events: list[ev.AnyEvent] = []
        while moments and moments[0][0] == now:
            _, kind, number = heapq.heappop(moments)
            name = f"j{number:03d}"
            if kind:
                work = Work(queue="q", submitted=now, estimate_s=jobs[number][2])
                events.append(
                    ev.PodSeen(pod(name, resources={GPU: jobs[number][1]}, annotations={Muster.WORK: encode_work(work)}))
                )
            else:
                events.append(ev.PodGone(f"uid-default-{name}"))
                world.running.pop(name)
        world.step(*events, at=now)
        for name in set(world.running) - set(started):
            started[name] = now
            heapq.heappush(moments, (now + jobs[int(name[1:])][2], 0, int(name[1:])))
    return [started[f"j{number:03d}"] for number in range(len(jobs))]


@pytest.mark.parametrize("seed", range(25))
def test_easy_is_the_textbooks(seed: int) -> None:
    chance = random.Random(seed)
    jobs: list[Job] = []
    at = 0.0
    for _ in range(chance.randint(5, 14)):
        at += chance.randint(0, 6)
        jobs.append((at, chance.choice((1, 2, 4, 8)), float(chance.randint(1, 40))))
    assert played(jobs, World(1, 8, backfill={"mode": "EASY"})) == textbook(jobs, 8)


def blocked(mode: str = "EASY", **more: Any) -> World:
    """6 of 8 GPUs busy until 100; `wide` needs all 8."""
    world = World(1, 8, backfill={"mode": mode, **more})
    world.submit("busy", 6, seconds=100)
    world.submit("wide", 8, seconds=50, at=1)
    return world


@pytest.mark.parametrize(
    ("mode", "seconds", "reason"),
    [
        pytest.param("EASY", 90.0, "", id="ends before the planned start"),
        pytest.param("EASY", 98.0, "", id="ends exactly then"),
        pytest.param("EASY", 99.0, "BackfillWouldDelay", id="ends after it"),
        pytest.param("EASY", None, "BackfillWouldDelay", id="nobody knows how long"),
        pytest.param("None", None, "", id="no plan, no bound"),
        pytest.param("Strict", 1.0, "QueueBlocked", id="nobody passes"),
        pytest.param("Conservative", 90.0, "", id="conservative: ends before"),
        pytest.param("Conservative", 99.0, "BackfillWouldDelay", id="conservative: ends after"),
    ],
)
def test_who_may_pass(mode: str, seconds: float | None, reason: str) -> None:
    world = blocked(mode)
    world.submit("next", 2, seconds=seconds, at=2)
    assert world.parked.get("next", "") == reason
    assert ("next" in world.running) == (not reason)


def test_the_plan_is_told() -> None:
    world = blocked()
    place = world.order.place_of("Pod/default/wide", world.now)
    world.submit("next", 2, seconds=500, at=2)
    place = world.order.place_of("Pod/default/wide", world.now)
    assert place is not None
    assert place.planned_start == 100.0
    behind = world.order.place_of("Pod/default/next", world.now)
    assert behind is not None
    assert behind.refused is not None
    assert behind.refused.subject == "Pod/default/wide"


def test_depth_bounds_how_far_down_the_line_is_looked() -> None:
    world = blocked(depth=1)
    world.submit("a", 2, seconds=500, at=2)
    world.submit("b", 1, seconds=5, at=3)
    assert world.parked["b"] == "BackfillWouldDelay"


def test_what_is_left_beside_the_plan_is_given_once() -> None:
    world = World(1, 8, backfill={"mode": "EASY"})
    world.submit("busy", 5, seconds=100)
    world.submit("wide", 6, seconds=50, at=1)
    world.submit("a", 1, seconds=10_000, at=2)
    world.submit("b", 1, seconds=10_000, at=3)
    world.submit("c", 1, seconds=10_000, at=4)
    # 8 - 6 = 2 are left at 100.
    assert set(world.running) == {"busy", "a", "b"}
    world.end("busy", at=100)
    assert "wide" in world.running


def test_a_plan_is_about_nodes_not_only_sums() -> None:
    world = World(2, 8, backfill={"mode": "EASY"})
    world.submit("x", 8, seconds=100)
    world.submit("y", 4, seconds=10_000)
    world.submit("wide", 8, seconds=50, at=1)
    assert world.order.place_of("Pod/default/wide", 1) is not None
    # Beside `wide` on its node nothing is left, beside `y` on the other 4 are: enough for one of these, not for two.
    world.submit("a", 4, seconds=10_000, at=2)
    world.submit("b", 4, seconds=10_000, at=3)
    assert world.running["a"] == world.running["y"]
    assert world.parked["b"] == "BackfillWouldDelay"


def test_a_gang_is_planned_for_and_passes_only_beside_plans() -> None:
    world = World(3, 8, backfill={"mode": "EASY"})
    world.submit("x", 8, seconds=100)
    world.submit("y", 8, seconds=200)
    world.submit_gang("wide", 2, 8, seconds=50, at=1)
    plan = world.order.plans.current(world.order.ranked_now, world.now)
    assert [one.start for one in plan] == [100.0]
    world.submit_gang("long", 2, 4, seconds=10_000, at=2)
    assert "long-0" not in world.running, "node 3 is kept, and no other has room"
    world.submit_gang("short", 2, 4, seconds=90, at=3)
    assert {"short-0", "short-1"} <= set(world.running)
    world.end("x", at=100)
    world.end("short-0", "short-1", at=93)
    assert {"wide-0", "wide-1"} <= set(world.running)


def test_bandwidth_is_planned_like_anything_else() -> None:
    world = World(1, 8, backfill={"mode": "EASY"})

    def submit(name: str, link: int, seconds: float, at: float) -> None:
        work = Work(queue="q", submitted=at, estimate_s=seconds)
        made = pod(name, resources={"example.com/link": link}, annotations={Muster.WORK: encode_work(work)})
        world.step(ev.PodSeen(made), at=at)

    submit("busy", 60, 100, 0)
    submit("wide", 100, 50, 1)
    submit("long", 40, 10_000, 2)
    submit("short", 40, 50, 3)
    assert set(world.running) == {"busy", "short"}
    assert world.parked["long"] == "BackfillWouldDelay"


def test_wrong_estimates_are_survived() -> None:
    world = blocked()
    world.submit("next", 2, seconds=120, at=2)
    assert world.parked["next"] == "BackfillWouldDelay"
    deadline = world.engine.next_deadline
    assert deadline is not None
    assert deadline <= 100.0
    # `busy` does not end when it said; it is taken to go on for a while, and longer the longer it does.
    world.tick(100.0)
    assert "next" in world.running, "now there is time enough"
    plans = world.order.plans.current(world.order.ranked_now, world.now)
    assert [plan.start for plan in plans] == [220.0]


def test_what_can_never_run_stops_nobody() -> None:
    for mode in ("EASY", "Strict", "Conservative"):
        world = World(1, 8, backfill={"mode": mode})
        world.submit("busy", 6, seconds=100)
        world.submit("impossible", 9, seconds=50, at=1)
        world.submit("next", 2, seconds=10_000, at=2)
        assert "next" in world.running, mode


def test_unknown_run_times_keep_room_for_wide_work() -> None:
    """Nobody knows how long anything runs: what is freed gathers for the first in line, all the same."""
    world = World(1, 8, backfill={"mode": "EASY"})
    for number in range(8):
        world.submit(f"old{number}", 1)
    world.submit("wide", 8, at=1)
    for number in range(8):
        world.submit(f"new{number}", 1, at=2)
    for number in range(8):
        world.end(f"old{number}", at=10.0 + number)
    assert set(world.running) == {"wide"}


def test_work_without_a_queue_goes_first_and_is_not_bound() -> None:
    world = blocked()
    world.step(
        ev.QueueSeen(
            msgspec.convert({"metadata": {"name": "q"}, "spec": {"policy": "p"}}, type(world.order.book.tree.queues["q"]))
        )
    )
    world.submit("free", 2, at=2, queue="")
    assert "free" in world.running


def test_what_could_never_be_placed_hears_so_and_not_whom_it_would_delay() -> None:
    world = World(1, 8, backfill={"mode": "EASY"})
    world.submit("x", 8, seconds=100)
    world.submit("wide", 8, seconds=50, at=1)
    world.submit("behind", 8, seconds=500, at=2)
    world.submit("huge", 9, seconds=500, at=3)
    assert world.parked["behind"] == "BackfillWouldDelay"
    assert world.parked["huge"] == "Impossible"
