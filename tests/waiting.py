"""Waiting for what real processes and servers do in their own time; a minute is far more than any of it takes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

WAIT_S = 60.0
PAUSES_S = (0.01, 0.01, 0.02, 0.02, 0.05, 0.05, 0.1)
"""Between two looks, and then always the last: what is done at once is seen at once."""


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    pauses_s = itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1]))
    async with asyncio.timeout(WAIT_S):
        while not await check():
            await asyncio.sleep(next(pauses_s))


def blocked_until(check: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    pauses_s = itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1]))
    while not check():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(next(pauses_s))


def comes_to_rest(figure: Callable[[], int]) -> bool:
    """Whether it ever stays the same from one look to the next."""
    last = -1
    for _ in range(100):
        if figure() == last:
            return True
        last = figure()
        time.sleep(0.3)
    return False
