"""Jobs in queues, end to end in virtual time: the real store, controllers, scheduler and policies.

Jobs wait in the order of their policy and are told their place; administrators hold, pin and move them; queues are bound to
pools; the statuses of queues and pools follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.controllers.scheduling import PROFILE, create, node, objects
from tests.store.stores import memory_store

from muster.cli.queue_view import place_lines
from muster.controllers.job import JobController
from muster.controllers.manager import Manager
from muster.controllers.places import PASS_S, PlaceKeeper
from muster.controllers.pod_groups import PodGroups
from muster.controllers.pools import PoolKeeper
from muster.controllers.queues import QueueKeeper
from muster.controllers.runtime import Runnable
from muster.controllers.scheduler import Scheduler
from muster.engine.machine import Engine
from muster.engine.plugins.fit import Fit
from muster.engine.plugins.node_pool import NodePool
from muster.engine.profile import Profile
from muster.objects.labels import Muster
from muster.objects.meta import name_of
from muster.objects.status import Raw
from muster.policy.order import PolicyOrder
from muster.policy.places import Places, place_to_raw, places_of
from muster.sim.clock import current_loop, virtual
from muster.store.contract import Store


def engine() -> Engine:
    return Engine([Profile(PROFILE, [NodePool(), Fit()])], order=PolicyOrder())


def policy(name: str = "by-level", **spec: Any) -> Raw:
    factors = [
        {"name": "level", "source": "JobLevel", "weight": 10},
        {"name": "waited", "source": "WaitingSeconds", "weight": 1, "scale": 3600},
    ]
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "SchedulingPolicy",
        "metadata": {"name": name},
        "spec": {"factors": factors, "backfill": {"mode": "Strict"}, **spec},
    }


def queue(name: str, **spec: Any) -> Raw:
    spec = {"policy": "by-level", **spec}
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def pool(name: str, *nodes: str) -> Raw:
    spec = {"nodes": list(nodes)}
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec}


def job(name: str, *, cpu: str = "4", where: str = "q", **spec: Any) -> Raw:
    role: Raw = {"name": "w", "command": ["x"], "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"roles": [role], "queue": where, **spec},
    }


class World:
    def __init__(self, store: Store, scheduler: Scheduler) -> None:
        self.store, self.scheduler = store, scheduler

    @property
    def engine(self) -> Engine:
        found = self.scheduler.live_engine()
        assert found is not None
        return found

    @property
    def places(self) -> Places:
        found = places_of(self.engine)
        assert found is not None
        return found

    async def get(self, kind: str, name: str) -> Raw:
        resource = await self.store.resource("muster.dev", kind)
        return await self.store.get(resource, name, "default" if kind == "Job" else None)

    async def status(self, name: str, kind: str = "Job") -> Raw:
        found: Raw = (await self.get(kind, name)).get("status") or {}
        return found

    async def change(self, name: str, patch: Raw) -> None:
        await self.store.patch(await self.store.resource("muster.dev", "Job"), name, patch, "default")

    async def note(self, name: str, **notes: str | None) -> None:
        await self.change(name, {"metadata": {"annotations": {f"muster.dev/{key}": text for key, text in notes.items()}}})

    async def line(self, where: str = "q") -> list[str]:
        await asyncio.sleep(5)
        return [one.job.removeprefix("Job/default/") for one in self.places.places(where, self.engine.state.now)]

    async def phases(self) -> dict[str, str]:
        jobs = await objects(self.store, "Job", "muster.dev")
        return {name_of(one): (one.get("status") or {}).get("phase", "") for one in jobs}

    async def finish(self, name: str) -> None:
        """All pods of the job have done their work."""
        pods = await self.store.resource("", "Pod")
        await self.store.patch(pods, f"{name}-w-0", {"status": {"phase": "Succeeded"}}, "default", subresource="status")
        await asyncio.sleep(2 * PASS_S)


@asynccontextmanager
async def world(*raws: Raw) -> AsyncIterator[World]:
    async with memory_store() as store:
        scheduler = Scheduler(engine=engine)
        live = scheduler.live_engine
        controllers: list[Runnable] = [scheduler, JobController(), PodGroups()]
        controllers += [PlaceKeeper(live), QueueKeeper(live), PoolKeeper(live)]
        manager = Manager(store, controllers, clock=current_loop().clock)
        manager.start()
        try:
            await create(store, *raws)
            await asyncio.sleep(5)
            yield World(store, scheduler)
        finally:
            await manager.stop()


@virtual
async def test_jobs_wait_in_the_order_of_their_policy_and_are_told_where_and_why() -> None:
    async with world(policy(), queue("q"), node("n1"), job("runs")) as w:
        await create(w.store, job("low", priority=1, user="ann"), job("high", priority=3), job("mid", priority=2))
        assert await w.line() == ["high", "mid", "low"]
        assert (await w.phases())["runs"] == "Starting"
        await asyncio.sleep(2 * PASS_S)
        place = (await w.status("mid"))["place"]
        assert (place["name"], place["position"]) == ("q", 2)
        assert {one["name"]: one["value"] for one in place["factors"]}["level"] == 2
        status = await w.status("q", "Queue")
        assert (status["usage"]["jobsRunning"], status["usage"]["jobsWaiting"]) == (1, 3)
        assert status["usage"]["concurrent"]["cpu"] == "4"
        assert w.places.lines()["q"].head == "Job/default/high"
        assert "head" not in status, "whose work is next is not for everybody who may read the queue"

        unit = w.places.unit_of("Job/default/low")
        assert unit is not None
        mine, ahead = (ask(unit, w.engine.state.now) for ask in (w.places.place_of, w.places.ahead_of))
        assert mine is not None
        assert ahead is not None
        answer = {"place": place_to_raw(mine), "ahead": place_to_raw(ahead)}
        text = "\n".join(place_lines(answer, w.engine.state.now))
        assert "Queue: q, place 3 of 3, policy by-level" in text
        assert "Ahead of it, at place 2: default/mid" in text
        assert next(line.split() for line in text.splitlines() if " level " in line)[1:4] == ["1", "10", "10"]

        await w.finish("runs")
        assert (await w.phases())["high"] == "Starting"
        started = await w.status("high")
        assert "place" not in started, "a job that has started stands in no queue"
        assert (await w.status("low"))["place"]["position"] == 2


@virtual
async def test_held_pinned_and_moved() -> None:
    async with world(policy(), queue("q"), queue("other"), node("n1"), job("runs")) as w:
        await create(w.store, job("a", priority=3), job("b", priority=2), job("c", priority=1))
        assert await w.line() == ["a", "b", "c"]
        await w.note("c", pin="0")
        assert await w.line() == ["c", "a", "b"]
        await w.note("c", pin=None)
        await w.note("a", hold="maintenance")
        await asyncio.sleep(2 * PASS_S)
        held = await w.status("a")
        assert (held["phase"], held["reason"]) == ("Queued", "HeldByAdmin")
        assert "maintenance" in held["message"]
        assert (await w.status("q", "Queue"))["held"] == 1
        await w.change("b", {"spec": {"queue": "other"}})
        assert await w.line("other") == ["b"]
        [waiting] = [one for one in await objects(w.store, "Pod") if name_of(one) == "b-w-0"]
        assert waiting["metadata"]["labels"][Muster.QUEUE] == "other"
        await w.change("b", {"spec": {"queue": "q"}})

        await w.finish("runs")
        assert {k: v for k, v in (await w.phases()).items() if k in "abc"} == {"a": "Queued", "b": "Starting", "c": "Queued"}
        await w.note("a", hold=None)
        assert await w.line() == ["a", "c"]
        await w.finish("b")
        assert {k: v for k, v in (await w.phases()).items() if k in "ac"} == {"a": "Starting", "c": "Queued"}
        told = {(one["involvedObject"]["name"], one["reason"]) for one in await objects(w.store, "Event")}
        assert {("a", "Held"), ("a", "Released"), ("b", "Moved"), ("c", "Pinned"), ("c", "Unpinned")} <= told


@virtual
async def test_a_queue_is_bound_to_its_pools() -> None:
    pools = (pool("east", "n1"), pool("west", "n2"))
    nodes = (node("n1", "4"), node("n2", "4"), node("n3", "4"))
    async with world(policy(), queue("q", pools=["west"]), queue("free"), *pools, *nodes) as w:
        await create(w.store, job("one"), job("two"), job("wants-both", where="free", pools=["east", "west"]))
        await asyncio.sleep(2 * PASS_S)
        placed = {name_of(one): one["spec"].get("nodeName", "") for one in await objects(w.store, "Pod")}
        assert placed == {"one-w-0": "n2", "two-w-0": "", "wants-both-w-0": "n1"}
        assert (await w.status("two"))["reason"] == "CPUInsufficient"
        west = await w.status("west", "NodePool")
        assert (west["nodes"], west["requested"]["cpu"], west["allocatable"]["cpu"]) == (["n2"], "4", "4")
        # The queue gets another pool: what waits may go there, at once.
        queues = await w.store.resource("muster.dev", "Queue")
        await w.store.patch(queues, "q", {"spec": {"pools": []}})
        await asyncio.sleep(5)
        assert {name_of(one): one["spec"].get("nodeName", "") for one in await objects(w.store, "Pod")}["two-w-0"] == "n3"
