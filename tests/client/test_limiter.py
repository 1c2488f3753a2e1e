from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.limiter import FLOOR, Limiter


async def test_first_come_first_served() -> None:
    limiter = Limiter(1)
    await limiter.acquire()
    order: list[int] = []

    async def one(number: int) -> None:
        await limiter.acquire()
        order.append(number)
        limiter.release()

    tasks = [asyncio.create_task(one(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert limiter.is_full
    limiter.release()
    await asyncio.gather(*tasks)
    assert (order, limiter.in_flight) == ([0, 1, 2, 3, 4], 0)


async def test_a_refusal_cuts_once_and_successes_heal() -> None:
    limiter = Limiter(100)
    numbers = [await limiter.acquire() for _ in range(100)]
    for number in numbers:
        limiter.refused(number)
    assert int(limiter.limit) == 70, "all of them were sent before the cut"
    for _ in numbers:
        limiter.release()
    late = await limiter.acquire()
    limiter.refused(late)
    assert limiter.limit == FLOOR, "one at a time and still too much"
    for _ in range(100 * 100):
        limiter.succeeded()
    assert limiter.limit == 100


async def test_fewer_go_while_the_limit_is_low() -> None:
    limiter = Limiter(10)
    numbers = [await limiter.acquire() for _ in range(10)]
    limiter.refused(numbers[0])
    waiting = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0)
    for released in range(10):
        assert waiting.done() == (limiter.in_flight < 7 or released > 3)
        limiter.release()
        await asyncio.sleep(0)
    assert waiting.done()


@pytest.mark.parametrize("is_given_first", [False, True])
async def test_a_cancelled_waiter_loses_no_slot(is_given_first: bool) -> None:
    limiter = Limiter(1)
    await limiter.acquire()
    waiter = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0)
    if is_given_first:
        limiter.release()
        waiter.cancel()
    else:
        waiter.cancel()
        limiter.release()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert (limiter.in_flight, limiter.is_full) == (0, False)
    await asyncio.wait_for(limiter.acquire(), 5)


@given(st.integers(1, 8), st.lists(st.sampled_from(["acquire", "release", "cancel", "refuse", "succeed"]), max_size=60))
def test_never_more_than_allowed_and_nobody_forgotten(maximum: int, steps: list[str]) -> None:
    async def run() -> None:
        limiter = Limiter(maximum)
        tasks: list[asyncio.Task[int]] = []
        held: list[int] = []
        for step in steps:
            if step == "acquire":
                tasks.append(asyncio.create_task(limiter.acquire()))
            elif step == "release" and held:
                held.pop()
                limiter.release()
            elif step == "cancel" and tasks:
                tasks[0].cancel()
            elif step == "refuse" and held:
                limiter.refused(held[-1])
            elif step == "succeed":
                limiter.succeeded()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            held += [task.result() for task in tasks if task.done() and not task.cancelled()]
            tasks = [task for task in tasks if not task.done()]
            assert limiter.in_flight == len(held) <= maximum
        while held or tasks:
            if held:
                held.pop()
                limiter.release()
            await asyncio.sleep(0)
            held += [task.result() for task in tasks if task.done()]
            tasks = [task for task in tasks if not task.done()]
        assert limiter.in_flight == 0

    asyncio.run(run())
