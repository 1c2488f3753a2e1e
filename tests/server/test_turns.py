"""Turns: the scheduler is never kept out by those who ask, and nobody keeps out the others."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from muster.objects.status import NotFound, TooManyRequests
from muster.server.turns import WAITING_MAX, WAITING_PER_USER_MAX, Turns


async def test_others_are_served_between_two_questions() -> None:
    turns, done = Turns(), list[str]()

    async def schedule() -> None:
        while True:
            done.append("step")
            await asyncio.sleep(0)

    scheduler = asyncio.create_task(schedule())
    await asyncio.gather(*(turns.take("ann", lambda n=n: done.append(f"answer {n}")) for n in range(5)))  # type: ignore[misc]
    scheduler.cancel()
    answers = [at for at, one in enumerate(done) if one != "step"]
    assert [done[at] for at in answers] == [f"answer {n}" for n in range(5)]
    assert all("step" in done[first:second] for first, second in itertools.pairwise(answers))


async def test_who_asks_too_much_is_told_and_others_are_answered() -> None:
    turns = Turns()
    await turns._lock.acquire()
    mine = [asyncio.create_task(turns.take("ann", lambda n=n: n)) for n in range(WAITING_PER_USER_MAX)]  # type: ignore[misc]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match=f"{WAITING_PER_USER_MAX} questions of 'ann'"):
        await turns.take("ann", int)
    others = [asyncio.create_task(turns.take(f"u{n}", lambda n=n: n)) for n in range(WAITING_MAX - len(mine))]  # type: ignore[misc]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match=f"{WAITING_MAX} in all"):
        await turns.take("one more", int)
    mine[0].cancel()
    await asyncio.sleep(0)
    last = asyncio.create_task(turns.take("ann", lambda: 99))
    turns._lock.release()
    answered = await asyncio.gather(*mine, *others, last, return_exceptions=True)
    assert [type(answered[0]), answered[1:8], answered[-1]] == [asyncio.CancelledError, list(range(1, 8)), 99]
    assert not turns._waiting


async def test_an_error_is_the_answer_and_the_next_has_its_turn() -> None:
    turns = Turns()

    def missing() -> int:
        raise NotFound("no such job")

    with pytest.raises(NotFound):
        await turns.take("ann", missing)
    assert await turns.take("ann", lambda: 7) == 7
    assert not turns._waiting
