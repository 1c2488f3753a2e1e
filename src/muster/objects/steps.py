"""Work that stops between its steps, so that whoever does it can let others run: a generator whose value is what it returns.

Pure; on whichever task or thread it is driven.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


def done_at_once(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value


async def done_in_turns(steps: Steps[T], turn: Callable[[], Awaitable[None]]) -> T:
    """With `turn` awaited between two steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        await turn()
