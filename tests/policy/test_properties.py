"""Random histories: nothing that could legally start stays asleep, the engine comes to rest, and the same gives the same."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.engine.decisions import encode
from muster.policy.backfill import room_for
from muster.policy.refusals import Refusal
from tests.counts import examples
from tests.policy.building import World, pod_of, queue_facts, user_facts

MODES = ("None", "EASY", "Conservative", "Strict")


def history(seed: int) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """By seed: Hypothesis likes small histories, and what goes wrong needs a full cluster and a long line."""
    chance = random.Random(seed)
    kinds = ("submit", "submit", "submit", "gang", "end", "end", "tick", "limit", "stop", "hold")
    acts: list[tuple[str, dict[str, Any]]] = []
    for number in range(60):
        act = {
            "n": number,
            "gpus": chance.choice((1, 1, 2, 4, 8)),
            "seconds": chance.choice((10.0, 50.0, 300.0, 2000.0, None)),
            "later": chance.choice((0.0, 1.0, 20.0, 100.0)),
            "queue": chance.choice(("q", "q", "r")),
            "user": chance.choice(("", "ann", "bob")),
            "pick": chance.randrange(100),
        }
        acts.append((chance.choice(kinds), act))
    return chance.choice(MODES), acts


def play(mode: str, acts: list[tuple[str, dict[str, Any]]], *, checked: bool) -> tuple[World, list[bytes]]:
    world = World(2, 8, backfill={"mode": mode})
    world.step(
        ev.QueueSeen(queue_facts("r", policy="p", weight=2)),
        ev.UserSeen(user_facts("ann", limits={"concurrent": {"nvidia.com/gpu": 6}})),
    )
    log: list[bytes] = []
    for kind, act in acts:
        world.now += act["later"]
        name = f"j{act['n']}"
        if kind == "submit":
            world.submit(name, act["gpus"], seconds=act["seconds"], queue=act["queue"], user=act["user"])
        elif kind == "gang":
            world.submit_gang(name, 2, min(act["gpus"], 8), seconds=act["seconds"])
        elif kind == "end" and world.running:
            running = sorted(world.running)
            world.end(running[act["pick"] % len(running)])
        elif kind == "limit":
            world.step(ev.UserSeen(user_facts("ann", limits={"concurrent": {"nvidia.com/gpu": act["pick"] % 12}})))
        elif kind == "stop":
            state = "Stopped" if act["pick"] % 2 else "Open"
            world.step(ev.QueueSeen(queue_facts("r", policy="p", weight=2, state=state)))
        elif kind == "hold":
            waiting = sorted(name for name in world.parked if "-" not in name)
            if waiting:
                chosen = waiting[act["pick"] % len(waiting)]
                work, gpus, _ = world.works[chosen]
                work = type(work)(
                    **{**{f: getattr(work, f) for f in work.__struct_fields__}, "hold": "" if work.hold else "wait"}
                )
                world.works[chosen] = (work, gpus, 1)
                world.step(ev.PodSeen(pod_of(chosen, work, gpus)))
        else:
            world.tick(world.now + 5)
        if checked:
            check_asleep(world)
        log += [encode(decision) for decision in world.last]
    return world, log


def check_asleep(world: World) -> None:
    """Whoever sleeps would be refused, or would find no room, if it were tried now."""
    order, engine = world.order, world.engine
    assert not engine.waiting.has_active
    for unit_id, parked in engine.waiting.parked.items():
        row = order.book.table.row_of[unit_id]
        before = int(order.book.table.refusal[row])
        if not before:
            continue
        verdict = order.gate.refuse(parked.unit, row, order.ranked_now, world.now)
        if verdict is not None:
            continue
        limit = order.gate.limit
        free = engine.state.nodes.free if limit is None else np.minimum(engine.state.nodes.free, limit)
        pieces = order.book.pieces[int(order.book.table.kind[row])]
        assert room_for(pieces, free, engine.state.nodes.capacity, order.plans.feasible) == 0, (
            f"{unit_id} sleeps ({Refusal(before).name}) and could start"
        )
        order.book.mark(row, refusal=before, is_blocked=bool(order.book.table.is_blocked[row]))


@given(st.integers(0, 2**32))
@settings(max_examples=examples(25), deadline=None)
def test_nothing_that_could_start_sleeps(seed: int) -> None:
    play(*history(seed), checked=True)


@given(st.integers(0, 2**32))
@settings(max_examples=examples(6), deadline=None)
def test_the_same_events_give_the_same_decisions(seed: int) -> None:
    assert play(*history(seed), checked=False)[1] == play(*history(seed), checked=False)[1]


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_cluster_rests(mode: str) -> None:
    world = World(0, 8, backfill={"mode": mode})
    world.submit("a", 1)
    assert not world.engine.has_work
    assert world.parked["a"]
