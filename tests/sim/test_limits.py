"""No interleaving of submissions, completions and crashes lets anyone over a limit or loses a second of use.

A state machine over the real parts: people submit, stop, restart, suspend, move and delete jobs, alone and many at once; an
administrator divides limits anew and moves users; pods end, fail, are preempted and taken away by force; controllers and agents
are killed, crash at a write of their own, lose the lead or the network; days, months and years end meanwhile, also where clocks
are put back. At every write the limits are checked (`limits_world`), and in the end the ledger against what ran.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from tests.sim.limits_world import LATE_S, QUEUES, USERS, check_books, controllers, job, pages_of, prepare, without_groups

from muster.cli.usage_view import books_of
from muster.objects.meta import finalizers_of, name_of
from muster.objects.names import KUBERNETES_NAMESPACES
from muster.objects.status import Conflict, Forbidden, Invalid, NotFound, Raw
from muster.objects.time import parse_time
from muster.sim.clock import VirtualLoop, _wind_down
from muster.sim.component import Component
from muster.sim.faults import CALM, STORMY, FaultyStore, Moment, SimulatedCrash
from muster.sim.world import NO_CHAOS, World, make_namespaces
from muster.store.embedded import Actor, EmbeddedStore

SOAK = bool(os.environ.get("MUSTER_SOAK"))
STARTS = (
    "2026-10-24T23:57:00Z",
    "2026-10-25T00:58:00Z",
    "2026-11-01T05:58:00Z",
    "2026-12-31T23:57:00Z",
    "2028-02-28T23:57:00Z",
)
"""Before the end of a day, before clocks are put back in Europe and in America, before the end of a year, in a leap year."""
GIL = Actor(user="gil")
seconds = st.sampled_from([3, 8, 20, 45])
users = st.sampled_from(USERS)


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop: VirtualLoop | None = None
        self.world: World
        self.number = 0

    # -- the frame -----------------------------------------------------------------------------------------------------------

    @initialize(seed=st.integers(0, 2**16), start=st.sampled_from(STARTS), is_stormy=st.booleans())
    def begin(self, seed: int, start: str, is_stormy: bool) -> None:
        self.loop = VirtualLoop(seed=seed, start_s=parse_time(start))
        self.loop.tolerated = (SimulatedCrash,)
        asyncio.set_event_loop(self.loop)
        self.do(self._begin(is_stormy))

    async def _begin(self, is_stormy: bool) -> None:
        loop = self.loop
        assert loop is not None
        store = await EmbeddedStore.open(None, clock=loop.clock, writer="inline", entropy=loop.entropy.fork("store").bytes)
        self.world = World(loop, store, faults=CALM, chaos=NO_CHAOS)
        await make_namespaces(store, KUBERNETES_NAMESPACES)
        await prepare(self.world)
        self.world.faults = STORMY if is_stormy else CALM
        self.world.add_manager("controllers", controllers, replicas=2)
        await self.world.run_for(15)

    def do(self, coro: Coroutine[Any, Any, None], then_s: float = 0.7) -> None:
        """And a moment for what follows from it."""

        async def step() -> None:
            await coro
            if not self.world.is_over:
                await self.world.run_for(then_s)

        assert self.loop is not None
        self.loop.run_until_complete(step())

    def teardown(self) -> None:
        loop = self.loop
        if loop is None:
            return
        try:
            if hasattr(self, "world") and not self.world.is_over:
                try:
                    self.world.raise_failure()
                    self.do(self._settle())
                except BaseException as error:
                    error.add_note(f"the end of the trace:\n{self.world.tail()}")
                    raise
                finally:
                    self.do(self.world.end())
        finally:
            _wind_down(loop)
            asyncio.set_event_loop(None)
            loop.close()

    async def _settle(self) -> None:
        """No more faults; everything is cancelled, noted and let go; then the books must be right."""
        world = self.world
        world.calm_down()
        for name in await self.names():
            await self.change("Job", name, {"spec": {"state": "Cancelled"}}, actor=None)
        await world.run_until(self._is_done, timeout_s=1800, every_s=2, what="all noted")
        await check_books(world)
        noted, _ = await pages_of(world)
        found = {kind: await world.objects("muster.dev", kind) for kind in ("UserGroup", "User", "Queue", "UsageRecord")}
        anew, problems = books_of(
            accounts=[(kind, raw) for kind in ("UserGroup", "User", "Queue") for raw in found[kind]],
            pages=found["UsageRecord"],
            pods=await world.objects("", "Pod"),
            now_ms=round(world.clock() * 1000),
        )
        assert not problems
        assert without_groups(anew.ledger) == without_groups(noted)

    async def _is_done(self) -> bool:
        pods = await self.world.objects("", "Pod")
        return not any(
            (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed") or "muster.dev/ledger" in finalizers_of(pod)
            for pod in pods
        )

    # -- what people do ------------------------------------------------------------------------------------------------------

    async def names(self) -> list[str]:
        return sorted(name_of(one) for one in await self.world.objects("muster.dev", "Job"))

    async def submit(self, user: str, queue: str, cpu: int, replicas: int, run_s: int, **spec: Any) -> None:
        self.number += 1
        raw = job(f"{spec.pop('kind', 'j')}{self.number}-{run_s}", user, queue=queue, cpu=cpu, replicas=replicas, **spec)
        store = self.world.store
        assert isinstance(store, EmbeddedStore)
        try:
            await store.create(await store.resource("muster.dev", "Job"), raw, "default", actor=Actor(user=user))
        except Forbidden as error:
            if "LimitReached" not in str(error) and "ExceedsLimit" not in str(error):
                raise

    async def change(self, kind: str, name: str, patch: Raw, *, actor: Actor | None) -> None:
        store = self.world.store
        assert isinstance(store, EmbeddedStore)
        resource = await store.resource("muster.dev", kind)
        with contextlib.suppress(Forbidden, NotFound, Conflict, Invalid):  # it may be more than there is, or too late
            await store.patch(resource, name, patch, "default" if kind == "Job" else None, actor=actor)

    @rule(user=users, queue=st.sampled_from(QUEUES), cpu=st.integers(1, 3), replicas=st.integers(1, 2), run_s=seconds)
    def submits(self, user: str, queue: str, cpu: int, replicas: int, run_s: int) -> None:
        self.do(self.submit(user, queue, cpu, replicas, run_s))

    @rule(user=users, run_s=seconds, is_important=st.booleans())
    def submits_what_makes_way_or_has_others_make_way(self, user: str, run_s: int, is_important: bool) -> None:
        spec = {"priority": 100} if is_important else {"preemptible": True}
        self.do(self.submit(user, "q", 2, 1, run_s, **spec))

    @rule(user=users, run_s=seconds)
    def submits_what_fails_once(self, user: str, run_s: int) -> None:
        self.do(self.submit(user, "q", 1, 2, run_s, kind="f", retry={"limit": 1, "backoffSeconds": 2}))

    @rule(user=users, run_s=seconds)
    def submits_many_at_once(self, user: str, run_s: int) -> None:
        async def burst() -> None:
            await asyncio.gather(*(self.submit(user, "q", 1, 1, run_s) for _ in range(6)))

        self.do(burst())

    @rule(user=users, queue=st.sampled_from(QUEUES))
    def uses_up_what_may_be_used_in_a_day_and_wants_more(self, user: str, queue: str) -> None:
        """Of the queue `short`, of the group's budget, or of the user's own limit if it has one by then."""

        async def use() -> None:
            for _ in range(2):
                await self.submit(user, queue, 3, 1, 45)
                await self.world.run_for(50, every_s=5)
            await self.world.run_for(LATE_S, every_s=5)
            await self.submit(user, queue, 1, 1, 3)

        self.do(use(), then_s=5)

    @rule(data=st.data(), state=st.sampled_from(["Running", "Suspended", "Stopped", "Cancelled"]))
    def wants_it_otherwise(self, data: st.DataObject, state: str) -> None:
        self.with_a_job(data, lambda name: self.change("Job", name, {"spec": {"state": state}}, actor=None))

    @rule(data=st.data(), queue=st.sampled_from(QUEUES))
    def moves_it(self, data: st.DataObject, queue: str) -> None:
        self.with_a_job(data, lambda name: self.change("Job", name, {"spec": {"queue": queue}}, actor=None))

    @rule(data=st.data())
    def deletes_it(self, data: st.DataObject) -> None:
        async def delete(name: str) -> None:
            await self.world.store.delete(await self.world.store.resource("muster.dev", "Job"), name, "default")

        self.with_a_job(data, delete)

    def with_a_job(self, data: st.DataObject, act: Any) -> None:
        async def find() -> None:
            names = await self.names()
            if names:
                await act(names[data.draw(st.integers(0, 100), label="which") % len(names)])

        self.do(find())

    async def take_away(self, which: int, count: int) -> None:
        pods = await self.world.store.resource("", "Pod")
        names = sorted(name_of(one) for one in await self.world.objects("", "Pod"))
        for place in range(min(count, len(names))):
            with contextlib.suppress(NotFound):
                await self.world.store.delete(pods, names[(which + place) % len(names)], "default", grace_period_s=0)

    @rule(which=st.integers(0, 100))
    def takes_a_pod_away_by_force(self, which: int) -> None:
        self.do(self.take_away(which, 1))

    @rule(which=st.integers(0, 100))
    def takes_pods_away_by_force_while_nobody_leads(self, which: int) -> None:
        async def take() -> None:
            for name, component in sorted(self.world.components.items()):
                if name.startswith("controllers"):
                    component.kill()
            await self.take_away(which, 3)

        self.do(take())

    # -- what administrators do ----------------------------------------------------------------------------------------------

    async def give(self, user: str, cpu: int) -> None:
        await self.change("User", user, {"spec": {"limits": {"concurrent": {"cpu": cpu}}}}, actor=GIL)

    @rule(ann=st.integers(1, 6), bob=st.integers(1, 6), is_cleared=st.booleans())
    def divides_anew(self, ann: int, bob: int, is_cleared: bool) -> None:
        """Both at once: each would fit beside what the other had, and whichever comes second must fit beside the first."""

        async def both() -> None:
            if is_cleared:
                await self.give("ann", 1)
                await self.give("bob", 1)
            await asyncio.gather(self.give("ann", ann), self.give("bob", bob))

        self.do(both())

    @rule(user=users, core_s=st.sampled_from([0, 36, 108]))
    def bounds_the_consumption(self, user: str, core_s: int) -> None:
        limits = [{"resource": "cpu", "amount": f"{core_s * 1000 // 3600}m", "period": "Day"}]
        self.do(self.change("User", user, {"spec": {"limits": {"consumption": limits if core_s else None}}}, actor=GIL))

    @rule(user=users, jobs=st.integers(1, 5))
    def bounds_what_is_submitted(self, user: str, jobs: int) -> None:
        self.do(self.change("User", user, {"spec": {"limits": {"jobsSubmitted": jobs}}}, actor=GIL))

    @rule(user=users, group=st.sampled_from(["left", "right"]))
    def moves_a_user(self, user: str, group: str) -> None:
        self.do(self.change("User", user, {"spec": {"group": group}}, actor=GIL))

    # -- what goes wrong -----------------------------------------------------------------------------------------------------

    def strike(self, which: int, act: Callable[[Component, FaultyStore], None]) -> None:
        async def on_the_loop() -> None:
            alive = [one for _, one in sorted(self.world.components.items()) if one.is_up]
            struck = alive[which % len(alive)] if alive else None
            if struck is not None and struck.store is not None:
                act(struck, struck.store)

        self.do(on_the_loop())

    @rule(which=st.integers(0, 3))
    def is_killed(self, which: int) -> None:
        self.strike(which, lambda component, _: component.kill())

    @rule(which=st.integers(0, 3), ahead=st.integers(1, 12), moment=st.sampled_from(["before", "after"]))
    def will_crash_at_a_write(self, which: int, ahead: int, moment: Moment) -> None:
        def crash(_: Component, store: FaultyStore) -> None:
            store.faults = msgspec.structs.replace(store.faults, crash_at=(store.writes + ahead, moment))

        self.strike(which, crash)

    @rule(which=st.integers(0, 3), cut_s=st.sampled_from([2.0, 12.0, 40.0]))
    def is_cut_off(self, which: int, cut_s: float) -> None:
        self.strike(which, lambda _, store: store.partition(cut_s))

    @rule()
    def loses_the_lead(self) -> None:
        self.do(self.world._lose_lease())

    # -- time ----------------------------------------------------------------------------------------------------------------

    @rule(passed_s=st.sampled_from([0.3, 2, 10, 30, 90]))
    def time_passes(self, passed_s: float) -> None:
        self.do(self.world.run_for(passed_s, every_s=5))

    @precondition(lambda self: self.world.clock() % 86_400 > 85_000)
    @rule()
    def the_day_ends(self) -> None:
        self.do(self.world.run_for(86_400 - self.world.clock() % 86_400 + 1, every_s=5))


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_nobody_gets_over_a_limit_and_no_second_is_lost(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the machine believes that it is: periods are those of UTC."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        run_state_machine_as_test(
            Interleavings,
            settings=settings(
                max_examples=200 if SOAK else 4,
                stateful_step_count=40 if SOAK else 25,
                deadline=None,
                phases=[Phase.explicit, Phase.reuse, Phase.generate, *([Phase.shrink] if SOAK else [])],
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        monkeypatch.undo()
        time.tzset()
