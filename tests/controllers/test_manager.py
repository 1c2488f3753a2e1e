"""The manager: start, health, leader election with hand-over, a clean stop, and controllers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.controllers.helpers import Replicas, replica_set
from tests.store.stores import config_map, memory_store

from muster.controllers import cluster_controllers, embedded_controllers
from muster.controllers.manager import Election, Manager
from muster.controllers.runtime import Caches, Controller, Plan, Runnable, Watch
from muster.sim.clock import current_loop, virtual
from muster.store.cache import ObjectKey
from muster.store.embedded import EmbeddedStore
from muster.store.guarded import GuardedStore

MAPS = Watch(group="", kind="ConfigMap")


class Broken(Controller):
    name = "broken"
    watches = (MAPS,)

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        raise RuntimeError(f"can't stand {key.name}")


class Unprepared(Controller):
    """Fails as a whole, not on a key."""

    name = "unprepared"

    @property
    def watches(self) -> tuple[Watch, ...]:  # type: ignore[override]
        raise RuntimeError("not ready at all")

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        return Plan()


def manager(store: EmbeddedStore, *controllers: Runnable, identity: str = "") -> Manager:
    election = Election(identity=identity, namespace="default") if identity else None
    return Manager(store, controllers, clock=current_loop().clock, election=election)


async def pods(store: EmbeddedStore) -> list[str]:
    return [p["metadata"]["name"] for p in (await store.list(await store.resource("", "Pod"), "default")).items]


@virtual
async def test_a_lease_has_a_way_of_its_own() -> None:
    """Behind a burst of the leader's own writes, its renewal would come too late."""

    class Noted(GuardedStore):
        def __init__(self, inner: EmbeddedStore) -> None:
            super().__init__(inner)
            self.written: set[str] = set()

        async def write(self, verb: str, what: str, operation: Callable[[], Awaitable[Any]]) -> Any:
            self.written.add(what.split(maxsplit=1)[0])
            return await operation()

    async with memory_store() as store:
        await store.create(await store.resource("apps", "ReplicaSet"), replica_set("web", 3), "default")
        work, lease = Noted(store), Noted(store)
        election = Election(identity="a", namespace="default")
        running = Manager(work, [Replicas()], clock=current_loop().clock, election=election, election_store=lease)
        running.start()
        await asyncio.sleep(60)
        assert len(await pods(store)) == 3
        await running.stop()
        assert lease.written == {"leases.coordination.k8s.io"}
        assert work.written
        assert "leases.coordination.k8s.io" not in work.written


@virtual
async def test_controllers_work_and_stop_leaves_nothing() -> None:
    async with memory_store() as store:
        await store.create(await store.resource("apps", "ReplicaSet"), replica_set("web", 3), "default")
        tasks_before = len(current_loop().tasks())
        running = manager(store, Replicas())
        running.start()
        running.start()
        await asyncio.sleep(5)
        assert await pods(store) == ["web-0", "web-1", "web-2"]
        health = running.health()
        assert (health.is_ready, health.is_healthy, health.is_leading) == (True, True, True)
        assert [(c.name, c.state) for c in health.controllers] == [("replicas", "running")]
        await running.stop()
        await running.stop()
        assert len(current_loop().tasks()) == tasks_before
        assert not running.is_leading


@virtual
async def test_a_broken_controller_is_reported_and_the_others_go_on() -> None:
    async with memory_store() as store:
        await store.create(await store.resource("apps", "ReplicaSet"), replica_set("web", 2), "default")
        await store.create(await store.resource("", "ConfigMap"), config_map("odd"), "default")
        running = manager(store, Broken(), Unprepared(), Replicas())
        running.start()
        await asyncio.sleep(60)
        assert await pods(store) == ["web-0", "web-1"]
        health = running.health()
        assert not health.is_healthy
        states = {c.name: c for c in health.controllers}
        assert states["broken"].failing == {"default/odd": "can't stand odd"}
        assert states["broken"].failing_count == 1
        assert states["unprepared"].state == "restarting: not ready at all"
        assert states["replicas"].is_healthy
        await running.stop()


@virtual
async def test_a_missing_kind_keeps_only_its_own_controller_waiting() -> None:
    class Early(Broken):
        name = "early"
        watches = (Watch(group="nowhere.example", kind="Thing"),)

    async with memory_store() as store:
        await store.create(await store.resource("apps", "ReplicaSet"), replica_set("web", 1), "default")
        running = manager(store, Early(), Replicas())
        running.start()
        await asyncio.sleep(10)
        assert await pods(store) == ["web-0"]
        assert {c.name: c.is_healthy for c in running.health().controllers} == {"early": False, "replicas": True}
        await running.stop()


@virtual
async def test_only_the_leader_acts_and_the_standby_takes_over_warm() -> None:
    async with memory_store() as store:
        sets = await store.resource("apps", "ReplicaSet")
        first, second = (manager(store, Replicas(), identity=name) for name in ("a", "b"))
        first.start()
        await asyncio.sleep(1)
        second.start()
        await asyncio.sleep(30)
        assert (first.is_leading, second.is_leading) == (True, False)
        assert first.fence is not None
        assert second.health().is_healthy, "a standby is healthy"
        assert second.health().leader == "a"
        assert all(informer.has_synced for informer in second.hub.informers)
        await store.create(sets, replica_set("web", 2), "default")
        await asyncio.sleep(2)
        assert await pods(store) == ["web-0", "web-1"]
        stopped_s = current_loop().time()
        await first.stop()
        await store.patch(sets, "web", {"spec": {"replicas": 3}}, "default")
        while len(await pods(store)) < 3:
            await asyncio.sleep(0.1)
        assert second.is_leading
        assert current_loop().time() - stopped_s < 5
        await second.stop()


@virtual
async def test_two_controllers_of_one_name_are_refused() -> None:
    async with memory_store() as store:
        with pytest.raises(ValueError, match="same name"):
            manager(store, Replicas(), Replicas())


@virtual
async def test_without_controllers_it_still_runs() -> None:
    async with memory_store() as store:
        running = manager(store)
        running.start()
        await asyncio.sleep(5)
        assert running.is_leading
        assert running.health().is_healthy
        await running.stop()


@virtual
async def test_the_embedded_set_does_its_work() -> None:
    async with memory_store("shop") as store:
        running = manager(store, *embedded_controllers(ca_pem="PEM"))
        running.start()
        await asyncio.sleep(5)
        root_ca = await store.get(await store.resource("", "ConfigMap"), "kube-root-ca.crt", "shop")
        assert root_ca["data"] == {"ca.crt": "PEM"}
        await store.get(await store.resource("", "ServiceAccount"), "default", "shop")
        assert running.health().is_healthy
        await running.stop()


def test_what_runs_on_a_cluster_also_runs_embedded() -> None:
    embedded = [c.name for c in embedded_controllers(ca_pem="PEM")]
    assert len(embedded) == len(set(embedded))
    assert {c.name for c in cluster_controllers()} <= set(embedded)
