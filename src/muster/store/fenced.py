"""A Store whose writes need a valid `Fence`: what a leader hands to the controllers that it runs.

Reads pass. A write is refused with NotLeading once the term has ended, and is cut short when the term ends while it is under
way (Timeout: its outcome is unknown). Concurrency and failures are those of the store inside.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from muster.objects.status import ApiError
from muster.store.contract import Binding, Store
from muster.store.guarded import GuardedStore
from muster.store.leases import Fence

T = TypeVar("T")


class FencedStore(GuardedStore):
    """See the module."""

    def __init__(self, inner: Store, fence: Fence) -> None:
        super().__init__(inner)
        self._fence = fence

    async def write(self, verb: str, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        async with self._fence.guard(f"{verb} {what}"):
            return await operation()

    async def bind_many(self, bindings: Sequence[Binding]) -> Sequence[ApiError | None]:
        return await self.write("bind", f"{len(bindings)} pods", lambda: self.inner.bind_many(bindings))
