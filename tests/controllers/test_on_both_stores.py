"""Controllers, leader election, events and actions in real time: on the embedded store and on a real API server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.store.stores import config_map, pod

from muster.bench.kubernetes import ControlPlane
from muster.client import ApiClient
from muster.controllers.actions import Action, Create, Delete, Executor, Patch, PatchStatus, target_of
from muster.controllers.manager import Election, Manager
from muster.controllers.runtime import Caches, Controller, Plan, Watch, controller_key
from muster.objects.meta import name_of, owner_reference, resource_version_of
from muster.objects.status import Conflict, Raw
from muster.objects.time import wall_clock
from muster.store.cache import ObjectKey
from muster.store.contract import Store
from muster.store.events import NORMAL, EventRecorder
from muster.store.informer import Informer
from muster.store.kubernetes import KubernetesStore
from muster.store.leases import LeaseTiming

WAIT_S = 30.0


async def until(informer: Informer, predicate: Callable[[], bool]) -> None:
    """Until `predicate` holds, looking at every change that `informer` reports."""
    changed = asyncio.Event()
    leave = informer.add_handler(lambda _change: changed.set())
    try:
        async with asyncio.timeout(WAIT_S):
            while not predicate():
                changed.clear()
                await changed.wait()
    finally:
        leave()


class Mirror(Controller):
    """Keeps a copy of every ConfigMap labelled `mirror=yes`. Keys are the originals."""

    name = "mirror"

    def __init__(self, namespace: str) -> None:
        self.originals = Watch(group="", kind="ConfigMap", namespace=namespace, label_selector="mirror=yes")
        self.copies = Watch(
            group="", kind="ConfigMap", namespace=namespace, label_selector="mirror=no", keys=controller_key("", "ConfigMap")
        )
        self.watches = (self.originals, self.copies)

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        original = caches[self.originals].get(key)
        if original is None:
            return Plan()
        copy = caches[self.copies].get(ObjectKey(key.namespace, f"{key.name}-copy"))
        raw = original.raw
        if copy is None:
            made = config_map(f"{key.name}-copy", key.namespace, labels={"mirror": "no"}, **(raw.get("data") or {}))
            made["metadata"]["ownerReferences"] = [owner_reference(raw, block=False)]
            return Plan([Create(made)])
        if copy.raw.get("data") != raw.get("data"):
            return Plan([Patch(target_of(copy.raw), {"data": raw.get("data")})])
        return Plan()


async def test_a_controller_keeps_up_with_changes(real_store: Store, namespace: str) -> None:
    maps = await real_store.resource("", "ConfigMap")
    await real_store.create(maps, config_map("a", namespace, labels={"mirror": "yes"}, x="1"), namespace)
    manager = Manager(real_store, [controller := Mirror(namespace)], clock=wall_clock)
    manager.start()
    try:
        informer = await manager.hub.informer("", "ConfigMap", namespace=namespace, label_selector="mirror=no")
        key = ObjectKey(namespace, "a-copy")

        def data_of_copy() -> Raw | None:
            copy = informer.cache.get(key)
            return copy.raw.get("data") if copy else None

        await until(informer, lambda: data_of_copy() == {"x": "1"})
        await real_store.patch(maps, "a", {"data": {"x": "2"}}, namespace)
        await until(informer, lambda: data_of_copy() == {"x": "2"})
        first = informer.cache.get(key)
        await real_store.delete(maps, "a-copy", namespace)
        await until(informer, lambda: (now := informer.cache.get(key)) is not None and now.uid != first.uid)  # type: ignore[union-attr]
        assert manager.health().is_ready
        assert manager.health().controllers[0].failing == {}
        assert controller.name == "mirror"
    finally:
        await manager.stop()


def epochs(managers: list[Manager]) -> list[int | None]:
    """Of those that lead."""
    return [m.fence.epoch if m.is_leading and m.fence is not None else None for m in managers]


async def test_the_leader_hands_over(real_store: Store, namespace: str) -> None:
    leases = await real_store.resource("coordination.k8s.io", "Lease")
    maps = await real_store.resource("", "ConfigMap")
    lease = {
        "apiVersion": leases.api_version,
        "kind": "Lease",
        "metadata": {"name": "boss", "namespace": namespace},
        "spec": {},
    }
    await real_store.create(leases, lease, namespace)
    timing = LeaseTiming(lease_s=6, renew_deadline_s=4, retry_s=0.3)
    managers = [
        Manager(
            real_store,
            [Mirror(namespace)],
            clock=wall_clock,
            election=Election(identity=name, name="boss", namespace=namespace, timing=timing),
        )
        for name in ("one", "two")
    ]
    one, two = managers
    try:
        one.start()
        informer = await one.hub.informer("", "ConfigMap", namespace=namespace, label_selector="mirror=no")
        await real_store.create(maps, config_map("a", namespace, labels={"mirror": "yes"}), namespace)
        await until(informer, lambda: ObjectKey(namespace, "a-copy") in informer.cache)
        two.start()
        assert epochs(managers) == [1, None]
        await one.stop()
        await real_store.create(maps, config_map("b", namespace, labels={"mirror": "yes"}), namespace)
        other = await two.hub.informer("", "ConfigMap", namespace=namespace, label_selector="mirror=no")
        await until(other, lambda: ObjectKey(namespace, "b-copy") in other.cache)
        assert epochs(managers) == [None, 2]
    finally:
        for manager in managers:
            await manager.stop()
    spec = (await real_store.get(leases, "boss", namespace))["spec"]
    assert (spec.get("holderIdentity", ""), spec["leaseTransitions"]) == ("", 2)


@pytest.mark.parametrize("kind", ["patch", "status", "delete"])
async def test_actions_spare_a_namesake_and_refuse_a_moved_version(real_store: Store, namespace: str, kind: str) -> None:
    pods = await real_store.resource("", "Pod")
    executor = Executor(real_store, "test")

    def actions(raw: Raw, *, at_version: bool) -> Action:
        target = target_of(raw, at_version=at_version)
        choices: dict[str, Action] = {
            "patch": Patch(target, {"metadata": {"labels": {"a": "b"}}}),
            "status": PatchStatus(target, {"phase": "Failed"}),
            "delete": Delete(target, grace_period_s=0),
        }
        return choices[kind]

    old = await real_store.create(pods, pod("p", namespace), namespace)
    await real_store.delete(pods, "p", namespace, grace_period_s=0)
    new = await real_store.create(pods, pod("p", namespace), namespace)
    await executor.apply([actions(old, at_version=False)])
    assert resource_version_of(await real_store.get(pods, "p", namespace)) == resource_version_of(new)
    await real_store.patch(pods, "p", {"metadata": {"labels": {"moved": "yes"}}}, namespace)
    with pytest.raises(Conflict):
        await executor.apply([actions(new, at_version=True)])
    await executor.apply([actions(new, at_version=False)])
    await executor.apply([actions(new, at_version=False)])


async def test_create_twice_is_create_once(real_store: Store, namespace: str) -> None:
    executor = Executor(real_store, "test")
    maps = await real_store.resource("", "ConfigMap")
    owner = await real_store.create(maps, config_map("owner", namespace), namespace)
    child = config_map("child", namespace)
    child["metadata"]["ownerReferences"] = [owner_reference(owner)]
    await executor.apply([Create(child), Create(child)])
    with pytest.raises(Conflict, match="belongs to ConfigMap owner"):
        await executor.apply([Create(config_map("child", namespace))])


async def test_events_are_counted(real_store: Store, namespace: str) -> None:
    maps = await real_store.resource("", "ConfigMap")
    about = await real_store.create(maps, config_map("subject", namespace), namespace)
    recorder = EventRecorder(real_store, component="muster-test", clock=wall_clock)
    recorder.start()
    for _ in range(3):
        recorder.event(about, NORMAL, "Noticed", "something happened")
        await recorder.flush()
    await recorder.stop()
    (event,) = (await real_store.list(await real_store.resource("", "Event"), namespace)).items
    assert (event["count"], event["involvedObject"]["name"]) == (3, "subject")


@pytest.mark.kubernetes
async def test_kubectl_describe_shows_recorded_events(kubernetes: ControlPlane) -> None:
    store = KubernetesStore(await ApiClient.from_kubeconfig(kubernetes.kubeconfig_path))
    maps = await store.resource("", "ConfigMap")
    about = await store.create(maps, config_map(f"subject-{uuid.uuid4().hex[:10]}"), "default")
    recorder = EventRecorder(store, component="muster-test", clock=wall_clock)
    recorder.start()
    recorder.event(about, NORMAL, "Noticed", "something happened")
    await recorder.stop()
    kubectl = str(Path(sys.executable).with_name("kubectl"))
    command = [kubectl, "--kubeconfig", str(kubernetes.kubeconfig_path), "describe", "configmap", name_of(about)]
    shown = await asyncio.to_thread(lambda: subprocess.check_output(command, text=True))
    (line,) = [line for line in shown.splitlines() if "Noticed" in line]
    assert line.split()[0] == "Normal"
    assert "muster-test" in line
    assert "something happened" in line
    await store.delete(maps, name_of(about), "default")
    await store.close()
