"""When work will start: one future by hand, the width by what came out, and the promise on a workload that nobody fitted.

See docs/eta.md for the figures, and `muster.sim.habits` for the workload.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine import events as ev
from muster.engine.facts import RunFacts
from muster.engine.machine import Engine
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.engine.work import Work
from muster.policy.calibration import CONFIDENCE, KEPT_MIN, Calibration, log_wait, wait_of
from muster.policy.forward import GRID_MIN, Lane, Runs, Scene, Waits, starts
from muster.policy.order import PolicyOrder
from muster.sim.eta_measure import main, measure
from muster.sim.habits import Settings, generate
from tests.engine.building import PROFILE, node, pod
from tests.policy.building import GPU, SHORTEST, World, queue_facts, user_facts

ONE, TWO = 0, 1
LANES = (Lane((1.0,)), Lane((2.0,)))


def nobody() -> Iterator[Waits]:
    return iter(())


@pytest.mark.parametrize(
    ("mode", "line", "expected"),
    [
        pytest.param("None", [Waits(0, TWO, 10), Waits(1, ONE, 100)], {0: 55, 1: 0}, id="skips what does not fit"),
        pytest.param("Strict", [Waits(0, TWO, 10), Waits(1, ONE, 100)], {0: 50, 1: 60}, id="nobody passes"),
        pytest.param("EASY", [Waits(0, TWO, 10), Waits(1, ONE, 50)], {0: 50, 1: 0}, id="what ends in time passes"),
        pytest.param("EASY", [Waits(0, TWO, 10), Waits(1, ONE, 51)], {0: 50, 1: 60}, id="what would delay the head does not"),
    ],
)
def test_one_future(mode: str, line: list[Waits], expected: dict[int, float]) -> None:
    """Two GPUs, one of them in use for 50 seconds."""
    scene = Scene(free=[[1.0]], lanes=LANES, mode=mode)  # type: ignore[arg-type]
    found = starts(scene, [Runs(50.0, [(0, (1.0,))])], line, nobody(), frozenset(range(len(line))))
    assert found == (expected | {0: 100} if mode == "None" else expected)


@pytest.mark.parametrize(
    ("said_end", "said_s", "expected"),
    [
        pytest.param(None, 51.0, {0: 50.0, 1: 60.0}, id="it is thought to run too long"),
        pytest.param(100.0, 90.0, {0: 50.0, 1: 0.0}, id="the head is thought to wait longer"),
        pytest.param(20.0, 50.0, {0: 50.0, 1: 60.0}, id="the head is thought to start sooner"),
    ],
)
def test_who_may_pass_is_decided_by_what_is_said(said_end: float | None, said_s: float, expected: dict[int, float]) -> None:
    scene = Scene(free=[[1.0]], lanes=LANES, mode="EASY")
    running = [Runs(50.0, [(0, (1.0,))], said_end=said_end)]
    line = [Waits(0, TWO, 10), Waits(1, ONE, 40.0, said_s=said_s)]
    assert starts(scene, running, line, nobody(), frozenset({0, 1})) == expected


def test_what_comes_later_goes_before_only_if_its_place_is_better() -> None:
    scene = Scene(free=[[0.0]], lanes=LANES)
    running = [Runs(100.0, [(0, (1.0,))])]
    for key, waits in ((-1.0, 130.0), (1.0, 100.0)):
        found = starts(scene, running, [Waits(0.0, ONE, 5)], iter([Waits(key, ONE, 30, 20.0)]), frozenset({0}))
        assert found == {0: waits}


def test_places_change_as_time_passes() -> None:
    line = [Waits(0.0, ONE, 10), Waits(1.0, ONE, 10)]
    scene = Scene(free=[[0.0]], lanes=LANES, later=[(60.0, [1.0, 0.0])])
    assert starts(scene, [Runs(100.0, [(0, (1.0,))])], line, nobody(), frozenset({0, 1})) == {1: 100.0, 0: 110.0}


def test_a_future_has_an_end() -> None:
    scene = Scene(free=[[0.0]], lanes=LANES, events_max=50)

    def others() -> Iterator[Waits]:
        at = 0.0
        while True:
            at += 1.0
            yield Waits(-1.0, ONE, 1.0, at)

    [found] = starts(scene, [Runs(1.0, [(0, (1.0,))])], [Waits(0.0, ONE, 5)], others(), frozenset({0})).values()
    assert math.isfinite(found)


def test_who_scores_enough_has_others_make_way() -> None:
    """One GPU, in use for 1000 seconds since 400 by work that makes way for keys of -8 and below, and comes back as -4."""
    scene = Scene(free=[[0.0]], lanes=LANES, restart_s=300.0)
    held = [(0, (1.0,))]
    for key, since, expected in ((-8.0, -400.0, 0.0), (-7.0, -400.0, 1000.0), (-8.0, -100.0, 1000.0)):
        running = [Runs(1000.0, held, -8.0, -4.0, ONE, since)]
        assert starts(scene, running, [Waits(key, ONE, 50)], nobody(), frozenset({0})) == {0: expected}


def test_who_made_way_goes_on_with_what_it_had_left_and_a_restart() -> None:
    scene = Scene(free=[[0.0]], lanes=LANES, restart_s=300.0)
    running = [Runs(1000.0, [(0, (1.0,))], -8.0, -4.0, ONE, -400.0)]
    line = [Waits(-9.0, ONE, 50.0), Waits(-2.0, ONE, 5.0)]
    # 50 seconds of the first, then 1300 of the one that was stopped, which stands before the second.
    assert starts(scene, running, line, nobody(), frozenset({0, 1})) == {0: 0.0, 1: 1350.0}


def test_nobody_is_stopped_for_room_that_no_node_has() -> None:
    scene = Scene(free=[[0.0], [0.0]], lanes=LANES)
    running = [Runs(end, [(node, (1.0,))], -1.0, 0.0, ONE, -9.0) for node, end in ((0, 50.0), (1, 70.0))]
    assert starts(scene, running, [Waits(-5.0, TWO, 5.0)], nobody(), frozenset({0})) == {0: 141.0}


@pytest.mark.parametrize("mode", ["None", "EASY", "Strict"])
def test_work_at_a_limit_waits_for_its_own_and_keeps_nobody_waiting(mode: str) -> None:
    """Four GPUs, one of them in use for 50 seconds by somebody who may have one."""
    lanes = (Lane((1.0,), dues=((0, 1.0),)), Lane((1.0,)))
    scene = Scene(free=[[3.0]], lanes=lanes, mode=mode, purses=[0.0])  # type: ignore[arg-type]
    running = [Runs(50.0, [(0, (1.0,))], lane=0)]
    line = [Waits(0, 0, 20), Waits(1, 0, 20), Waits(2, 1, 500)]
    assert starts(scene, running, line, nobody(), frozenset({0, 1, 2})) == {0: 50.0, 1: 70.0, 2: 0.0}


def test_who_makes_way_gives_back_what_its_limit_had_lent() -> None:
    """One GPU. Who is stopped and comes back may have one, so the other one of theirs waits until it is done."""
    lanes = (Lane((1.0,), dues=((0, 1.0),)), Lane((1.0,)))
    scene = Scene(free=[[0.0]], lanes=lanes, restart_s=0.0, purses=[0.0])
    running = [Runs(100.0, [(0, (1.0,))], -8.0, -4.0, 0, -10.0)]
    line = [Waits(-9.0, 1, 30.0), Waits(-3.0, 0, 5.0)]
    assert starts(scene, running, line, nobody(), frozenset({0, 1})) == {0: 0.0, 1: 130.0}


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), min_size=1, max_size=12),
    st.tuples(st.integers(0, 8), st.integers(0, 4)),
    st.integers(1, 5),
)
def test_many_nodes_are_looked_at_as_few_are(free: list[tuple[int, int]], piece: tuple[int, int], count: int) -> None:
    """The same nodes one by one, and in one operation."""
    lane = Lane(tuple(float(one) for one in piece), count)
    room = [[float(one) for one in node] for node in free]
    full = [[-1.0, -1.0]] * GRID_MIN
    line = [Waits(0.0, 0, 10.0)]
    few, many = (starts(Scene(free=nodes, lanes=(lane,)), [], line, nobody(), frozenset({0})) for nodes in (room, room + full))
    assert few == many


# -- the width -----------------------------------------------------------------------------------------------------------------


def test_no_interval_before_anything_is_known() -> None:
    calibration = Calibration()
    for _ in range(KEPT_MIN - 1):
        calibration.add(5.0, 0.1)
    assert calibration.interval(5.0, 1.0) is None


@given(st.integers(0, 2**32), st.floats(0.1, 3.0))
def test_waits_that_stay_as_they_are_are_covered_as_promised(seed: int, scale: float) -> None:
    calibration, held = Calibration(), []
    state = seed
    for turn in range(900):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        level = ((state >> 11) + 0.5) / 2**53
        middle, distance = 4.2 + (turn * 7 % 50) / 10, scale * math.log(level / (1 - level))
        span = calibration.interval(middle, 1.0)
        if span is not None:
            held.append(span[0] <= max(middle + distance, log_wait(0)) <= span[1])
            calibration.count(has_held=held[-1])
        calibration.add(middle, distance)
    assert abs(sum(held) / len(held) - CONFIDENCE) < 0.04


def test_a_change_for_the_worse_is_followed() -> None:
    calibration, held = Calibration(), []
    for turn in range(1_500):
        distance = (turn * 37 % 101) / 101 * (1.0 if turn < 500 else 5.0)
        span = calibration.interval(6.0, 1.0)
        if span is not None:
            held.append(span[0] <= 6.0 + distance <= span[1])
            calibration.count(has_held=held[-1])
        calibration.add(6.0, distance)
    assert abs(sum(held[-800:]) / 800 - CONFIDENCE) < 0.04


def test_a_checkpoint_of_the_width() -> None:
    first, second = Calibration(), Calibration()
    for turn in range(1_200):
        first.add(turn % 9, (turn * 37 % 101) / 50)
        first.count(has_held=turn % 10 > 0)
    second.restore(json.loads(json.dumps(first.checkpoint())))
    assert second.interval(4.0, 1.3) == first.interval(4.0, 1.3)
    assert wait_of(log_wait(77.0)) == pytest.approx(77.0)


# -- in the order --------------------------------------------------------------------------------------------------------------


def learned(world: World) -> None:
    runs = [
        RunFacts(user="ann", type=sort, seconds=seconds) for sort, seconds in (("x", 100.0), ("y", 1_000.0)) for _ in range(20)
    ]
    world.step(ev.RunsSeen(runs))


def unit(world: World, name: str) -> str:
    return next(one for one in world.order.ranked("q") if one.rpartition("/")[2] == name)


def test_a_place_says_when() -> None:
    world = World(gpus=8)
    learned(world)
    world.submit("runs", 8, user="ann", type="y")
    world.submit("first", 8, at=10.0, user="ann", type="x")
    world.submit("second", 8, at=20.0, user="ann", type="x")
    places = [world.order.place_of(unit(world, name), 20.0) for name in ("first", "second")]
    likely = [place.likely_start for place in places if place is not None and place.likely_start is not None]
    assert likely[0] == pytest.approx(1_000, rel=0.4)
    assert likely[1] - likely[0] == pytest.approx(100, rel=0.6)
    assert [place.confidence for place in places if place is not None] == [0.0, 0.0]  # nothing was measured yet
    assert places[0] is not None
    assert (places[0].grounds, places[0].start_grounds) == (
        "20 runs of user ann, type x",
        f"not measured yet: 0 of {KEPT_MIN} starts seen",
    )


def test_what_if_it_were_smaller() -> None:
    world = World(gpus=8)
    learned(world)
    world.submit("runs", 6, user="ann", type="y")
    world.submit("waits", 8, at=10.0, user="ann", type="x")
    before = world.order.book.table.row_of.copy()
    work = Work(queue="q", user="ann", type="x", submitted=10.0)
    forecaster = world.order.forecaster
    small = forecaster.asked(work, {GPU: 2}, 10.0, unit(world, "waits"))
    large = forecaster.asked(work, {GPU: 8}, 10.0, unit(world, "waits"))
    assert small is not None
    assert large is not None
    assert small.likely == 10.0
    assert large.likely > 300.0
    assert world.order.book.table.row_of == before
    assert forecaster.asked(work, {"example.com/none": 1}, 10.0) is None


def test_limits_on_what_is_in_use_at_once_are_played() -> None:
    world = World(gpus=8)
    learned(world)
    limits = {"limits": {"concurrent": {GPU: 2}}}
    world.step(
        ev.UserSeen(user_facts("ann", **limits)), ev.QueueSeen(queue_facts("few", policy="p", limits={"jobsRunning": 1}))
    )
    world.submit("runs", 2, user="ann", type="y")
    world.submit("waits", 1, at=10.0, user="ann", type="x")
    world.submit("one", 1, at=11.0, user="bob", type="x", queue="few")
    world.submit("other", 1, at=12.0, user="bob", type="x", queue="few")
    assert (world.parked["waits"], world.parked["other"]) == ("UserLimitReached", "QueueLimitReached")
    forecaster = world.order.forecaster
    waits = forecaster.of(unit(world, "waits"), 12.0)
    other = forecaster.of(world.order.ranked("few")[0], 12.0)
    assert waits is not None
    assert other is not None
    assert waits.likely == pytest.approx(1_000, rel=0.4), "until its own work ends, though six GPUs are free"
    assert 12.0 < other.likely < waits.likely, "until the first of its queue ends, whose runs are shorter"
    work = Work(queue="q", user="ann", type="x", submitted=12.0)
    asked, never = (forecaster.asked(work, {GPU: count}, 12.0) for count in (2, 3))
    assert asked is not None
    assert asked.likely > 300.0
    assert never is None, "more than ann may ever have"
    free = forecaster.asked(Work(queue="q", user="cyd", type="x", submitted=12.0), {GPU: 3}, 12.0)
    assert free is not None
    assert free.likely == 12.0


def test_what_a_new_period_must_end_is_not_forecast() -> None:
    world = World(gpus=8)
    learned(world)
    spent = {"standing": {"stopped": "BudgetSpent: the budget of May is spent"}}
    world.step(ev.UserSeen(user_facts("ann", status=spent)))
    world.submit("waits", 1, at=10.0, user="ann", type="x")
    assert world.order.forecaster.of(unit(world, "waits"), 10.0) is None


def test_shorter_work_is_put_where_the_policy_would_put_it() -> None:
    world = World(gpus=8, **SHORTEST)
    learned(world)
    world.submit("runs", 8, user="ann", type="y")
    world.submit("long", 8, at=10.0, user="ann", type="y")
    short = world.order.forecaster.asked(Work(queue="q", user="ann", type="x", submitted=10.0), {GPU: 8}, 10.0)
    long = world.order.forecaster.of(unit(world, "long"), 10.0)
    assert short is not None
    assert long is not None
    assert short.likely <= long.likely


def test_what_is_held_is_not_forecast() -> None:
    world = World(gpus=8)
    world.submit("runs", 8)
    world.submit("held", 8, at=1.0, hold="a look at it")
    assert world.order.forecaster.of(unit(world, "held"), 1.0) is None


def test_starts_are_learned_from_and_kept_in_checkpoints() -> None:
    world = World(gpus=1)
    learned(world)
    for turn in range(KEPT_MIN + 5):
        now = 1_000.0 * turn
        world.submit(f"a{turn}", 1, at=now, user="ann", type="x")
        world.submit(f"b{turn}", 1, at=now + 1, user="ann", type="x")
        start = world.order.forecaster.of(unit(world, f"b{turn}"), now + 1)
        world.end(f"a{turn}", at=now + 100.0)
        world.end(f"b{turn}", at=now + 200.0)
    assert start is not None
    assert start.confidence == CONFIDENCE
    assert start.earliest is not None
    assert start.latest is not None
    assert start.earliest <= now + 100.0 <= start.latest
    kept = json.loads(json.dumps(world.order.checkpoint()))
    again = PolicyOrder()
    again.attach(world.engine.state)
    again.restore(kept)
    assert again.checkpoint()["forecasts"] == kept["forecasts"]
    assert again.checkpoint()["learned"] == kept["learned"]


def test_an_order_that_forecasts_nothing_keeps_nothing_for_it() -> None:
    quiet, usual = PolicyOrder(forecasts=False), PolicyOrder()
    for order in (quiet, usual):
        made = Engine([Profile(PROFILE, [Fit()])], order=order)
        made.step([ev.NodeSeen(node("n", cpu="1")), ev.PodSeen(pod("a", cpu="1")), ev.PodSeen(pod("b", cpu="1"))], 1.0)
        assert len(made.waiting) == 1
    assert len(usual.forecaster.futures.arrivals.kept) == 2
    assert not quiet.forecaster.futures.arrivals.kept


# -- the promise ---------------------------------------------------------------------------------------------------------------


def test_the_workload_is_what_it_says() -> None:
    jobs = generate(Settings(seed=3, jobs=4_000))
    assert jobs == generate(Settings(seed=3, jobs=4_000))
    days = jobs[-1].submit_s / 86_400
    assert sum(job.run_s * job.gpus for job in jobs) / (32 * 86_400 * days) == pytest.approx(0.95, rel=0.25)
    lengths = sorted(job.run_s for job in jobs)
    assert 200 < lengths[len(lengths) // 2] < 4_000
    assert sum(lengths) / len(lengths) > 3 * lengths[len(lengths) // 2]
    assert {job.gpus for job in jobs} >= {1, 8}


def test_the_measure_from_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "2", "--jobs", "40", "--policy", "easy", "--load", "0.5", "--no-has-estimates"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["seed"], one["policy"], one["jobs"]) for one in found] == [(1, "easy", 40), (2, "easy", 40)]
    with pytest.raises(SystemExit):
        main(["--policy", "none"])
    assert "policy 'none'" in capsys.readouterr().err


SAMPLE = [pytest.param(313, "balanced", 2_000, id="a sample")]
"""Of all seeds the one in which the fewest have to wait: it is the quickest."""
POLICIES = ("balanced", "easy", "multifactor")
ALL = [pytest.param(seed, policy, 4_000, id=f"{policy} {seed}") for seed in range(301, 341) for policy in POLICIES]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(("seed", "policy", "jobs"), ALL if os.environ.get("MUSTER_SOAK") else SAMPLE)
def test_intervals_hold_as_promised_and_are_narrow(seed: int, policy: str, jobs: int) -> None:
    """No seed from 301 on was looked at while the method was made."""
    measured = measure(Settings(seed=seed, jobs=jobs), policy)
    assert measured.intervals >= 100
    assert abs(measured.coverage - CONFIDENCE) <= 0.02
    assert measured.relative_width <= 0.5
