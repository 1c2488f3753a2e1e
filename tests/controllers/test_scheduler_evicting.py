"""Making room on a store: how victims are ended, what is written about it, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
from tests.controllers.scheduling import condition, create, events, node, objects, places, pod, scheduling
from tests.store.stores import memory_store

from muster.objects.status import Raw, TooManyRequests
from muster.sim.clock import virtual
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore
from muster.store.guarded import GuardedStore

T = TypeVar("T")


class Watched(GuardedStore):
    """Notes every write. A removal takes `takes_s`; `minor` is the version that the server says it is."""

    def __init__(self, inner: Store, *, minor: int = 33, takes_s: float = 0.0) -> None:
        super().__init__(inner)
        self.minor, self.takes_s = minor, takes_s
        self.writes: list[str] = []
        self.removing = self.removing_most = 0
        self.refuses_evictions = 0

    async def minor_version(self) -> int:
        return self.minor

    async def write(self, verb: str, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        self.writes.append(f"{verb} {what}")
        if verb == "evict" and self.refuses_evictions:
            self.refuses_evictions -= 1
            raise TooManyRequests("the budget does not allow it")
        if verb not in ("evict", "delete"):
            return await operation()
        self.removing += 1
        self.removing_most = max(self.removing, self.removing_most)
        await asyncio.sleep(self.takes_s)
        self.removing -= 1
        return await operation()

    def about(self, name: str) -> list[str]:
        return [write for write in self.writes if f"default/{name}" in write and "events" not in write]


@asynccontextmanager
async def full(*low: Raw, cpu: str = "1", minor: int = 33, takes_s: float = 0.0) -> AsyncIterator[Watched]:
    """A node that `low` fill, and nothing noted yet."""
    async with memory_store() as inner:
        store = Watched(inner, minor=minor, takes_s=takes_s)
        async with scheduling(store):
            await create(inner, node("n1", cpu), *low)
            await asyncio.sleep(5.0)
            assert all((await places(inner)).values())
            store.writes.clear()
            yield store


async def budget(store: EmbeddedStore, app: str, allowed: int) -> None:
    made = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": 1},
    }
    await create(store, made)
    budgets = await store.resource("policy", "PodDisruptionBudget")
    status = {
        "disruptionsAllowed": allowed,
        "currentHealthy": 1,
        "desiredHealthy": 1 - allowed,
        "expectedPods": 1,
        "observedGeneration": 1,
    }
    await store.patch(budgets, app, {"status": status}, "default", subresource="status")
    await asyncio.sleep(1.0)


def ends_at_once(name: str, cpu: str = "1", **more: object) -> Raw:
    return pod(name, cpu, priority=0, terminationGracePeriodSeconds=0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budgets", "verb"),
    [({}, "delete"), ({"other": 0}, "delete"), ({"app": 1}, "evict"), ({"app": 0}, "delete")],
    ids=["no budget", "a budget for others", "a budget that allows it", "a budget that must be broken"],
)
@virtual
async def test_how_a_victim_is_ended(budgets: dict[str, int], verb: str) -> None:
    async with full(ends_at_once("low", labels={"app": "app"})) as store:
        for app, allowed in budgets.items():
            await budget(store.inner, app, allowed)  # type: ignore[arg-type]
        await create(store.inner, pod("high", priority=1000))
        await asyncio.sleep(5.0)
        assert [w.split()[0] for w in store.about("low") if w.startswith(("evict", "delete"))] == [verb]
        assert await places(store) == {"high": "n1"}
        assert [e["involvedObject"]["name"] for e in await events(store, "Preempted")] == ["low"]


@pytest.mark.parametrize(("minor", "is_marked"), [(0, False), (20, False), (25, False), (26, True), (33, True)])
@virtual
async def test_the_condition_is_for_servers_that_know_it(minor: int, is_marked: bool) -> None:
    async with full(pod("low", priority=0), minor=minor) as store:
        await create(store.inner, pod("high", priority=1000))
        await asyncio.sleep(1.0)
        assert (await condition(store, "low", "DisruptionTarget") != {}) == is_marked
        assert [w.split()[0] for w in store.about("low")] == (["patch", "delete"] if is_marked else ["delete"])


@virtual
async def test_victims_are_ended_side_by_side_but_not_without_bound() -> None:
    low = [ends_at_once(f"low{n}") for n in range(100)]
    async with full(*low, cpu="100", takes_s=1.0) as store:
        await create(store.inner, pod("high", "100", priority=1000))
        await asyncio.sleep(10.0)
        assert await places(store) == {"high": "n1"}
        assert store.removing_most == 64


@virtual
async def test_who_gets_the_room_in_a_moment_is_not_said_to_wait() -> None:
    """Not even when the server takes its time to end the victims."""
    async with full(ends_at_once("low"), takes_s=3.0) as store:
        await create(store.inner, pod("high", priority=1000))
        await asyncio.sleep(10.0)
        assert await places(store) == {"high": "n1"}
        assert [w.split()[0] for w in store.about("high")] == ["bind"]
        assert await events(store, "FailedScheduling") == []
        assert await condition(store, "high", "muster.dev/Waiting") == {}
        assert len(await events(store, "Scheduled")) == 2


@virtual
async def test_who_waits_for_a_grace_period_says_so_once_with_the_node() -> None:
    async with full(pod("low", priority=0), cpu="1") as store:
        await create(store.inner, pod("high", priority=1000))
        await asyncio.sleep(0.5)
        (high,) = [one for one in await objects(store, "Pod") if one["metadata"]["name"] == "high"]
        assert high["status"]["nominatedNodeName"] == "n1"
        assert (await condition(store, "high", "muster.dev/Waiting"))["reason"] == "WaitingForVictims"
        await asyncio.sleep(20.0)
        assert [w.split()[0] for w in store.about("high")] == ["patch"], "node and reason are one write, and nothing follows"
        assert len(await events(store, "FailedScheduling")) == 1
        await store.inner.delete(await store.resource("", "Pod"), "low", "default", grace_period_s=0)
        await asyncio.sleep(5.0)
        assert await places(store) == {"high": "n1"}
        assert (await condition(store, "high", "muster.dev/Waiting"))["status"] == "False"


@virtual
async def test_who_waits_for_pods_that_somebody_else_ended_says_so_after_a_moment() -> None:
    async with full(pod("low", priority=0)) as store:
        pods = await store.resource("", "Pod")
        await store.inner.delete(pods, "low", "default", grace_period_s=600)
        await create(store.inner, pod("high", priority=1000))
        await asyncio.sleep(0.5)
        assert await condition(store, "high", "muster.dev/Waiting") == {}
        await asyncio.sleep(1.0)
        assert (await condition(store, "high", "muster.dev/Waiting"))["reason"] == "WaitingForVictims"
        assert len(await events(store, "FailedScheduling")) == 1
        assert not any("delete" in write or "evict" in write for write in store.writes)


@virtual
async def test_who_waits_long_for_the_server_says_so() -> None:
    """Victims that can't even be asked to go are worth a word after ten seconds."""
    async with full(ends_at_once("low"), takes_s=60.0) as store:
        await create(store.inner, pod("high", priority=1000))
        await asyncio.sleep(8.0)
        assert await condition(store, "high", "muster.dev/Waiting") == {}
        await asyncio.sleep(4.0)
        assert (await condition(store, "high", "muster.dev/Waiting"))["reason"] == "WaitingForVictims"
        await asyncio.sleep(60.0)
        assert await places(store) == {"high": "n1"}
        assert (await condition(store, "high", "muster.dev/Waiting"))["status"] == "False"


@virtual
async def test_a_pod_that_took_the_victims_name_is_left_alone() -> None:
    async with full(ends_at_once("low"), takes_s=2.0) as store:
        await create(store.inner, pod("high", priority=1000))
        await asyncio.sleep(1.0)
        pods = await store.resource("", "Pod")
        await store.inner.delete(pods, "low", "default", grace_period_s=0)
        await create(store.inner, ends_at_once("low"))
        await asyncio.sleep(10.0)
        assert await places(store) == {"high": "n1", "low": ""}


@virtual
async def test_a_refused_eviction_is_reported_and_tried_again() -> None:
    async with full(ends_at_once("low", labels={"app": "app"})) as store:
        await budget(store.inner, "app", 1)  # type: ignore[arg-type]
        store.refuses_evictions = 2
        await create(store.inner, pod("high", priority=1000))
        await asyncio.sleep(30.0)
        assert [w.split()[0] for w in store.about("low")].count("evict") == 3
        assert await places(store) == {"high": "n1"}
