"""Several control planes in one simulation: a `World` each, on one virtual loop, and the links by which they reach each other.

    async def scenario(planes: Planes) -> None:
        alice, bob = planes.worlds.values()
        planes.link("bob", "interconn", "alice", lambda host: [Interconn(host, "bob")])
        await planes.run_until(everything_ran, timeout_s=600)

    simulate_planes(scenario, ["alice", "bob"], seed=3, faults=STORMY)

A link is a component of one plane that sees two stores, each through its own faults; it dies as a whole. Invariants that a
scenario registers are checked after every write that reached any of the stores.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from muster.controllers.manager import Manager
from muster.controllers.runtime import Runnable
from muster.objects.names import KUBERNETES_NAMESPACES
from muster.sim.clock import START_S, current_loop, run
from muster.sim.component import Component
from muster.sim.faults import CALM, Faults, FaultyStore, SimulatedCrash
from muster.sim.world import NO_CHAOS, Chaos, NotConverged, Predicate, World, make_namespaces
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore

T = TypeVar("T")


class LinkStore(FaultyStore):
    """Another plane's store as one run of a component sees it. It dies with the run, and the run with it."""

    primary: FaultyStore

    def check_alive(self) -> None:
        self.primary.check_alive()
        super().check_alive()


class Planes:
    """See the module. Made by `simulate_planes`."""

    def __init__(self, worlds: dict[str, World]) -> None:
        self.worlds = worlds
        self.clock = next(iter(worlds.values())).clock
        self.links: dict[str, LinkStore] = {}
        """The live ones, by run name."""

    def link(self, plane: str, name: str, other: str, controllers: Callable[[Store], Sequence[Runnable]]) -> Component:
        """Controllers in a process of `plane` that also see the store of `other`."""
        world, host = self.worlds[plane], self.worlds[other]

        async def main(store: Store, run_name: str) -> None:
            assert isinstance(store, FaultyStore)
            far = LinkStore(
                host.store,
                f"{run_name}@{other}",
                world.loop.entropy.stream("faults", run_name, other),
                store.faults,
                note=host.note,
                settled=host.check_invariants,
                on_crash=lambda: component.kill(f"died at {other}"),
            )
            far.primary = store
            self.links[run_name] = far
            manager = Manager(store, controllers(far), clock=world.clock, name=name)
            try:
                await manager.run()
            finally:
                self.links.pop(run_name, None)

        component = world.add_component(f"{plane}-{name}", main)
        return component

    def cut(self, seconds: float) -> None:
        """No link works for a while."""
        for link in self.links.values():
            link.partition(seconds)

    def invariant(self, name: str, check: Callable[[], Awaitable[None]]) -> None:
        """`check` raises AssertionError when what must always hold, over all planes, does not."""
        for world in self.worlds.values():
            world.invariant(name, lambda _world: check())

    def calm_down(self) -> None:
        for world in self.worlds.values():
            world.calm_down()
        for link in self.links.values():
            link.faults = link.primary.faults

    async def run_until(self, predicate: Predicate, *, timeout_s: float, every_s: float = 0.5, what: str = "") -> None:
        """Let time pass until `predicate` holds. NotConverged when it does not within `timeout_s` of virtual time."""
        loop = current_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            await self._look()
            outcome = predicate()
            if (await outcome) if inspect.isawaitable(outcome) else outcome:
                return
            if loop.time() >= deadline_s:
                raise NotConverged(f"{what or 'it'} did not come within {timeout_s:g} s")
            await asyncio.sleep(every_s)

    async def run_for(self, seconds: float, *, every_s: float = 0.5) -> None:
        """Let time pass."""
        loop = current_loop()
        end_s = loop.time() + seconds
        while loop.time() < end_s:
            await self._look()
            await asyncio.sleep(min(every_s, end_s - loop.time()))
        await self._look()

    async def _look(self) -> None:
        for world in self.worlds.values():
            await world.check_invariants()
            world.raise_failure()


def simulate_planes(
    scenario: Callable[[Planes], Awaitable[T]],
    names: Sequence[str],
    *,
    seed: int = 0,
    faults: Faults = CALM,
    chaos: Chaos = NO_CHAOS,
    start_s: float = START_S,
) -> tuple[T, list[str]]:
    """Run `scenario` with one new world for each name; its result and the trace of all of them."""
    trace: list[str] = []

    async def main() -> T:
        loop = current_loop()
        loop.tolerated = (SimulatedCrash,)
        worlds: dict[str, World] = {}
        for name in names:
            entropy = loop.entropy.fork("store", name).bytes
            store = await EmbeddedStore.open(None, clock=loop.clock, writer="inline", entropy=entropy)
            worlds[name] = World(loop, store, faults=faults, chaos=chaos, name=name)
            worlds[name].trace = trace
        try:
            for world in worlds.values():
                await make_namespaces(world.store, KUBERNETES_NAMESPACES)
                world.start_chaos()
            result = await scenario(Planes(worlds))
            for world in worlds.values():
                world.raise_failure()
            return result
        except BaseException as error:
            error.add_note(f"planes seed {seed}; the end of their trace:\n{worlds[names[0]].tail()}")
            raise
        finally:
            for world in worlds.values():
                await world.end()

    return run(main(), seed=seed, start_s=start_s), trace
