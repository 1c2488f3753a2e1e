"""Services on a store: rolled out, updated, scaled, crashed and deleted, with real scheduling and simulated machines."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.controllers.deployments import app_image, deployment, party
from tests.controllers.kinds import serve_kinds, with_permissions_of

from muster.controllers.domain import Domains
from muster.controllers.kuscia_deployment import KusciaDeployments
from muster.controllers.manager import Manager
from muster.controllers.pod_gc import PodGarbage
from muster.controllers.runtime import Runnable
from muster.controllers.scheduler import Scheduler
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.meta import is_deleting, labels_of, name_of, namespace_of
from muster.objects.names import KUBERNETES_NAMESPACES, NAMESPACE_CROSS_DOMAIN
from muster.objects.status import NotFound, Raw
from muster.objects.time import wall_clock
from muster.sim.faults import STORMY
from muster.sim.machine import Machine, PodScript
from muster.sim.workloads import domain
from muster.sim.world import Chaos, World, simulate
from muster.store.contract import Store

GROUP = "kuscia.secretflow"
NAMESPACES = (*KUBERNETES_NAMESPACES, NAMESPACE_CROSS_DOMAIN)
FOREVER = PodScript(run_s=None, stop_s=0.5)


def controllers() -> list[Runnable]:
    return [Scheduler(), Domains(), KusciaDeployments(), PodGarbage()]


async def build(world: World, *, script: Callable[[Raw], PodScript] = lambda _pod: FOREVER) -> list[Machine]:
    await world.create(app_image())
    machines = []
    for name in ("alice", "bob"):
        await world.create(domain(name))
        machines += world.add_machines(2, prefix=name, labels={KusciaLabel.NODE_NAMESPACE: name}, script_for=script)
    world.add_manager("controllers", controllers)
    return machines


async def pods(world: World) -> list[Raw]:
    return [pod for pod in await world.objects("", "Pod") if KusciaLabel.DEPLOYMENT_UID in labels_of(pod)]


def is_ready(pod: Raw) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return not is_deleting(pod) and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def live(store: Store, name: str = "credit") -> Raw | None:
    try:
        return await store.get(await store.resource(GROUP, "KusciaDeployment"), name, "cross-domain")
    except NotFound:
        return None


async def has_phase(store: Store, phase: str) -> bool:
    return ((await live(store) or {}).get("status") or {}).get("phase") == phase


async def change(store: Store, patch: Raw, kind: str = "KusciaDeployment", name: str = "credit") -> None:
    namespace = "cross-domain" if kind == "KusciaDeployment" else None
    await store.patch(await store.resource(GROUP, kind), name, patch, namespace)


async def nothing_left(world: World) -> bool:
    for kind in ("Pod", "Service", "ConfigMap"):
        if any(KusciaLabel.DEPLOYMENT_UID in labels_of(one) for one in await world.objects("", kind)):
            return False
    return await live(world.store) is None


def at_least_ready(least: int) -> Callable[[World], Awaitable[None]]:
    async def check(world: World) -> None:
        if world.memory.get("is up"):
            for party_name in ("alice", "bob"):
                ready = sum(1 for pod in await pods(world) if namespace_of(pod) == party_name and is_ready(pod))
                assert ready >= least, f"{party_name} has {ready} pods ready"

    return check


@pytest.mark.slow
def test_comes_up_updates_scales_and_goes() -> None:
    async def scenario(world: World) -> None:
        store = world.store
        await build(world)
        world.invariant("never fewer than two ready", at_least_ready(2))
        strategy = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
        await world.create(deployment(party("alice", 2, strategy=strategy), party("bob", 2, strategy=strategy)))
        await world.run_until(lambda: has_phase(store, "Available"), timeout_s=60)
        world.memory["is up"] = True
        spread = {(namespace_of(pod), pod["spec"]["nodeName"]) for pod in await pods(world)}
        assert len(spread) == 4, "each pod has a node of its own, as long as there are enough"

        # Another image: pods are replaced one by one, and two are ready at every moment.
        await change(store, {"spec": {"image": {"tag": "2"}}}, "AppImage", "serving")

        async def is_updated() -> bool:
            images = {pod["spec"]["containers"][0]["image"] for pod in await pods(world)}
            return images == {"serving:2"} and await has_phase(store, "Available")

        await world.run_until(is_updated, timeout_s=120)
        assert len([m for m in await world.objects("", "ConfigMap") if KusciaLabel.DEPLOYMENT_UID in labels_of(m)]) == 2

        # More, then fewer.
        found = await live(store)
        assert found is not None
        parties = found["spec"]["parties"]
        for count in (4, 2):
            for one in parties:
                one["template"]["replicas"] = count
            await change(store, {"spec": {"parties": parties}})

            async def is_scaled(wanted: int = count) -> bool:
                return len(await pods(world)) == 2 * wanted and await has_phase(store, "Available")

            await world.run_until(is_scaled, timeout_s=60)

        world.memory["is up"] = False
        await store.delete(await store.resource(GROUP, "KusciaDeployment"), "credit", "cross-domain")
        await world.run_until(lambda: nothing_left(world), timeout_s=60)
        assert not any(machine.running(world.loop.time()) for machine in world.machines.values())

    simulate(scenario, namespaces=NAMESPACES)


def test_recreate_never_mixes_versions() -> None:
    async def scenario(world: World) -> None:
        store = world.store
        await build(world)

        async def one_version(world: World) -> None:
            running = {uid for m in world.machines.values() for uid in m.running(world.loop.time())}
            images = {pod["spec"]["containers"][0]["image"] for pod in await pods(world) if pod["metadata"]["uid"] in running}
            assert len(images) <= 1, f"both {images} run"

        world.invariant("one version at a time", one_version)
        await world.create(deployment(party("alice", 3, strategy={"type": "Recreate"})))
        await world.run_until(lambda: has_phase(store, "Available"), timeout_s=60)
        await change(store, {"spec": {"image": {"tag": "2"}}}, "AppImage", "serving")
        await world.run_for(5)
        await world.run_until(lambda: has_phase(store, "Available"), timeout_s=60)
        assert {pod["spec"]["containers"][0]["image"] for pod in await pods(world)} == {"serving:2"}

    simulate(scenario, namespaces=NAMESPACES)


def test_a_service_that_crashes_backs_off_and_recovers() -> None:
    made: list[str] = []

    def script(pod: Raw) -> PodScript:
        if name_of(pod) not in made:
            made.append(name_of(pod))
        return PodScript(run_s=1.0, exit_code=2) if len(made) <= 3 else FOREVER

    async def scenario(world: World) -> None:
        store = world.store
        await build(world, script=script)
        never = {"restartPolicy": "Never", "containers": [{"name": "main"}]}
        await world.create(deployment(party("alice", 1, spec=never)))
        await world.run_until(lambda: has_phase(store, "Failed"), timeout_s=60)
        found = await live(store)
        assert found is not None
        assert "exit code 2" in found["status"]["message"]
        started_s = world.loop.time()

        async def has_recovered() -> bool:
            attempts = [pod["metadata"]["annotations"][Muster.ATTEMPT] for pod in await pods(world) if is_ready(pod)]
            return attempts == ["4"] and await has_phase(store, "Available")

        await world.run_until(has_recovered, timeout_s=300)
        assert world.loop.time() - started_s > 20 + 40, "the pause doubles"

    simulate(scenario, namespaces=NAMESPACES)


def test_a_lost_pod_is_replaced_and_waiting_pods_say_why() -> None:
    async def scenario(world: World) -> None:
        store = world.store
        await build(world)
        await world.create(deployment(party("alice", 2)))
        await world.run_until(lambda: has_phase(store, "Available"), timeout_s=60)
        victim = (await pods(world))[0]
        await store.delete(await store.resource("", "Pod"), name_of(victim), "alice")
        await world.run_for(3)
        await world.run_until(lambda: has_phase(store, "Available"), timeout_s=60)
        assert name_of(victim) not in [name_of(pod) for pod in await pods(world)]

        # A quota of two: the third pod waits, and the service says for what.
        await change(store, {"spec": {"resourceQuota": {"podMaxCount": 2}}}, "Domain", "alice")
        await change(store, {"spec": {"parties": [party("alice", 3)]}})
        await world.run_until(lambda: has_phase(store, "PartialAvailable"), timeout_s=60)
        await world.run_for(10)
        found = await live(store)
        assert found is not None
        assert found["status"]["reason"] == "QuotaExceeded"
        assert "limit 2, in use 2, requested 1" in found["status"]["message"]
        await change(store, {"spec": {"resourceQuota": {"podMaxCount": 3}}}, "Domain", "alice")
        await world.run_until(lambda: has_phase(store, "Available"), timeout_s=60)

    simulate(scenario, namespaces=NAMESPACES)


def test_a_service_name_that_somebody_has_is_not_taken() -> None:
    async def scenario(world: World) -> None:
        store = world.store
        await build(world)
        await world.run_for(5)
        ports = [{"name": "x", "port": 80}]
        await world.create(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "credit-api", "namespace": "alice"},
                "spec": {"ports": ports},
            }
        )
        await world.create(deployment(party("alice", 1)))
        await world.run_for(10)
        found = await live(store)
        assert found is not None
        assert found["status"]["reason"] == "DuplicateName"
        assert not await pods(world)
        await store.delete(await store.resource("", "Service"), "credit-api", "alice")
        await world.run_until(lambda: has_phase(store, "Available"), timeout_s=60)

    simulate(scenario, namespaces=NAMESPACES)


async def ports_differ(world: World) -> None:
    """No number twice in one party."""
    taken: set[tuple[str, int]] = set()
    for service in await world.objects("", "Service"):
        if KusciaLabel.DEPLOYMENT_UID in labels_of(service) and not is_deleting(service):
            key = namespace_of(service), service["spec"]["ports"][0]["port"]
            assert key not in taken, f"two services of {key[0]} have port {key[1]}"
            taken.add(key)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_converges_whatever_fails(seed: int) -> None:
    async def scenario(world: World) -> None:
        store = world.store
        await world.create(app_image())
        for name in ("alice", "bob"):
            await world.create(domain(name))
            world.add_machines(2, prefix=name, labels={KusciaLabel.NODE_NAMESPACE: name}, script_for=lambda _pod: FOREVER)
        world.add_manager("controllers", controllers, replicas=2)
        world.invariant("ports differ", ports_differ)
        chance = world.loop.entropy.stream("user")
        wanted: dict[str, int] = {}
        for step in range(14):
            await world.run_for(chance.uniform(1, 20))
            name = chance.choice(["one", "two"])
            if await live(store, name) is None:
                wanted[name] = chance.randrange(1, 4)
                made = deployment(party("alice", wanted[name]), party("bob", wanted[name]), name=name)
                await world.create(made)
            elif chance.random() < 0.3:
                wanted.pop(name, None)
                await store.delete(await store.resource(GROUP, "KusciaDeployment"), name, "cross-domain")
            elif chance.random() < 0.5 and name in wanted:
                wanted[name] = chance.randrange(0, 4)
                parties = [party("alice", wanted[name]), party("bob", wanted[name])]
                await change(store, {"spec": {"parties": parties}}, name=name)
            else:
                await change(store, {"spec": {"image": {"tag": str(step)}}}, "AppImage", "serving")
        world.calm_down()

        async def is_settled() -> bool:
            found = await pods(world)
            for name in ("one", "two"):
                one = await live(store, name)
                if (one is not None) != (name in wanted):
                    return False
                if one is not None and (one.get("status") or {}).get("phase") != "Available":
                    return False
            return len(found) == 2 * sum(wanted.values()) and all(is_ready(pod) for pod in found)

        await world.run_until(is_settled, timeout_s=900, every_s=5)
        await world.run_for(60)
        assert await is_settled()

    simulate(scenario, seed=seed, namespaces=NAMESPACES, faults=STORMY, chaos=Chaos(kill_every_s=25, lease_loss_every_s=200))


async def test_on_both_stores(real_store: Store) -> None:
    """The same objects come about on a real API server, and go. Nobody runs the pods: the test reports them ready."""
    await serve_kinds(
        real_store,
        *("Domain", "AppImage", "KusciaJob", "KusciaTask", "KusciaDeployment", "KusciaDeploymentSummary"),
    )
    name = f"party-{uuid.uuid4().hex[:8]}"
    spaces, images = await real_store.resource("", "Namespace"), await real_store.resource(GROUP, "AppImage")
    kds, all_pods = await real_store.resource(GROUP, "KusciaDeployment"), await real_store.resource("", "Pod")
    with contextlib.suppress(Exception):
        await real_store.create(spaces, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cross-domain"}})
    stack = contextlib.AsyncExitStack()
    narrow = await stack.enter_async_context(with_permissions_of(real_store, "domain", "kuscia-deployment"))
    manager = Manager(narrow, [Domains(), KusciaDeployments()], clock=wall_clock)
    manager.start()

    async def until(check: Callable[[], Awaitable[Any]]) -> None:
        async with asyncio.timeout(60):
            while not await check():
                await asyncio.sleep(0.05)

    async def mine() -> list[Raw]:
        return (await real_store.list(all_pods, name)).items

    async def phase() -> str:
        found = await live(real_store, name)
        return str(((found or {}).get("status") or {}).get("phase", ""))

    try:
        await real_store.create(await real_store.resource(GROUP, "Domain"), domain(name))
        await real_store.create(images, app_image(name))
        await real_store.create(kds, deployment(party(name, 2, image=name), name=name), "cross-domain")

        async def has_pods() -> bool:
            return len(await mine()) == 2

        await until(has_pods)
        for pod in await mine():
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            await real_store.patch(all_pods, name_of(pod), {"status": status}, name, subresource="status")

        async def is_available() -> bool:
            return await phase() == "Available"

        await until(is_available)
        await real_store.delete(kds, name, "cross-domain")

        async def is_gone() -> bool:
            for pod in await mine():
                if is_deleting(pod):  # there is no agent that would confirm it
                    with contextlib.suppress(NotFound):  # gone since it was listed
                        await real_store.delete(all_pods, name_of(pod), name, grace_period_s=0)
            return await live(real_store, name) is None and not await mine()

        await until(is_gone)
    finally:
        await manager.stop()
        await stack.aclose()
        with contextlib.suppress(NotFound):
            await real_store.delete(spaces, name)
