"""The bound on starvation holds: from it on, a unit waits only for older work, and for what runs."""

from __future__ import annotations

import heapq
import random
from typing import Any

import pytest

from muster.policy.builtin import NAMES, builtin_policies, builtin_spec
from tests.policy.building import FIFO, SHORTEST, World

BOUND_S = 400
BUILTIN_BOUND_S_MAX = 10 * 7 * 86_400
SMALLEST: dict[str, Any] = {"factors": [{"name": "size", "source": "Size", "key": "gpu"}], "formula": "-size"}


@pytest.mark.parametrize("mode", ["None", "EASY", "Conservative", "Strict"])
@pytest.mark.parametrize("policy", [FIFO, SHORTEST, SMALLEST], ids=["fifo", "shortest", "smallest"])
def test_a_wide_unit_starts_within_the_bound_and_the_longest_run(policy: dict[str, Any], mode: str) -> None:
    longest_s = 150.0
    world = World(2, 4, **{**policy, "starvationBoundSeconds": BOUND_S, "backfill": {"mode": mode}})
    chance = random.Random(7)
    for number in range(8):
        world.submit(f"first{number}", 1, seconds=chance.uniform(30.0, longest_s), at=float(number))
    at = world.now
    world.submit("wide", 4, seconds=9_000, at=at)
    started = flood(world, chance, at=at, longest_s=longest_s)
    assert started is not None, "it starved"
    assert started - at <= BOUND_S + longest_s


@pytest.mark.parametrize("name", NAMES)
def test_each_built_in_policy_keeps_its_bound(name: str) -> None:
    """With all that it looks at against the wide unit: priority, deadlines, past use, length and size. Only the length of the
    bound is another, so that the test ends."""
    assert builtin_spec(name).starvation_bound_seconds <= BUILTIN_BOUND_S_MAX
    waited_s = _wide_waits_s(name, bound_s=BOUND_S, longest_s=150.0)
    assert waited_s is not None, "it starved"
    assert waited_s <= BOUND_S + 150.0
    # Without the bound it would starve, but where the policy itself lets old or wide work go first.
    assert (_wide_waits_s(name, bound_s=10**9, longest_s=150.0) is not None) == (name in ("fifo", "multifactor"))


def _wide_waits_s(name: str, *, bound_s: int, longest_s: float) -> float | None:
    world = World(2, 4, **{**builtin_policies()[name]["spec"], "starvationBoundSeconds": bound_s})
    chance = random.Random(11)
    for number in range(8):
        world.submit(f"first{number}", 1, seconds=chance.uniform(30.0, longest_s), at=float(number), user="ann")
    at = world.now
    world.submit("wide", 4, seconds=9_000, at=at, user="ann", level=-10)
    started = flood(world, chance, at=at, longest_s=longest_s, urgent=True)
    return None if started is None else started - at


def flood(world: World, chance: random.Random, *, at: float, longest_s: float, urgent: bool = False) -> float | None:
    """A stream of small and short work, several times what the cluster can run; when the wide unit starts. `urgent`: of high
    priority, with deadlines, and of people who have used nothing."""
    ends = [(world.started[name] + (world.works[name][0].estimate_s or 0.0), name) for name in world.running]
    heapq.heapify(ends)
    known = set(world.running)
    number = 1_000_000
    while world.now < at + 2 * BOUND_S:
        later = world.now + chance.choice((10.0, 20.0, 30.0))
        while ends and ends[0][0] <= later:
            ended_at, name = heapq.heappop(ends)
            world.end(name, at=max(ended_at, world.now))
            _note(world, known, ends)
        for _ in range(3):
            number += 1
            when = max(later, world.now)
            more: dict[str, Any] = {"level": 1000, "user": f"new{number}", "deadline": when + longest_s} if urgent else {}
            world.submit(f"s{number}", chance.choice((1, 1, 2)), seconds=chance.uniform(30.0, longest_s), at=when, **more)
            _note(world, known, ends)
        if "wide" in world.running:
            return world.started["wide"]
    return None


def _note(world: World, known: set[str], ends: list[tuple[float, str]]) -> None:
    for name in sorted(set(world.running) - known):
        known.add(name)
        heapq.heappush(ends, (world.started[name] + (world.works[name][0].estimate_s or 0.0), name))


def test_without_the_bound_it_would_starve() -> None:
    """The test above tests something: smallest first, skipping ahead, never lets the wide unit go."""
    world = World(2, 4, **{**SMALLEST, "starvationBoundSeconds": 10**9, "backfill": {"mode": "None"}})
    chance = random.Random(7)
    for number in range(8):
        world.submit(f"first{number}", 1, seconds=chance.uniform(30.0, 150.0), at=float(number))
    world.submit("wide", 4, seconds=9_000)
    assert flood(world, chance, at=world.now, longest_s=150.0) is None


def test_starving_work_goes_by_age_whatever_its_score() -> None:
    world = World(1, 8, **{**SHORTEST, "starvationBoundSeconds": 100})
    world.submit("busy", 8, seconds=1_000)
    world.submit("long", 8, seconds=500, at=1)
    world.submit("short", 8, seconds=5, at=2)
    assert world.line() == ["short", "long"]
    world.tick(103.0)
    assert world.line() == ["long", "short"]
    assert [place.is_starving for place in world.order.places("q", 103.0)] == [True, True]


def test_the_next_look_is_no_later_than_the_bound() -> None:
    world = World(1, 8, **{**SHORTEST, "starvationBoundSeconds": 100, "reevaluateSeconds": 3600})
    world.submit("busy", 8, seconds=1_000)
    world.submit("long", 8, seconds=500, at=1)
    looks = world.engine.next_deadline
    assert looks is not None
    assert looks <= 101.0


def test_held_work_does_not_starve() -> None:
    world = World(1, 8, **{**SHORTEST, "starvationBoundSeconds": 100})
    world.submit("busy", 8, seconds=1_000)
    world.submit("held", 8, seconds=1, at=1, hold="not yet")
    world.submit("next", 8, seconds=500, at=2)
    world.tick(500.0)
    assert world.line()[0] == "next"
    world.end("busy", at=501.0)
    assert list(world.running) == ["next"]
