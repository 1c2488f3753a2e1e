"""A whole system in one process and in virtual time: store, controllers, machines with their agents, and faults, by seed.

    async def scenario(world: World) -> None:
        world.add_manager("controller", lambda: [MyController()], replicas=2)
        world.add_machines(3)
        world.invariant("never oversubscribed", never_oversubscribed)
        await world.run_until(everything_runs, timeout_s=600)

    simulate(scenario, seed=7, faults=STORMY)

A *component* is what would be a process of its own: it sees the store through a `FaultyStore`, dies when that says so, and is
started again after a moment with nothing but what the store and its machine remember. The scenario itself uses `world.store`,
which has no faults.

Concurrency: one virtual loop. Invariants that the scenario registers are checked after every write that reached the store and
at every look of `run_until`; the first that fails ends the scenario. The same seed gives the same trace, line by line.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from muster.controllers.manager import Election, Manager
from muster.controllers.runtime import Runnable
from muster.objects.names import KUBERNETES_NAMESPACES, NAMESPACE_SYSTEM
from muster.objects.status import AlreadyExists, ApiError, NotFound, Raw
from muster.sim.agent import AgentTiming, SimAgent
from muster.sim.clock import START_S, VirtualLoop, current_loop, run
from muster.sim.component import Component
from muster.sim.faults import CALM, Faults, FaultyStore, SimulatedCrash
from muster.sim.machine import Machine, PodScript, ScriptFor
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore
from muster.store.leases import LeaseTiming

T = TypeVar("T")
Check = Callable[["World"], Awaitable[None] | None]
Predicate = Callable[[], Awaitable[bool] | bool]

_TRACE_LEN_MAX = 200_000
_TAIL_LEN = 60


class NotConverged(AssertionError):
    """What the scenario waited for did not come in time."""


class InvariantBroken(AssertionError):
    """A state that must never be was seen."""


class Chaos(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to components from outside, each on average once in so many seconds; 0 means never."""

    kill_every_s: float = 0.0
    partition_every_s: float = 0.0
    partition_s: tuple[float, float] = (1.0, 30.0)
    lease_loss_every_s: float = 0.0
    """Somebody deletes a Lease of an election."""
    restart_s: tuple[float, float] = (0.1, 5.0)


NO_CHAOS = Chaos()


class World:
    """See the module. Made by `simulate`."""

    def __init__(self, loop: VirtualLoop, store: EmbeddedStore, *, faults: Faults, chaos: Chaos, name: str = "") -> None:
        """`name` tells worlds on one loop apart (`muster.sim.planes`)."""
        self.loop = loop
        self._path = (name,) if name else ()
        self.clock = loop.clock
        self.store: Store = store
        self.faults = faults
        self.chaos = chaos
        self.chance = loop.entropy.stream("world", *self._path)
        self.components: dict[str, Component] = {}
        self.machines: dict[str, Machine] = {}
        self.managers: dict[str, Manager] = {}
        """The manager of each live run, by run name."""
        self.trace: list[str] = []
        self.trace_len_max = _TRACE_LEN_MAX
        self.memory: dict[str, Any] = {}
        """For invariants that compare with what was before."""
        self.checks = 0
        self.is_over = False
        self._invariants: dict[str, Check] = {}
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._leases: dict[tuple[str, str], None] = {}

    # -- assembling ------------------------------------------------------------------------------------------------------

    def add_component(self, name: str, main: Callable[[Store, str], Coroutine[Any, Any, None]]) -> Component:
        """`main(store, run_name)` is one run of it; it gets its own faulty store each time."""
        assert name not in self.components, f"component {name} exists"
        component = self.components[name] = Component(self, name, main)
        component.start()
        return component

    def add_manager(
        self,
        name: str,
        controllers: Callable[[], Sequence[Runnable]],
        *,
        replicas: int = 1,
        timing: LeaseTiming | None = None,
        resync_s: float = 600.0,
    ) -> list[Component]:
        """Controllers in a process of their own; with several replicas they elect a leader."""
        is_elected = replicas > 1

        async def main(store: Store, run_name: str) -> None:
            election = Election(identity=run_name, name=name, timing=timing or LeaseTiming()) if is_elected else None
            manager = Manager(store, controllers(), clock=self.clock, name=name, election=election, resync_s=resync_s)
            self.managers[run_name] = manager
            try:
                await manager.run()
            finally:
                self.managers.pop(run_name, None)

        if is_elected:
            self.elect(name)
        return [self.add_component(f"{name}-{n}" if replicas > 1 else name, main) for n in range(1, replicas + 1)]

    def add_machines(
        self,
        count: int,
        *,
        prefix: str = "node",
        capacity: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        slowness: float = 1.0,
        script_for: ScriptFor | None = None,
        timing: AgentTiming | None = None,
    ) -> list[Machine]:
        """Machines `node-1`, `node-2`, ... each with an agent."""
        capacity = capacity or {"cpu": "8", "memory": "32Gi", "pods": "110"}
        made = []
        for _ in range(count):
            machine = Machine(f"{prefix}-{len(self.machines) + 1}", capacity=capacity, labels=labels, slowness=slowness)
            self.machines[machine.name] = machine
            self.add_component(f"agent-{machine.name}", self._agent_main(machine, script_for or plain_script, timing))
            made.append(machine)
        return made

    def _agent_main(
        self, machine: Machine, script_for: ScriptFor, timing: AgentTiming | None
    ) -> Callable[[Store, str], Coroutine[Any, Any, None]]:
        async def main(store: Store, run_name: str) -> None:
            assert isinstance(store, FaultyStore)
            agent = SimAgent(
                store,
                machine,
                clock=self.clock,
                script_for=script_for,
                timing=timing,
                check_alive=store.check_alive,
            )
            await agent.run()

        return main

    def switch_off(self, machine: Machine) -> None:
        """The machine dies silently, and its agent and processes with it."""
        component = self.components[f"agent-{machine.name}"]
        component.is_wanted = False
        self.note(machine.name, "switched off")
        machine.switch_off()
        component.kill("died with its machine")

    def switch_on(self, machine: Machine) -> None:
        component = self.components[f"agent-{machine.name}"]
        self.note(machine.name, "switched on")
        machine.switch_on()
        component.is_wanted = True
        if not component.is_up:
            component.start()

    def elect(self, name: str, namespace: str = NAMESPACE_SYSTEM) -> None:
        """Name a Lease of an election, so that chaos may take it."""
        self._leases[namespace, name] = None

    def is_alive(self, run_name: str) -> bool:
        """Whether this very run of a component is the present one and can reach the store."""
        component = self.components.get(run_name.partition("#")[0])
        store = component.store if component else None
        return store is not None and store.component == run_name and not store.is_dead

    def spawn(self, coro: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(coro, name=name)
        self._tasks = [t for t in self._tasks if not t.done()]
        self._tasks.append(task)
        return task

    # -- faults from outside ---------------------------------------------------------------------------------------------

    def start_chaos(self) -> None:
        """Begin to kill, cut off and take leases as `chaos` says. `calm_down` ends it."""
        happenings: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (self.chaos.kill_every_s, self._kill_one),
            (self.chaos.partition_every_s, self._partition_one),
            (self.chaos.lease_loss_every_s, self._lose_lease),
        ]
        for index, (every_s, happening) in enumerate(happenings):
            if every_s > 0:
                self.spawn(self._now_and_then(every_s, happening, index), name=f"chaos {index}")

    async def _now_and_then(self, every_s: float, happening: Callable[[], Awaitable[None]], index: int) -> None:
        chance = self.loop.entropy.stream("chaos", str(index), *self._path)
        while self.chaos is not NO_CHAOS:
            await asyncio.sleep(chance.expovariate(1.0 / every_s))
            if self.chaos is not NO_CHAOS:
                await happening()

    def calm_down(self) -> None:
        """No more faults, for every component, at once; what they did remains to be mended."""
        self.note("world", "calms down")
        self.chaos = NO_CHAOS
        self.faults = self.faults.quiet()
        for component in self.components.values():
            if component.store is not None:
                component.store.faults = self.faults

    async def _kill_one(self) -> None:
        alive = [c for c in self.components.values() if c.is_up]
        if alive:
            self.chance.choice(alive).kill()

    async def _partition_one(self) -> None:
        alive = [c for c in self.components.values() if c.is_up]
        if alive:
            store = self.chance.choice(alive).store
            assert store is not None
            store.partition(self.chance.uniform(*self.chaos.partition_s))

    async def _lose_lease(self) -> None:
        if self._leases:
            namespace, name = self.chance.choice(list(self._leases))
            try:
                await self.store.delete(await self.store.resource("coordination.k8s.io", "Lease"), name, namespace)
                self.note("world", f"deleted lease {namespace}/{name}")
            except NotFound:
                pass

    # -- watching --------------------------------------------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        assert len(self.trace) < self.trace_len_max, f"the trace is longer than {self.trace_len_max} lines: something spins"
        self.trace.append(f"{self.loop.time():12.6f} {who}: {what}")

    def invariant(self, name: str, check: Check) -> None:
        """`check` raises AssertionError when what must always hold does not. It may read `world.store`; it takes no time."""
        self._invariants[name] = check

    async def check_invariants(self) -> None:
        if self._failure is not None:
            return
        self.checks += 1
        for name, check in self._invariants.items():
            try:
                outcome = check(self)
                if inspect.isawaitable(outcome):
                    await outcome
            except AssertionError as error:
                self.fail(InvariantBroken(f"{name}: {error}"), f"invariant broken: {name}")
                return

    def fail(self, error: BaseException, what: str) -> None:
        """End the scenario with `error` at its next look."""
        self.note("world", what)
        if self._failure is None:
            self._failure = error
            self._failed.set()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def run_until(self, predicate: Predicate, *, timeout_s: float, every_s: float = 0.5, what: str = "") -> None:
        """Let time pass until `predicate` holds. NotConverged when it does not within `timeout_s` of virtual time."""
        deadline_s = self.loop.time() + timeout_s
        while True:
            await self.check_invariants()
            self.raise_failure()
            outcome = predicate()
            if (await outcome) if inspect.isawaitable(outcome) else outcome:
                return
            if self.loop.time() >= deadline_s:
                raise NotConverged(f"{what or getattr(predicate, '__name__', 'it')} did not come within {timeout_s:g} s")
            await self._pass(every_s)

    async def run_for(self, seconds: float, *, every_s: float = 0.5) -> None:
        """Let time pass."""
        end_s = self.loop.time() + seconds
        while self.loop.time() < end_s:
            await self.check_invariants()
            self.raise_failure()
            await self._pass(min(every_s, end_s - self.loop.time()))
        await self.check_invariants()
        self.raise_failure()

    async def _pass(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._failed.wait()
        except TimeoutError:
            pass

    async def objects(self, group: str, kind: str, namespace: str | None = None) -> list[Raw]:
        """All objects of a kind, without faults."""
        return (await self.store.list(await self.store.resource(group, kind), namespace)).items

    async def create(self, obj: Raw) -> Raw:
        """Create `obj` as a user would, without faults."""
        group = str(obj["apiVersion"]).rpartition("/")[0]
        resource = await self.store.resource(group, str(obj["kind"]))
        return await self.store.create(resource, obj, obj["metadata"].get("namespace"))

    async def end(self) -> None:
        """Kill everything and close the store."""
        self.is_over = True
        for component in self.components.values():
            component.is_wanted = False
            if component.store is not None:
                component.store.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()

    def tail(self, count: int = _TAIL_LEN) -> str:
        return "\n".join(self.trace[-count:])


def plain_script(_pod: Raw) -> PodScript:
    """Half a minute of work that succeeds."""
    return PodScript()


def simulate(
    scenario: Callable[[World], Awaitable[T]],
    *,
    seed: int = 0,
    faults: Faults = CALM,
    chaos: Chaos = NO_CHAOS,
    start_s: float = START_S,
    namespaces: Sequence[str] = KUBERNETES_NAMESPACES,
) -> tuple[T, list[str]]:
    """Run `scenario` in a new world; its result and the trace. An error carries the seed and the end of the trace as a note."""
    trace: list[str] = []

    async def main() -> T:
        loop = current_loop()
        loop.tolerated = (SimulatedCrash,)
        store = await EmbeddedStore.open(None, clock=loop.clock, writer="inline", entropy=loop.entropy.fork("store").bytes)
        world = World(loop, store, faults=faults, chaos=chaos)
        world.trace = trace
        try:
            await make_namespaces(store, namespaces)
            world.start_chaos()
            result = await scenario(world)
            world.raise_failure()
            return result
        except BaseException as error:
            error.add_note(f"world seed {seed}; the end of its trace:\n{world.tail()}")
            raise
        finally:
            await world.end()

    return run(main(), seed=seed, start_s=start_s), trace


async def make_namespaces(store: Store, names: Sequence[str]) -> None:
    resource = await store.resource("", "Namespace")
    for name in names:
        try:
            await store.create(resource, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        except AlreadyExists:
            pass
        except ApiError as error:
            error.add_note(f"while making namespace {name}")
            raise
