"""What belongs to one request to write rather than to one object: who asks and how, what they are told, whose turn it is.

Made for each request, and handed through all its steps. On the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from muster.objects.status import Raw
from muster.store.contract import WriteOptions
from muster.store.embedded.admission import Actor

WARNINGS_MAX: Final = 20
LARGE_BYTES: Final = 64 * 1024
"""From this size on, an object's steps take milliseconds each."""
_PAUSES_MAX: Final = 24
"""A write that begins anew because something changed meanwhile is soon not interrupted any more, so that it comes to an end."""

Turn = Callable[[], Awaitable[None]]


class WriteContext:
    __slots__ = ("_pauses_left", "_turn", "actor", "is_judged", "options", "size_bytes", "unhooked", "warnings")

    def __init__(
        self,
        options: WriteOptions,
        actor: Actor | None = None,
        warnings: list[str] | None = None,
        turn: Turn | None = None,
    ) -> None:
        self.options = options
        self.actor = actor
        self.warnings = warnings
        self.size_bytes = 0
        """Of the object as it was last looked at."""
        self._turn = turn
        self._pauses_left = _PAUSES_MAX
        self.is_judged = False
        """Whether this is about a body of its own kind, which `Shaper.admit_body` has let pass."""
        self.unhooked: Raw | None = None
        """The object as it was before admission hooks changed it, until its managed fields are made."""

    async def pause(self) -> None:
        """Between two steps: when the object is large, let others run, and go on when it is this one's turn again."""
        if self.size_bytes < LARGE_BYTES or not self._pauses_left:
            return
        self._pauses_left -= 1
        await (asyncio.sleep(0) if self._turn is None else self._turn())

    def warn(self, text: str) -> None:
        if self.warnings is not None and len(self.warnings) < WARNINGS_MAX and text not in self.warnings:
            self.warnings.append(text)
