"""Each fault alone, on the real embedded store: what the component sees, and what the store saw."""

from __future__ import annotations

import asyncio

import pytest
from tests.store.stores import config_map, memory_store

from muster.objects.status import ApiError, Expired, NotFound, ServiceUnavailable, Timeout
from muster.sim.clock import current_loop, run, virtual
from muster.sim.entropy import Entropy
from muster.sim.faults import STORMY, Faults, FaultyStore, Moment, SimulatedCrash
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore


class Harness:
    """A faulty store and what it reported."""

    def __init__(self, store: EmbeddedStore, faults: Faults, seed: int = 0) -> None:
        self.notes: list[str] = []
        self.crashes = 0
        self.settled = 0
        self.store = FaultyStore(
            store,
            "it",
            Entropy(seed).stream("faults"),
            faults,
            note=lambda _who, what: self.notes.append(what),
            settled=self._settle,
            on_crash=self._crash,
        )

    async def _settle(self) -> None:
        self.settled += 1

    def _crash(self) -> None:
        self.crashes += 1


async def exists(store: Store, name: str) -> bool:
    try:
        await store.get(await store.resource("", "ConfigMap"), name, "default")
    except NotFound:
        return False
    return True


async def create(store: Store, name: str) -> None:
    await store.create(await store.resource("", "ConfigMap"), config_map(name), "default")


@virtual
async def test_without_faults_it_is_the_store() -> None:
    async with memory_store() as store:
        it = Harness(store, Faults())
        await create(it.store, "a")
        assert await exists(it.store, "a")
        assert it.store.is_atomic
        assert it.notes == [f"create configmaps default/a: version {store.resource_version}"]
        assert it.settled == 1
        with pytest.raises(ApiError):
            await create(it.store, "a")
        assert it.notes[-1] == "create configmaps default/a: AlreadyExists"


@virtual
async def test_refused_means_that_nothing_happened() -> None:
    async with memory_store() as store:
        it = Harness(store, Faults(refused_rate=1.0))
        with pytest.raises(ApiError, match="simulated"):
            await create(it.store, "a")
        assert not await exists(store, "a")


@virtual
async def test_a_lost_answer_means_that_it_happened() -> None:
    async with memory_store() as store:
        it = Harness(store, Faults(answer_lost_rate=1.0))
        with pytest.raises(Timeout, match="may or may not"):
            await create(it.store, "a")
        assert await exists(store, "a")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_is_final(moment: Moment) -> None:
    async def main() -> None:
        async with memory_store() as store:
            it = Harness(store, Faults(crash_at=(2, moment)))
            await create(it.store, "a")
            with pytest.raises(SimulatedCrash):
                await create(it.store, "b")
            assert await exists(store, "b") == (moment == "after")
            assert (it.crashes, it.store.is_dead) == (1, True)
            with pytest.raises(SimulatedCrash):
                await exists(it.store, "a")
            with pytest.raises(SimulatedCrash):
                await create(it.store, "c")
            with pytest.raises(SimulatedCrash):
                await anext(it.store.watch(await store.resource("", "ConfigMap")))
            assert not await exists(store, "c")

    run(main())


def test_a_crash_is_nothing_that_a_component_can_handle() -> None:
    assert not issubclass(SimulatedCrash, Exception)


@virtual
async def test_what_is_under_way_when_it_dies_does_not_arrive_unless_late() -> None:
    for late_rate in (0.0, 1.0):
        async with memory_store() as store:
            it = Harness(store, Faults(latency_s=(1.0, 1.0), late_rate=late_rate, late_s=3.0))
            task = asyncio.create_task(create(it.store, "a"))
            await asyncio.sleep(2.5)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(10)
            assert await exists(store, "a") == bool(late_rate)


@virtual
async def test_latency_goes_both_ways() -> None:
    async with memory_store() as store:
        it = Harness(store, Faults(latency_s=(1.0, 1.0)))
        started_s = current_loop().time()
        task = asyncio.create_task(it.store.create(await store.resource("", "ConfigMap"), config_map("a"), "default"))
        await asyncio.sleep(1.5)
        assert await exists(store, "a")
        assert not task.done(), "it has happened, but the answer is on its way"
        await task
        assert current_loop().time() - started_s == 2


@virtual
async def test_a_partition_cuts_requests_and_watches_and_ends() -> None:
    async with memory_store() as store:
        it = Harness(store, Faults())
        kind = await store.resource("", "ConfigMap")
        seen: list[str] = []

        async def follow() -> None:
            async for event in it.store.watch(kind, resource_version="1", bookmarks=False):
                seen.append(event.object["metadata"]["name"])  # noqa: PERF401 - kept when the watch breaks

        following = asyncio.create_task(follow())
        await create(store, "a")
        await asyncio.sleep(1)
        it.store.partition(60)
        await create(store, "b")
        with pytest.raises(Timeout, match="can't reach"):
            await exists(it.store, "a")
        assert current_loop().time() == 6
        await asyncio.sleep(40)
        assert seen == ["a"]
        with pytest.raises(ServiceUnavailable, match="cut"):
            await following
        assert current_loop().time() == 61
        assert await exists(it.store, "b")


async def collect(it: Harness, store: EmbeddedStore, version: str) -> list[int]:
    """The versions of all events from `version` to the store's present one, as the component sees them."""
    versions: list[int] = []
    kind = await store.resource("", "ConfigMap")
    while version != store.resource_version:
        try:
            async for event in it.store.watch(kind, resource_version=version, bookmarks=False):
                version = event.resource_version
                versions.append(int(version))
                if version == store.resource_version:
                    break
        except ServiceUnavailable:
            continue
    return versions


@virtual
async def test_a_broken_watch_resumes_without_a_gap() -> None:
    async with memory_store() as store:
        start = int(store.resource_version)
        for n in range(40):
            await create(store, f"c{n:02}")
        it = Harness(store, Faults(watch_broken_rate=0.4))
        assert await collect(it, store, str(start)) == list(range(start + 1, start + 41))
        assert sum("broken" in note for note in it.notes) > 5


@virtual
async def test_repeated_events_come_in_their_order() -> None:
    async with memory_store() as store:
        start = int(store.resource_version)
        for n in range(80):
            await create(store, f"c{n:02}")
        it = Harness(store, Faults(watch_broken_rate=0.2, watch_repeated_rate=0.7))
        versions = await collect(it, store, str(start))
        breaks = [i for i in range(1, len(versions)) if versions[i] != versions[i - 1] + 1]
        assert breaks, "nothing was repeated"
        for i in breaks:
            assert versions[i] <= versions[i - 1], "a repeat goes back, it never skips"
        assert set(versions) == set(range(start + 1, start + 81))


@virtual
async def test_expired_only_where_a_version_was_asked_for() -> None:
    async with memory_store() as store:
        await create(store, "a")
        it = Harness(store, Faults(expired_rate=1.0))
        kind = await store.resource("", "ConfigMap")
        with pytest.raises(Expired):
            await anext(it.store.watch(kind, resource_version="1"))
        event = await anext(it.store.watch(kind, resource_version=""))
        assert event.object["metadata"]["name"] == "a"


@virtual
async def test_each_watch_lags_by_itself() -> None:
    async with memory_store() as store:
        it = Harness(store, Faults(watch_lag_s=(0.0, 5.0)), seed=3)
        order: list[str] = []

        async def follow(kind_name: str) -> None:
            kind = await store.resource("", kind_name)
            async for _ in it.store.watch(kind, resource_version="1", bookmarks=False):
                order.append(kind_name)  # noqa: PERF401 - two watches write to one list

        tasks = [asyncio.create_task(follow(kind)) for kind in ("ConfigMap", "Secret")]
        for n in range(20):
            await create(store, f"c{n}")
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"s{n}", "namespace": "default"}}
            await store.create(await store.resource("", "Secret"), secret, "default")
        await asyncio.sleep(300)
        assert sorted(order) == ["ConfigMap"] * 20 + ["Secret"] * 20
        assert order != ["ConfigMap", "Secret"] * 20, "one kind has overtaken the other"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_the_same_seed_brings_the_same_faults() -> None:
    async def main() -> list[str]:
        async with memory_store() as store:
            it = Harness(store, STORMY, seed=5)
            for n in range(200):
                try:
                    await create(it.store, f"c{n}")
                except ApiError as error:
                    it.notes.append(error.reason)
                except SimulatedCrash:
                    break
            return [f"{current_loop().time():.9f}", *it.notes]

    assert run(main(), seed=1) == run(main(), seed=1)


def test_quiet_keeps_the_delays() -> None:
    quiet = STORMY.quiet()
    assert quiet.latency_s == STORMY.latency_s
    assert quiet == Faults(latency_s=STORMY.latency_s, watch_lag_s=STORMY.watch_lag_s)
