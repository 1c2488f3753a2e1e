"""Parts of the server that are made when they are first needed: what asks others over HTTP.

The HTTP client is a tenth of what the server would have to load to start, and most servers ask nobody for a long time.

Concurrency: on the event loop; the modules are loaded in a thread meanwhile, so that nobody waits but those who need the part.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar


class Closes(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closes)


async def load(module: str) -> Any:
    """The module, loaded without keeping the loop from anything else."""
    return await asyncio.to_thread(importlib.import_module, module)


class Late(Generic[T]):
    """What `make` makes of `module`, once."""

    def __init__(self, module: str, make: Callable[[Any], T]) -> None:
        self._module = module
        self._make = make
        self._made: T | None = None

    async def get(self) -> T:
        if self._made is None:
            module = await load(self._module)
            if self._made is None:  # others may have waited for it too
                self._made = self._make(module)
        return self._made

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()
