"""Work that follows changes in the store, done beside requests: one task that is woken, works until all is done, and sleeps.

On the event loop. `_wake` may be called from anywhere on it, as often as one likes; a round that is under way is followed by
another one then. A round that fails is tried again in a while, whether or not something changes: the disk may be full.
"""

from __future__ import annotations

import abc
import asyncio
from typing import ClassVar

from muster.objects.status import ApiError
from muster.server.logs import logger

log = logger(__name__)

_RETRY_S = 5.0


class Upkeep(abc.ABC):
    """Whoever does such work says in `_round` what it is."""

    what: ClassVar[str]
    """In the log, when it fails."""

    def __init__(self) -> None:
        self._has_work = asyncio.Event()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @abc.abstractmethod
    async def _round(self) -> None:
        """Do all there is to do. What it raises on is still to be done."""

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def idle(self) -> None:
        """Until everything is as it should be."""
        await self._idle.wait()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def _wake(self) -> None:
        self._idle.clear()
        self._has_work.set()

    async def _run(self) -> None:
        while True:
            if not self._has_work.is_set():
                self._idle.set()
            await self._has_work.wait()
            self._has_work.clear()
            try:
                await self._round()
            except Exception as error:  # whatever it is, it is no reason to stop for good
                told = None if isinstance(error, ApiError) else error
                log.warning("upkeep failed", what=self.what, exc_info=told, error=str(error))
                await asyncio.sleep(_RETRY_S)
                self._has_work.set()
