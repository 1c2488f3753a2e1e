"""A component of a simulated system: what would be a process of its own, over all its runs.

Concurrency: each run is one task of the world, with whatever that starts. When its `FaultyStore` crashes or `kill` is called,
the run can neither read nor write from that moment; its task is cancelled, and a new run begins after a while.
Invariant: at most one run of a component can reach the store at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from muster.sim.faults import FaultyStore, SimulatedCrash
from muster.store.contract import Store

if TYPE_CHECKING:
    from muster.sim.world import World


class Component:
    """See the module. Made by `World.add_component`."""

    def __init__(self, world: World, name: str, main: Callable[[Store, str], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self.runs = 0
        self.store: FaultyStore | None = None
        self.is_wanted = True
        """Whether it is started again when it dies."""
        self._world = world
        self._main = main
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self._task is not None and not self._task.done() and self.store is not None and not self.store.is_dead

    def start(self) -> None:
        assert not self.is_up, f"{self.name} is up"
        world = self._world
        self.runs += 1
        run_name = f"{self.name}#{self.runs}"
        faults = world.faults if self.runs == 1 else msgspec.structs.replace(world.faults, crash_at=None)
        store = FaultyStore(
            world.store,
            run_name,
            world.loop.entropy.stream("faults", run_name),
            faults,
            note=world.note,
            settled=world.check_invariants,
            on_crash=lambda: self._bury(store),
        )
        self.store = store
        world.note(run_name, "started")
        self._task = world.spawn(self._live(store, run_name), name=run_name)

    async def _live(self, store: FaultyStore, run_name: str) -> None:
        try:
            await self._main(store, run_name)
        except SimulatedCrash:
            return
        except asyncio.CancelledError:
            if not store.is_dead:
                raise
        except Exception as error:  # noqa: BLE001 - a component that fails as a whole fails the scenario
            self._world.fail(error, f"component {run_name} ended with {error!r}")

    def kill(self, why: str = "killed") -> None:
        """As SIGKILL does: from this moment it neither reads nor writes."""
        if self.store is not None and not self.store.is_dead:
            self._world.note(self.store.component, why)
            self.store.kill()
            self._bury(self.store)

    async def stop(self) -> None:
        """As SIGTERM does: it may put things in order. It is not started again."""
        self.is_wanted = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _bury(self, store: FaultyStore) -> None:
        if self._task is not None:
            self._task.cancel()
        if store is self.store and self.is_wanted:
            least_s, most_s = self._world.chaos.restart_s
            wait_s = self._world.chance.uniform(least_s, most_s)
            self._world.loop.call_later(wait_s, self._revive)

    def _revive(self) -> None:
        if self.is_wanted and not self.is_up and not self._world.is_over:
            self.start()
