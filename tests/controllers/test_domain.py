"""The controller of Domains on a store: in virtual time, with crashes between any two writes, and on a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

import pytest
from tests.controllers.kinds import serve_kinds, with_permissions_of

from muster.controllers.domain import Domains
from muster.controllers.manager import Manager
from muster.objects.conditions import find_condition
from muster.objects.labels import KusciaLabel
from muster.objects.meta import finalizers_of, labels_of, name_of
from muster.objects.status import NotFound, Raw
from muster.objects.time import wall_clock
from muster.sim.faults import STORMY
from muster.sim.machine import PodScript
from muster.sim.world import Chaos, World, simulate
from muster.store.contract import Store

GROUP = "kuscia.secretflow"
FOREVER = PodScript(run_s=None, stop_s=0.5)


def domain(name: str = "alice", **spec: Any) -> Raw:
    return {"apiVersion": f"{GROUP}/v1alpha1", "kind": "Domain", "metadata": {"name": name}, "spec": spec}


def pod(name: str, cpu: str, node: str) -> Raw:
    container = {"name": "main", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "alice"},
        "spec": {"nodeName": node, "containers": [container]},
    }


async def get(store: Store, group: str, kind: str, name: str, namespace: str | None = None) -> Raw | None:
    try:
        return await store.get(await store.resource(group, kind), name, namespace)
    except NotFound:
        return None


async def status(store: Store, name: str = "alice") -> Raw:
    return ((await get(store, GROUP, "Domain", name)) or {}).get("status") or {}


async def is_prepared(store: Store, name: str = "alice") -> bool:
    ready = find_condition((await status(store, name)).get("conditions"), "Ready") or {}
    objects = [
        await get(store, "", "ConfigMap", "domain-config", name),
        await get(store, "", "ServiceAccount", name, name),
        await get(store, "rbac.authorization.k8s.io", "Role", name, name),
        await get(store, "rbac.authorization.k8s.io", "RoleBinding", name, name),
    ]
    return ready.get("status") == "True" and all(objects)


async def remove(store: Store, name: str = "alice") -> None:
    await store.delete(await store.resource(GROUP, "Domain"), name)


async def is_gone(store: Store, name: str = "alice") -> bool:
    return await get(store, GROUP, "Domain", name) is None


def test_from_beginning_to_end() -> None:
    async def scenario(world: World) -> None:
        store = world.store
        world.add_manager("controllers", lambda: [Domains()])
        world.add_machines(2, prefix="alice", labels={KusciaLabel.NODE_NAMESPACE: "alice"}, script_for=lambda _: FOREVER)
        await world.create(domain(resourceQuota={"podMaxCount": 3, "hard": {"cpu": 4}}))
        await world.run_until(lambda: is_prepared(store), timeout_s=30)
        assert await get(store, "", "Namespace", "cross-domain") is not None
        await world.create(pod("one", "2", "alice-1"))
        await world.run_for(120)
        found = await status(store)
        assert [(n["name"], n["status"], n["version"]) for n in found["nodeStatuses"]] == [
            ("alice-1", "Ready", "sim"),
            ("alice-2", "Ready", "sim"),
        ]
        assert found["resourceQuota"]["used"] == {"cpu": "2", "pods": "1"}

        # Deleting it waits for the pod, and then keeps the namespace.
        await remove(store)
        await world.run_for(5)
        why = find_condition((await status(store))["conditions"], "Terminating") or {}
        assert "Pod alice/one" in why["message"]
        await store.delete(await store.resource("", "Pod"), "one", "alice")
        await world.run_until(lambda: is_gone(store), timeout_s=60)
        kept = await get(store, "", "Namespace", "alice")
        assert kept is not None
        assert labels_of(kept)[KusciaLabel.DOMAIN_DELETED] == "true"
        assert await get(store, "", "ConfigMap", "domain-config", "alice") is not None
        assert await get(store, "", "ServiceAccount", "alice", "alice") is None

        # The same party comes back, to the same namespace.
        await world.create(domain())
        await world.run_until(lambda: is_prepared(store), timeout_s=30)
        assert KusciaLabel.DOMAIN_DELETED not in labels_of(await get(store, "", "Namespace", "alice") or {})

    simulate(scenario)


@pytest.mark.parametrize(
    ("kind", "spec", "ended"),
    [
        pytest.param(
            "KusciaTask",
            {"initiator": "bob", "taskInputConfig": "", "parties": [{"domainID": "alice", "appImageRef": "a"}]},
            "Failed",
            id="a task",
        ),
        pytest.param(
            "KusciaJob",
            {
                "initiator": "bob",
                "tasks": [{"alias": "t", "appImage": "a", "taskInputConfig": "", "parties": [{"domainID": "alice"}]}],
            },
            "Cancelled",
            id="a job",
        ),
        pytest.param(
            "KusciaDeployment",
            {"initiator": "alice", "inputConfig": "", "parties": [{"domainID": "bob", "appImageRef": "a"}]},
            "",
            id="a service",
        ),
    ],
)
def test_work_of_the_party_holds_it(kind: str, spec: Raw, ended: str) -> None:
    async def scenario(world: World) -> None:
        store = world.store
        world.add_manager("controllers", lambda: [Domains()])
        await world.create(domain())
        await world.run_until(lambda: is_prepared(store), timeout_s=30)
        metadata = {"name": "w", "namespace": "cross-domain"}
        await world.create({"apiVersion": f"{GROUP}/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
        await world.run_for(5)
        await remove(store)
        await world.run_for(30)
        why = find_condition((await status(store))["conditions"], "Terminating") or {}
        assert f"{kind} cross-domain/w" in why["message"]
        resource = await store.resource(GROUP, kind)
        if ended:
            await store.patch(resource, "w", {"status": {"phase": ended}}, "cross-domain", subresource="status")
        else:
            await store.delete(resource, "w", "cross-domain")
        await world.run_until(lambda: is_gone(store), timeout_s=30)

    simulate(scenario)


def test_somebody_elses_namespace_is_not_taken() -> None:
    async def scenario(world: World) -> None:
        store = world.store
        world.add_manager("controllers", lambda: [Domains()])
        await world.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "alice"}})
        await world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plans", "namespace": "alice"}})
        await world.create(domain())
        await world.run_for(10)
        why = find_condition((await status(store))["conditions"], "Ready") or {}
        assert (why["status"], why["reason"]) == ("False", "NamespaceTaken")
        assert "ConfigMap plans" in why["message"]
        assert await get(store, "rbac.authorization.k8s.io", "RoleBinding", "alice", "alice") is None
        await store.delete(await store.resource("", "ConfigMap"), "plans", "alice")
        await world.run_until(lambda: is_prepared(store), timeout_s=120)

    simulate(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_converges_whatever_fails(seed: int) -> None:
    async def scenario(world: World) -> None:
        store = world.store
        world.add_manager("controllers", lambda: [Domains()], replicas=2)
        chance = world.loop.entropy.stream("user")
        for _ in range(12):
            await world.run_for(chance.uniform(1, 15))
            name = chance.choice(["alice", "bob"])
            found = await get(store, GROUP, "Domain", name)
            if found is None:
                await world.create(domain(name, role=chance.choice(["", "partner"])))
            elif chance.random() < 0.5:
                await remove(store, name)
            else:
                await store.patch(await store.resource(GROUP, "Domain"), name, {"spec": {"role": "partner"}})
        world.calm_down()
        await world.run_for(60)
        for name in ("alice", "bob"):
            found = await get(store, GROUP, "Domain", name)
            if found is None:
                kept = await get(store, "", "Namespace", name)
                assert kept is None or labels_of(kept)[KusciaLabel.DOMAIN_DELETED] == "true"
                assert await get(store, "rbac.authorization.k8s.io", "RoleBinding", name, name) is None
            else:
                assert await is_prepared(store, name)

    simulate(scenario, seed=seed, faults=STORMY, chaos=Chaos(kill_every_s=20, lease_loss_every_s=120))


async def test_on_both_stores(real_store: Store) -> None:
    """The same objects come about on a real API server, and go."""
    await serve_kinds(real_store, "Domain", "KusciaJob", "KusciaTask", "KusciaDeployment")
    name = f"party-{uuid.uuid4().hex[:8]}"

    async def until(check: Any) -> None:
        async with asyncio.timeout(60):
            while not await check(real_store, name):
                await asyncio.sleep(0.05)

    try:
        async with with_permissions_of(real_store, "domain") as narrow:
            manager = Manager(narrow, [Domains()], clock=wall_clock)
            manager.start()
            try:
                await _live_and_die(real_store, name, until)
            finally:
                await manager.stop()
    finally:
        with contextlib.suppress(NotFound):
            await real_store.delete(await real_store.resource("", "Namespace"), name)


async def _live_and_die(real_store: Store, name: str, until: Any) -> None:
    await real_store.create(await real_store.resource(GROUP, "Domain"), domain(name, resourceQuota={"podMaxCount": 1}))
    await until(is_prepared)
    found = await get(real_store, GROUP, "Domain", name)
    assert found is not None
    assert finalizers_of(found) == ["muster.dev/domain"]
    assert name_of(found) == name
    await remove(real_store, name)
    await until(is_gone)
    assert await get(real_store, "", "ServiceAccount", name, name) is None
    kept = await get(real_store, "", "Namespace", name)
    assert kept is not None
    assert labels_of(kept)[KusciaLabel.DOMAIN_DELETED] == "true"
