"""Who makes way for whom, at what price, and that it ends."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.policy.preemption import is_better
from tests.policy.building import FIFO, SHORTEST, World, queue_facts

ON: dict[str, Any] = {"enabled": True, "restartCostSeconds": 10, "gainPercentMin": 20, "perJobMax": 3}


def shortest(**more: Any) -> World:
    return World(1, 8, **{**SHORTEST, "preemption": {**ON, **more}})


def test_shorter_work_has_longer_make_way() -> None:
    world = shortest()
    world.submit("long", 8, seconds=10_000, preemptible=True)
    world.submit("short", 8, seconds=100, at=50)
    assert world.evictors == [("Pod/default/short", "long")]
    assert list(world.running) == ["short"]
    world.end("short", at=150)
    assert list(world.running) == ["long"]
    assert world.works["long"][0].preemptions == 1


@pytest.mark.parametrize(
    ("victim", "evictor", "rules"),
    [
        pytest.param({}, {}, {}, id="not marked preemptible"),
        pytest.param({"preemptible": True}, {}, {"enabled": False}, id="the policy does not preempt"),
        pytest.param({"preemptible": True, "preemptions": 3}, {}, {}, id="stopped often enough"),
        pytest.param({"preemptible": True, "pin": 1}, {}, {}, id="pinned, so first again at once"),
        pytest.param({"preemptible": True}, {"estimate_s": 9_000.0}, {}, id="gains too little"),
        pytest.param(
            {"preemptible": True}, {"estimate_s": 7_900.0}, {"restartCostSeconds": 49}, id="gains too little with lost work"
        ),
        pytest.param({"preemptible": True}, {}, {"restartCostSeconds": 60}, id="has just begun"),
        pytest.param({"preemptible": True, "job": "Job/a/b"}, {"job": "Job/a/b"}, {}, id="of the same job"),
    ],
)
def test_it_stays(victim: dict[str, Any], evictor: dict[str, Any], rules: dict[str, Any]) -> None:
    world = shortest(**rules)
    world.submit("long", 8, seconds=10_000, **victim)
    world.submit("short", 8, at=50, **{"estimate_s": 100.0, **evictor})
    assert not world.evicted
    assert list(world.running) == ["long"]


def test_a_checkpoint_makes_a_stop_cheaper() -> None:
    outcomes = {}
    for every in (None, 100.0):
        world = shortest(gainPercentMin=0)
        world.submit("long", 8, seconds=10_000, preemptible=True, checkpoint_s=every)
        world.submit("other", 8, seconds=3_000, at=5_050)
        outcomes[every] = list(world.evicted)
    # 4,950 s are left. Without checkpoints 5,050 s of work are lost: more than is gained.
    assert outcomes == {None: [], 100.0: ["long"]}


def test_only_as_many_go_as_must() -> None:
    world = shortest()
    for number in range(4):
        world.submit(f"long{number}", 2, seconds=10_000 + number, preemptible=True)
    world.submit("short", 4, seconds=100, at=50)
    assert sorted(world.evicted) == ["long2", "long3"]
    assert "short" in world.running


def test_a_gang_has_room_made_on_several_nodes() -> None:
    world = World(2, 8, **{**SHORTEST, "preemption": ON})
    for number in range(2):
        world.submit(f"long{number}", 8, seconds=10_000, preemptible=True)
    world.submit_gang("gang", 2, 8, seconds=100, at=50)
    assert sorted(world.evicted) == ["long0", "long1"]
    assert {"gang-0", "gang-1"} <= set(world.running)


def test_a_gang_makes_way_whole() -> None:
    world = World(2, 8, **{**SHORTEST, "preemption": ON})
    work = {"preemptible": True}
    world.submit_gang("gang", 2, 8, seconds=10_000, **work)
    world.submit("short", 8, seconds=100, at=50)
    assert sorted(world.evicted) == ["gang-0", "gang-1"]


def test_queues_of_a_lower_level_take_nothing_from_higher_ones() -> None:
    world = World(1, 8, **{**SHORTEST, "preemption": ON})
    world.step(ev.QueueSeen(queue_facts("high", policy="p", level=1)), ev.QueueSeen(queue_facts("low", policy="p")))
    world.submit("long", 8, seconds=10_000, queue="high", preemptible=True)
    world.submit("short", 8, seconds=100, queue="low", at=50)
    assert not world.evicted


def test_a_queue_beyond_its_share_gives_back_and_one_within_keeps() -> None:
    world = World(1, 8, **{**SHORTEST, "preemption": ON})
    world.step(ev.QueueSeen(queue_facts("a", policy="p")), ev.QueueSeen(queue_facts("b", policy="p")))
    for number in range(4):
        world.submit(f"a{number}", 2, seconds=10_000, queue="a", preemptible=True)
    world.submit("b0", 2, seconds=100, queue="b", at=50)
    world.submit("b1", 2, seconds=100, queue="b", at=51)
    world.submit("b2", 2, seconds=100, queue="b", at=52)
    assert len(world.evicted) == 2, "the third would give b more than a has left"


def test_scores() -> None:
    bar = np.array([10.0, -10.0, np.nan, 0.0])
    assert is_better(12.0, bar, 20).tolist() == [True, True, False, True]
    assert is_better(11.9, bar, 20).tolist() == [False, True, False, True]
    assert is_better(-8.0, bar, 20).tolist() == [False, True, False, False]
    assert is_better(np.nan, bar, 0).tolist() == [False] * 4
    assert is_better(10.0, bar, 0).tolist() == [False, True, False, True], "equal is not better"


POLICIES: tuple[dict[str, Any], ...] = (
    SHORTEST,
    FIFO,
    {"factors": [{"name": "served", "source": "AttainedService"}], "formula": "-served"},
    {"factors": [{"name": "waited", "source": "WaitingSeconds"}], "formula": "waited"},
    {
        "factors": [{"name": "share", "source": "FairShare"}, {"name": "left", "source": "RemainingSeconds"}],
        "formula": "share - left / 1e6",
    },
    {
        "factors": [{"name": "level", "source": "JobLevel"}, {"name": "waited", "source": "WaitingSeconds"}],
        "formula": "level * 100 - waited",
    },
    {
        "factors": [{"name": "size", "source": "Size"}, {"name": "left", "source": "EstimatedRunSeconds"}],
        "formula": "left * size",
    },
)


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_evictions_end(seed: int) -> None:
    """Without new work, a bounded number of evictions is left: whatever the policy, over queues that borrow from each other,
    over all the shapes that made others go in circles: A evicts B and B evicts A, cycles of three, what is put back after room
    was made, reclaim by one queue of what another borrowed."""
    chance = random.Random(seed)
    policy = chance.choice(POLICIES)
    rules = {
        **ON,
        "gainPercentMin": chance.choice((0, 20)),
        "perJobMax": 10**6,
        "restartCostSeconds": chance.choice((0, 10, 100)),
    }
    world = World(
        chance.choice((1, 2, 3)), 4, **{**policy, "preemption": rules, "backfill": {"mode": chance.choice(("None", "EASY"))}}
    )
    for name in ("a", "b", "c"):
        parent = chance.choice(("", "q"))
        world.step(
            ev.QueueSeen(
                queue_facts(name, policy="p", parent=parent, weight=chance.choice((1, 2)), level=chance.choice((0, 0, 1)))
            )
        )
    for number in range(12):
        world.submit(
            f"j{number}",
            chance.choice((1, 2, 3, 4)),
            seconds=chance.choice((50.0, 1_000.0, 30_000.0)),
            queue=chance.choice(("q", "a", "b", "c")),
            user=chance.choice(("ann", "bob", "cid")),
            level=chance.choice((0, 1, 2)),
            preemptible=chance.random() < 0.9,
            checkpoint_s=chance.choice((None, 0.0, 100.0)),
            at=world.now + chance.choice((0, 1, 200)),
        )
    for _ in range(6):
        # Time changes scores, and who makes way by them does so at most once at any moment: every eviction goes down in an
        # order that is strict at that moment.
        before = len(world.evicted)
        world.tick(world.now + 300)
        assert max(Counter(world.evicted[before:]).values(), default=0) <= 1
        settled = len(world.evicted)
        for _ in range(3):
            world.tick(world.now)
        assert len(world.evicted) == settled
    # Nobody was stopped before it had run for as long as a stop costs: so there is a bound for any stretch of time.
    assert all(ran >= rules["restartCostSeconds"] for ran in world.ran)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["formula"])
def test_two_do_not_take_turns(policy: dict[str, Any]) -> None:
    """A has B make way, B comes back: it does not get the place back as long as nothing but a moment has passed."""
    world = World(1, 4, **{**policy, "preemption": {**ON, "perJobMax": 10**6}})
    world.submit("a", 4, seconds=20_000, preemptible=True, user="ann", level=1)
    world.submit("b", 4, seconds=100, preemptible=True, user="bob", at=100, level=2)
    world.submit("c", 3, seconds=5_000, preemptible=True, user="cid", at=101, level=0)
    for moment in range(101, 131):
        world.tick(float(moment))
    assert max(Counter(world.evicted).values(), default=0) <= 2
    assert len(world.evicted) <= 3
