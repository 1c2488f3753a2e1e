"""The frame around controllers: keys from changes, retries, requeue, time limits, one key at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from tests.store.stores import config_map, memory_store

from muster.controllers.actions import Create
from muster.controllers.runtime import ByName, Caches, Context, Controller, Plan, Runner, Watch, controller_key, own_key
from muster.objects.meta import owner_reference
from muster.objects.status import ServiceUnavailable
from muster.sim.clock import current_loop, virtual
from muster.store.backoff import Backoff
from muster.store.cache import Cache, Cached, ObjectKey
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore
from muster.store.hub import InformerHub
from muster.store.workqueue import QueueLimits

MAPS = Watch(group="", kind="ConfigMap")


class Probe(Controller):
    """Does what it is told, and notes when it was called for what."""

    name = "probe"
    watches = (MAPS,)
    queue_limits = QueueLimits(backoff=Backoff(base_s=1, max_s=8, spread_ratio=0))

    def __init__(self, decide: Callable[[ObjectKey], Plan] | None = None) -> None:
        self.calls: list[tuple[float, str]] = []
        self.decide = decide or (lambda _key: Plan())

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        self.calls.append((current_loop().time(), str(key)))
        return self.decide(key)

    def take(self) -> list[str]:
        taken = [key for _, key in self.calls]
        self.calls.clear()
        return taken


@asynccontextmanager
async def running(store: Store, controller: Controller) -> AsyncIterator[Runner]:
    hub = InformerHub(store)
    runner = Runner(controller, hub, clock=current_loop().clock)
    hub.start()
    task = asyncio.create_task(runner.run(store))
    try:
        await asyncio.sleep(0.5)
        yield runner
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await hub.stop()


async def put(store: EmbeddedStore, name: str, **data: str) -> None:
    await store.create(await store.resource("", "ConfigMap"), {**config_map(name), "data": data}, "default")


@virtual
async def test_what_exists_and_what_changes_is_reconciled() -> None:
    async with memory_store() as store:
        await put(store, "a")
        controller = Probe()
        async with running(store, controller) as runner:
            assert controller.take() == ["default/a"]
            assert runner.is_idle
            await put(store, "b")
            await store.patch(await store.resource("", "ConfigMap"), "a", {"data": {"x": "1"}}, "default")
            await store.delete(await store.resource("", "ConfigMap"), "b", "default")
            await asyncio.sleep(1)
            assert sorted(set(controller.take())) == ["default/a", "default/b"]


@virtual
async def test_a_failing_key_is_retried_slower_and_slower_and_holds_up_nobody() -> None:
    async with memory_store() as store:
        await put(store, "bad")
        await put(store, "good")
        failures = 4

        def decide(key: ObjectKey) -> Plan:
            nonlocal failures
            if key.name == "bad" and failures:
                failures -= 1
                raise RuntimeError("a bug")
            return Plan()

        controller = Probe(decide)
        async with running(store, controller) as runner:
            assert runner.failing == {ObjectKey("default", "bad"): "a bug"}
            await asyncio.sleep(30)
            times = [at_s for at_s, key in controller.calls if key == "default/bad"]
            assert [round(b - a) for a, b in pairwise(times)] == [1, 2, 4, 8]
            assert sum(1 for _, key in controller.calls if key == "default/good") == 1
            assert runner.failing == {}
            assert runner.queue is not None
            assert runner.queue.failures(ObjectKey("default", "bad")) == 0


@virtual
async def test_store_errors_are_retried_too() -> None:
    async with memory_store() as store:
        await put(store, "a")
        tries = 0

        class Flaky(Probe):
            async def handle(self, key: ObjectKey, context: Context) -> float | None:
                nonlocal tries
                tries += 1
                if tries < 3:
                    raise ServiceUnavailable("away")
                return None

        async with running(store, Flaky()) as runner:
            await asyncio.sleep(10)
            assert tries == 3
            assert not runner.failing


@virtual
async def test_requeue_after() -> None:
    async with memory_store() as store:
        await put(store, "a")
        controller = Probe(lambda _key: Plan(requeue_after_s=10))
        async with running(store, controller):
            await asyncio.sleep(45)
            assert [round(at_s) for at_s, _ in controller.calls] == [0, 10, 20, 30, 40]


@virtual
async def test_a_reconcile_that_hangs_is_cut_off() -> None:
    async with memory_store() as store:
        await put(store, "slow")
        await put(store, "z")
        reached: list[str] = []

        class Slow(Probe):
            timeout_s = 5.0

            async def handle(self, key: ObjectKey, context: Context) -> float | None:
                reached.append(key.name)
                if key.name == "slow":
                    await asyncio.sleep(1e9)
                return None

        async with running(store, Slow()) as runner:
            await asyncio.sleep(6)
            assert "z" in reached
            assert runner.failing[ObjectKey("default", "slow")] == "took longer than 5 s"


@virtual
async def test_actions_are_carried_out() -> None:
    async with memory_store() as store:
        await put(store, "a")
        made = config_map("made-by-controller")
        controller = Probe(lambda key: Plan([Create(made)] if key.name == "a" else []))
        async with running(store, controller):
            await asyncio.sleep(1)
            found = await store.get(await store.resource("", "ConfigMap"), "made-by-controller", "default")
            managers = [entry["manager"] for entry in found["metadata"].get("managedFields", [])]
            assert managers == ["muster-probe"]


@virtual
async def test_a_key_is_never_worked_on_twice_at_once() -> None:
    async with memory_store() as store:
        await put(store, "a")
        active, most = 0, 0

        class Busy(Probe):
            workers = 4

            async def handle(self, key: ObjectKey, context: Context) -> float | None:
                nonlocal active, most
                active += 1
                most = max(most, active)
                await asyncio.sleep(1)
                active -= 1
                return None

        async with running(store, Busy()):
            for n in range(20):
                await store.patch(await store.resource("", "ConfigMap"), "a", {"data": {"n": str(n)}}, "default")
                await asyncio.sleep(0.3)
            assert most == 1


@virtual
async def test_keys_come_from_both_versions_and_can_be_filtered() -> None:
    async with memory_store() as store:
        watch = Watch(
            group="",
            kind="ConfigMap",
            keys=lambda obj, _caches: [ObjectKey("", obj.raw["data"].get("group", "none"))],
            matters=lambda change: "ignored" not in change.newest.labels,
        )

        class Grouped(Probe):
            watches = (watch,)

        controller = Grouped()
        kind = await store.resource("", "ConfigMap")
        async with running(store, controller):
            await put(store, "a", group="one")
            await asyncio.sleep(1)
            controller.take()
            await store.patch(kind, "a", {"data": {"group": "two"}}, "default")
            await asyncio.sleep(1)
            assert controller.take() == ["one", "two"]
            await store.patch(kind, "a", {"metadata": {"labels": {"ignored": "yes"}}}, "default")
            await asyncio.sleep(1)
            assert controller.take() == []


@virtual
async def test_a_missing_kind_is_waited_for() -> None:
    async with memory_store() as store:

        class Early(Probe):
            watches = (Watch(group="nowhere.example", kind="Thing"),)

        async with running(store, Early()) as runner:
            await asyncio.sleep(100)
            assert runner.state.startswith("waiting for Thing.nowhere.example")


@virtual
async def test_an_overflowing_queue_makes_good_later() -> None:
    async with memory_store() as store:
        for n in range(30):
            await put(store, f"c{n:02}")
        seen: set[str] = set()

        class Narrow(Probe):
            queue_limits = QueueLimits(capacity=4)

            async def handle(self, key: ObjectKey, context: Context) -> float | None:
                seen.add(key.name)
                await asyncio.sleep(0.01)
                return None

        async with running(store, Narrow()):
            await asyncio.sleep(60)
            assert len(seen) == 30
            seen.clear()
            for n in range(30):
                await store.patch(await store.resource("", "ConfigMap"), f"c{n:02}", {"data": {"x": "y"}}, "default")
            await asyncio.sleep(60)
            assert len(seen) == 30


@virtual
async def test_key_functions() -> None:
    async with memory_store() as store:
        kind = await store.resource("", "ConfigMap")
        owner = await store.create(kind, config_map("owner"), "default")
        child = config_map("child")
        child["metadata"]["ownerReferences"] = [owner_reference(owner)]
        await store.create(kind, child, "default")
        hub = InformerHub(store)
        informer = await hub.informer("", "ConfigMap")
        hub.start()
        await hub.wait_synced()
        cached = informer.cache.get(ObjectKey("default", "child"))
        assert cached is not None
        caches = Caches({})
        assert list(own_key(cached, caches)) == [ObjectKey("default", "child")]
        assert list(controller_key("", "ConfigMap")(cached, caches)) == [ObjectKey("default", "owner")]
        assert list(controller_key("apps", "ConfigMap")(cached, caches)) == []
        assert list(controller_key("", "Pod")(cached, caches)) == []
        await hub.stop()


def test_a_controller_must_say_how_to_decide() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Controller()  # type: ignore[abstract]


@pytest.mark.parametrize("is_leaving_shown", [True, False])
def test_objects_by_name_are_read_as_they_are_asked_for(is_leaving_shown: bool) -> None:
    cache, read = Cache(), []
    for name, meta in (("a", {}), ("b", {"deletionTimestamp": "2026-01-01T00:00:00Z"})):
        cache.put(Cached("Domain", {"metadata": {"name": name, **meta}}, "1", "bytes", []))

    def note(one: Cached) -> str:
        read.append(one.key.name)
        return one.key.name.upper()

    found = ByName(cache, note, is_leaving_shown=is_leaving_shown)
    assert read == []
    assert found["a"] == "A"
    assert read == ["a"]
    assert list(found) == (["a", "b"] if is_leaving_shown else ["a"])
    assert len(found) == len(list(found))
    assert found.get("b") == ("B" if is_leaving_shown else None)
    assert "c" not in found
