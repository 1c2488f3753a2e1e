"""Waiting for what real processes and servers do in their own time; a minute is far more than any of it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

WAIT_S = 60.0


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await check():
            await asyncio.sleep(0.1)


def blocked_until(check: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
