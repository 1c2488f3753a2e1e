"""Bindings until their outcome is certain, and reports that flood nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.controllers.scheduling import create, engine_of, events, node, objects, pod, scheduling
from tests.store.stores import memory_store

from muster.controllers.scheduler import Scheduler
from muster.controllers.scheduler_binding import ONE_BY_ONE, TOGETHER, Binder, BindLimits, Job, Outcome
from muster.engine.decisions import PlacedPod
from muster.engine.plugin import Plugin, Scope
from muster.engine.pods import PodRecord
from muster.objects.conditions import find_condition
from muster.objects.status import ApiError, Conflict, Forbidden, InternalError, NotFound, Raw, Timeout
from muster.sim.clock import virtual
from muster.store.contract import Store
from muster.store.guarded import GuardedStore


class Failing(GuardedStore):
    """Fails the next bindings as it is told; None lets one through."""

    def __init__(self, inner: Store, errors: Sequence[ApiError | None]) -> None:
        super().__init__(inner)
        self.errors = list(errors)
        self.attempts = 0

    async def write(self, verb: str, what: str, operation: Any) -> Any:
        if verb == "bind":
            self.attempts += 1
            error = self.errors.pop(0) if self.errors else None
            if error is not None:
                raise error
        return await operation()


@asynccontextmanager
async def binding(store: Store, limits: BindLimits, nodes: str = "n1 n2") -> AsyncIterator[Binder]:
    binder = Binder(store, limits, has_node=lambda name: name in nodes.split())
    task = asyncio.create_task(binder.run())
    try:
        yield binder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def outcome_of(binder: Binder, placed: PlacedPod) -> Outcome:
    done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    binder.add([placed], lambda _job, outcome: done.set_result(outcome))
    return await done


def placed(raw: Raw, at: str = "n1") -> PlacedPod:
    return PlacedPod(raw["metadata"]["uid"], raw["metadata"]["namespace"], raw["metadata"]["name"], at)


@pytest.mark.parametrize("limits", [pytest.param(ONE_BY_ONE, id="one by one"), pytest.param(TOGETHER, id="together")])
@pytest.mark.parametrize(
    ("errors", "is_bound", "is_final", "attempts"),
    [
        pytest.param([None], True, False, 1, id="at once"),
        pytest.param([Timeout("?"), InternalError("?"), None], True, False, 3, id="uncertain, then bound"),
        pytest.param([Forbidden("no")], False, False, 1, id="refused"),
        pytest.param([NotFound("gone")], False, True, 1, id="gone"),
        pytest.param([Conflict("changed"), None], True, False, 2, id="in the way of another write"),
        pytest.param([Timeout("?")] * 20, False, False, 12, id="given up after minutes"),
    ],
)
def test_outcomes(limits: BindLimits, errors: list[ApiError | None], is_bound: bool, is_final: bool, attempts: int) -> None:
    @virtual
    async def scenario() -> None:
        async with memory_store() as inner:
            [made] = await create(inner, pod("a"))
            store = Failing(inner, errors)
            async with binding(store, limits) as binder:
                outcome = await outcome_of(binder, placed(made))
                assert (outcome.is_bound, outcome.is_final, store.attempts) == (is_bound, is_final, attempts)
                assert len(binder) == 0
                assert binder.failing == {}

    scenario()


@virtual
async def test_what_was_bound_elsewhere_is_final() -> None:
    async with memory_store() as store:
        [made] = await create(store, pod("a"))
        await store.bind("a", "default", "n2")
        async with binding(store, TOGETHER) as binder:
            assert (await outcome_of(binder, placed(made, "n1"))).is_final
            assert (await outcome_of(binder, placed(made, "n2"))).is_bound


@virtual
async def test_one_that_was_not_begun_with_can_be_cancelled() -> None:
    async with memory_store() as store:
        made = await create(store, pod("a"), pod("b"))
        binder = Binder(store, ONE_BY_ONE, has_node=lambda _name: True)
        outcomes: dict[str, Outcome] = {}

        def note(job: Job, outcome: Outcome) -> None:
            outcomes[job.pod.name] = outcome

        binder.add([placed(raw) for raw in made], note)
        binder.cancel([made[0]["metadata"]["uid"], "unknown"])
        task = asyncio.create_task(binder.run())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert outcomes["a"].is_cancelled
        assert outcomes["b"].is_bound


class Own(Plugin):
    """Binds by itself."""

    name = "Own"
    scope = Scope.NODE

    def bind(self, pod: PodRecord, node: str) -> bool:
        return True


@virtual
async def test_a_plugin_may_bind_in_its_own_way() -> None:
    async with memory_store() as store:
        seen: list[str] = []

        async def bind(pod: PlacedPod) -> None:
            seen.append(pod.name)
            await store.bind(pod.name, pod.namespace, pod.node, uid=pod.uid)

        scheduler = Scheduler(engine=lambda: engine_of(Own()), binders={"Own": bind})
        async with scheduling(store, scheduler):
            await create(store, node("n1"), pod("a"))
            await asyncio.sleep(5)
            assert seen == ["a"]
        async with scheduling(store, Scheduler(engine=lambda: engine_of(Own()))):
            await create(store, pod("b"))
            await asyncio.sleep(5)
            [released] = [e for e in await events(store, "Released") if e["involvedObject"]["name"] == "b"]
            assert "Own" in released["message"]
            # Tried again, slower each time.
            assert released["count"] < 6


class Signing(Own):
    """Brings its own binder along, as a plugin from another package does."""

    name = "Signing"

    async def binder(self, store: Store, placed: PlacedPod) -> None:
        notes = {"bound-by": self.name}
        await store.bind(placed.name, placed.namespace, placed.node, uid=placed.uid, annotations=notes)


@virtual
async def test_a_plugin_brings_its_own_binder() -> None:
    async with memory_store() as store, scheduling(store, Scheduler(engine=lambda: engine_of(Signing()))):
        await create(store, node("n1"), pod("a"))
        await asyncio.sleep(5)
        [bound] = await objects(store, "Pod")
        assert bound["spec"]["nodeName"] == "n1"
        assert bound["metadata"]["annotations"] == {"bound-by": "Signing"}


@virtual
async def test_a_backlog_that_can_not_be_placed_is_told_once() -> None:
    async with memory_store() as store, scheduling(store):
        await create(store, node("n1", "1"), *(pod(f"p{n}", "2") for n in range(300)))
        await asyncio.sleep(30)
        waiting = await objects(store, "Pod")
        versions = {p["metadata"]["name"]: p["metadata"]["resourceVersion"] for p in waiting}
        for raw in waiting:
            condition = find_condition(raw["status"]["conditions"], "muster.dev/Waiting") or {}
            assert condition["status"] == "True"
        # Nothing that helps anybody happens: nobody is told anything again.
        await create(store, pod("small", "1"))
        await asyncio.sleep(30)
        after = {p["metadata"]["name"]: p["metadata"]["resourceVersion"] for p in await objects(store, "Pod")}
        after.pop("small")
        changed = [name for name, version in after.items() if versions[name] != version]
        assert len(changed) in (0, 300), "either the reason is the same for all, or it has changed for all"
