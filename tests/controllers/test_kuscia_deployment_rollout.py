"""Rolling updates, scaling and back-off, as arithmetic; and that a rollout of any start comes to its end within its bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.controllers.kuscia_deployment_rollout import (
    New,
    Replica,
    Rollout,
    Strategy,
    backoff_s,
    bounds,
    rollout,
    scaled,
)

NOW = 1_000_000.0
ROLLING = Strategy(max_surge=1, max_unavailable=0)
RECREATE = Strategy(is_recreate=True)


def pod(index: int, template: str = "new", **more: Any) -> Replica:
    given = {"is_ready": True, "has_node": True, "created_s": NOW - 100 + index, **more}
    return Replica(name=f"{template}-{index}", uid=f"u-{template}-{index}", index=index, template_hash=template, **given)


def pods(count: int, template: str = "new", **more: Any) -> list[Replica]:
    return [pod(index, template, **more) for index in range(count)]


def summary(result: Rollout) -> tuple[list[int], list[str]]:
    return [one.index for one in result.create], [one.name for one in result.delete]


@pytest.mark.parametrize(
    ("value", "total", "up", "number"),
    [
        (3, 10, True, 3),
        ("25%", 10, True, 3),
        ("25%", 10, False, 2),
        ("0%", 10, True, 0),
        ("100%", 3, False, 3),
        (0, 0, True, 0),
    ],
)
def test_scaled(value: int | str, total: int, up: bool, number: int) -> None:
    assert scaled(value, total, up=up) == number


@pytest.mark.parametrize("value", ["", "%", "x%", "-5%", -1, "5", True, "1.5%", "1000000%"])
def test_not_a_share(value: Any) -> None:
    with pytest.raises(ValueError, match=r"number nor a percentage|negative"):
        scaled(value, 10, up=True)


@pytest.mark.parametrize(
    ("strategy", "desired", "found"),
    [
        pytest.param(Strategy(), 4, (1, 1), id="a quarter each"),
        pytest.param(Strategy(), 1, (1, 0), id="of one"),
        pytest.param(Strategy(max_surge=0, max_unavailable=0), 3, (0, 1), id="both nothing"),
        pytest.param(Strategy(max_surge=0, max_unavailable="20%"), 3, (0, 1), id="rounded to nothing"),
        pytest.param(Strategy(max_surge=0, max_unavailable=9), 3, (0, 3), id="more than there are"),
    ],
)
def test_bounds(strategy: Strategy, desired: int, found: tuple[int, int]) -> None:
    assert bounds(strategy, desired) == found


@pytest.mark.parametrize(
    ("desired", "strategy", "there", "create", "delete"),
    [
        pytest.param(3, ROLLING, [], [0, 1, 2], [], id="from nothing"),
        pytest.param(3, ROLLING, pods(3), [], [], id="all there"),
        pytest.param(3, ROLLING, [pod(0), pod(2)], [1], [], id="a gap is filled"),
        pytest.param(2, ROLLING, pods(4), [], ["new-3", "new-2"], id="scaled down, youngest first"),
        pytest.param(1, ROLLING, [pod(0), pod(1, has_node=False, is_ready=False)], [], ["new-1"], id="waiting ones first"),
        pytest.param(1, ROLLING, [pod(0, is_ready=False), pod(1)], [], ["new-0"], id="unready ones first"),
        pytest.param(0, ROLLING, pods(2), [], ["new-1", "new-0"], id="to nothing"),
        pytest.param(
            2, ROLLING, [pod(0, is_deleting=True), pod(1)], [2], [], id="a deleted one is replaced under another name"
        ),
        pytest.param(2, ROLLING, pods(2, "old"), [0], [], id="surge first"),
        pytest.param(2, ROLLING, [*pods(2, "old"), pod(0)], [], ["old-1"], id="then one leaves"),
        pytest.param(2, ROLLING, [*pods(2, "old"), pod(0, is_ready=False)], [], [], id="not before the new one is ready"),
        pytest.param(
            2, ROLLING, [pod(0, "old"), pod(1, "old", is_ready=False), pod(0)], [], ["old-1"], id="who serves nobody goes first"
        ),
        pytest.param(2, Strategy(max_surge=0, max_unavailable=1), pods(2, "old"), [], ["old-1"], id="without a surge"),
        pytest.param(2, RECREATE, pods(2, "old"), [], ["old-0", "old-1"], id="recreate: all leave"),
        pytest.param(2, RECREATE, pods(1, "old", is_deleting=True), [], [], id="recreate: waits for the last"),
        pytest.param(2, RECREATE, [], [0, 1], [], id="recreate: then all come"),
        pytest.param(
            2, ROLLING, [*pods(2), pod(0, "old", is_ended=True)], [], ["old-0"], id="what ended before the update goes"
        ),
    ],
)
def test_rollout(desired: int, strategy: Strategy, there: list[Replica], create: list[int], delete: list[str]) -> None:
    assert summary(rollout(desired, strategy, there, "new", NOW)) == (create, delete)


def ended(index: int, *, ago_s: float, attempt: int = 1, ran_s: float = 1.0) -> Replica:
    return pod(index, is_ready=False, is_ended=True, ended_s=NOW - ago_s, attempt=attempt, ran_s=ran_s)


@pytest.mark.parametrize(("attempt", "pause_s"), [(0, 10), (1, 10), (2, 20), (3, 40), (6, 300), (1000, 300)])
def test_backoff(attempt: int, pause_s: float) -> None:
    assert backoff_s(attempt) == pause_s


def test_a_crashed_pod_waits_and_is_then_replaced_with_the_next_attempt() -> None:
    early = rollout(1, ROLLING, [ended(0, ago_s=4)], "new", NOW)
    assert (early.create, early.delete, early.again_s) == ([], [], 6.0)
    late = rollout(1, ROLLING, [ended(0, ago_s=10)], "new", NOW)
    assert late.create == [New(1, 2)]
    assert [one.name for one in late.delete] == ["new-0"]
    fifth = rollout(1, ROLLING, [ended(0, ago_s=100, attempt=5)], "new", NOW)
    assert fifth.again_s == 60.0


def test_after_the_replacement_was_made_the_ended_one_only_goes() -> None:
    """A crash between making the one and deleting the other."""
    result = rollout(1, ROLLING, [ended(0, ago_s=10), pod(1, attempt=2)], "new", NOW)
    assert summary(result) == ([], ["new-0"])


def test_a_good_run_starts_the_count_anew() -> None:
    result = rollout(1, ROLLING, [ended(0, ago_s=10, attempt=7, ran_s=3600)], "new", NOW)
    assert result.create == [New(1, 1)]


def test_one_crash_does_not_hold_up_the_others() -> None:
    result = rollout(3, ROLLING, [ended(0, ago_s=1), pod(1)], "new", NOW)
    assert summary(result) == ([2], [])
    assert result.again_s == 9.0


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, Strategy, list[Replica]]:
    desired = draw(st.integers(0, 6))
    strategy = draw(
        st.one_of(
            st.just(RECREATE),
            st.builds(
                Strategy,
                st.just(False),
                st.sampled_from([0, 1, 2, "25%", "100%"]),
                st.sampled_from([0, 1, 2, "25%", "100%"]),
            ),
        )
    )
    there = []
    for template in ("new", "old", "older"):
        for index in draw(st.sets(st.integers(0, 6), max_size=5)):
            is_ended = draw(st.booleans())
            there.append(
                pod(
                    index,
                    template,
                    is_ready=not is_ended and draw(st.booleans()),
                    is_ended=is_ended,
                    ended_s=NOW - draw(st.integers(0, 400)),
                    is_deleting=draw(st.booleans()),
                    has_node=draw(st.booleans()),
                )
            )
    return desired, strategy, there


@given(situations())
def test_comes_to_its_end_within_its_bounds(case: tuple[int, Strategy, list[Replica]]) -> None:
    """Pods become ready when they are made, and go when they are deleted: in the end exactly the new ones are there, and no
    step made too many or took too many away."""
    desired, strategy, there = case
    now = NOW
    for _ in range(80):
        result = rollout(desired, strategy, there, "new", now)
        assert summary(rollout(desired, strategy, there, "new", now)) == summary(result)
        active = [one for one in there if one.is_active]
        ready = sum(1 for one in active if one.is_ready)
        gone = {one.name for one in result.delete}
        surge, unavailable = (0, desired) if strategy.is_recreate else bounds(strategy, desired)
        if result.create:
            assert len(active) + len(result.create) <= desired + surge
        taken = sum(1 for one in active if one.name in gone and one.is_ready)
        if taken and not strategy.is_recreate:
            assert ready - taken >= desired - unavailable
        assert len({new.index for new in result.create}) == len(result.create)
        assert not {f"new-{new.index}" for new in result.create} & {one.name for one in there}
        there = [one for one in there if one.name not in gone and not one.is_deleting]
        there = [one if one.is_ended else msgspec.structs.replace(one, is_ready=True, has_node=True) for one in there]
        there += [pod(new.index, attempt=new.attempt) for new in result.create]
        now += 10
    assert sorted(one.template_hash for one in there if one.is_active) == ["new"] * desired
    assert len(there) == desired
