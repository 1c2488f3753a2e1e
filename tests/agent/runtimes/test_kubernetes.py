"""Pods carried into another cluster: a real kube-apiserver, where a simulated kubelet runs them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from muster.agent.config import Kubernetes as Settings
from muster.agent.contracts import AgentError, LogQuery
from muster.agent.runtimes.kubernetes import KubernetesPods
from muster.agent.runtimes.kubernetes_pods import CARRIER, FINALIZER, remote_name, source_name
from muster.bench.kubernetes import ControlPlane
from muster.client import ApiClient
from muster.objects.meta import uid_of
from muster.objects.status import ApiError, NotFound, Raw
from muster.objects.time import wall_clock
from muster.sim.agent import AgentTiming, SimAgent
from muster.sim.machine import Machine, PodScript
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore
from muster.store.kubernetes import KubernetesStore
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]
NODE = "carrier-1"


class Side:
    """One cluster, with few words."""

    def __init__(self, store: Store, namespace: str) -> None:
        self.store = store
        self.namespace = namespace

    async def make(self, kind: str, name: str, **members: Any) -> Raw:
        resource = await self.store.resource("", kind)
        metadata = {"name": name, "namespace": self.namespace, **members.pop("metadata", {})}
        return await self.store.create(
            resource, {"apiVersion": "v1", "kind": kind, "metadata": metadata, **members}, self.namespace
        )

    async def get(self, kind: str, name: str) -> Raw | None:
        try:
            return await self.store.get(await self.store.resource("", kind), name, self.namespace)
        except NotFound:
            return None

    async def list(self, kind: str, selector: str = "") -> list[Raw]:
        found = await self.store.list(await self.store.resource("", kind), self.namespace, label_selector=selector)
        return list(found.items)

    async def delete(self, kind: str, name: str, grace_s: int | None = None) -> None:
        with contextlib.suppress(NotFound):
            await self.store.delete(await self.store.resource("", kind), name, self.namespace, grace_period_s=grace_s)

    async def until(self, kind: str, name: str, check: Callable[[Raw | None], object]) -> Raw | None:
        found: Raw | None = None

        async def holds() -> bool:
            nonlocal found
            found = await self.get(kind, name)
            return bool(check(found))

        await until(holds)
        return found


class World:
    """Our cluster (embedded), the other one (real), its simulated kubelet, and the carrier, which may be started again."""

    def __init__(self, here: Side, there: Side, kubeconfig: Path, machine: Machine) -> None:
        self.here, self.there, self.machine = here, there, machine
        template = {"spec": {"nodeName": machine.name}}
        self.settings = Settings(kubeconfig=str(kubeconfig), namespace=there.namespace, template=template)
        self.carrier: KubernetesPods
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.carrier = KubernetesPods(self.here.store, self.settings, node=NODE, identity="m/1", clock=wall_clock)
        await self.carrier.open()
        self._running = asyncio.create_task(self.carrier.run())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            await self.carrier.close()
            self._running = None

    async def pod(self, name: str = "work-0", **members: Any) -> Raw:
        spec = {"nodeName": NODE, "restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}], **members}
        return await self.here.make("Pod", name, spec=spec)

    async def has_phase(self, phase: str, name: str = "work-0") -> Raw:
        found = await self.here.until("Pod", name, lambda pod: pod is not None and pod.get("status", {}).get("phase") == phase)
        assert found is not None
        return found


@pytest.fixture
async def world(kubernetes: ControlPlane, tmp_path: Path) -> AsyncIterator[World]:
    unique = uuid.uuid4().hex[:8]
    here = Side(await EmbeddedStore.open(tmp_path / "store", clock=wall_clock), "alice")
    there = Side(KubernetesStore(await ApiClient.from_kubeconfig(kubernetes.kubeconfig_path)), f"institution-{unique}")
    for side in (here, there):
        namespaces = await side.store.resource("", "Namespace")
        await side.store.create(namespaces, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": side.namespace}})
    await there.until("ServiceAccount", "default", lambda found: found is not None)
    machine = Machine(f"there-{unique}", capacity={"cpu": "64", "memory": "64Gi", "pods": "100"})

    def script(pod: Raw) -> PodScript:
        annotations = pod["metadata"].get("annotations") or {}
        run = annotations.get("test/run", "forever")
        seconds = None if run == "forever" else float(run)
        return PodScript(pull_s=0, start_s=0, run_s=seconds, exit_code=int(annotations.get("test/code", 0)))

    kubelet = SimAgent(there.store, machine, clock=wall_clock, script_for=script, timing=AgentTiming(heartbeat_s=2, status_s=2))
    running = asyncio.create_task(kubelet.run())
    found = World(here, there, kubernetes.kubeconfig_path, machine)
    try:
        await found.start()
        yield found
    finally:
        await found.stop()
        for pod in await there.list("Pod"):
            with contextlib.suppress(ApiError):
                pods = await there.store.resource("", "Pod")
                await there.store.patch(pods, pod["metadata"]["name"], {"metadata": {"finalizers": None}}, there.namespace)
                await there.delete("Pod", pod["metadata"]["name"], 0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        with contextlib.suppress(ApiError):
            await there.store.delete(await there.store.resource("", "Node"), machine.name)
            await there.store.delete(await there.store.resource("", "Namespace"), there.namespace)
        await there.store.close()
        await here.store.close()


async def annotate(world: World, name: str = "work-0", **annotations: str) -> None:
    pods = await world.here.store.resource("", "Pod")
    await world.here.store.patch(pods, name, {"metadata": {"annotations": annotations}}, "alice")


async def test_a_pod_runs_there_and_its_end_comes_back(world: World) -> None:
    pod = await world.here.make(
        "Pod",
        "work-0",
        metadata={"annotations": {"test/run": "0.5", "test/code": "3"}},
        spec={"nodeName": NODE, "restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]},
    )
    failed = await world.has_phase("Failed")
    [container] = failed["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 3
    copy = await world.there.get("Pod", remote_name(pod))
    assert copy is not None, "it stays, for its log"
    assert world.machine.starts == {uid_of(copy): 1}
    assert world.carrier.local_uids() == set()
    await world.here.delete("Pod", "work-0")
    await world.here.until("Pod", "work-0", lambda found: found is None)
    await world.there.until("Pod", remote_name(pod), lambda found: found is None)


async def test_files_go_along_and_away(world: World) -> None:
    await world.here.make("ConfigMap", "settings", data={"a": "1"})
    volumes = [{"name": "v", "configMap": {"name": "settings"}}, {"name": "w", "secret": {"secretName": "key"}}]
    pod = await world.pod(volumes=volumes)
    waits = await world.here.until("Pod", "work-0", lambda found: found and found.get("status", {}).get("containerStatuses"))
    assert waits is not None
    assert "not found here: Secret key" in waits["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
    assert await world.there.list("Pod") == []
    await world.here.make("Secret", "key", data={"k": "eA=="}, type="Opaque")
    await world.stop()
    await world.start()  # which asks again at once
    await world.has_phase("Running")
    copied = await world.there.get("Secret", source_name(pod, ("Secret", "key")))
    assert copied is not None
    assert copied["data"] == {"k": "eA=="}
    files = await world.there.get("ConfigMap", source_name(pod, ("ConfigMap", "settings")))
    assert files is not None
    assert files["data"] == {"a": "1"}
    await world.here.delete("Pod", "work-0", 5)
    await world.here.until("Pod", "work-0", lambda found: found is None)
    for kind in ("ConfigMap", "Secret", "Pod"):

        async def is_gone(kind: str = kind) -> bool:
            return await world.there.list(kind, CARRIER) == []

        await until(is_gone)


async def test_services_that_are_up_are_known_by_name(world: World) -> None:
    await world.here.make("Service", "store", spec={"clusterIP": "None", "ports": [{"port": 80}]})
    await world.here.make("Service", "later", spec={"clusterIP": "None", "ports": [{"port": 80}]})
    await world.here.make("Endpoints", "store", subsets=[{"addresses": [{"ip": "10.9.8.7"}], "ports": [{"port": 80}]}])
    pod = await world.pod()
    await world.has_phase("Running")
    copy = await world.there.get("Pod", remote_name(pod))
    assert copy is not None
    [alias] = copy["spec"]["hostAliases"]
    assert alias["ip"] == "10.9.8.7"
    assert {"store", "store.alice.svc", "store.alice.svc.cluster.local"} <= set(alias["hostnames"])


async def test_a_new_agent_goes_on_and_starts_nothing_twice(world: World) -> None:
    pod = await world.pod()
    await world.has_phase("Running")
    await world.stop()
    await annotate(world, unrelated="x")
    await world.start()
    await world.pod("work-1")
    await world.has_phase("Running", "work-1")
    assert set(world.machine.starts.values()) == {1}
    assert world.carrier.local_uids() == {uid_of(pod), uid_of(await world.has_phase("Running", "work-1"))}


async def test_the_end_is_seen_although_nobody_was_looking(world: World) -> None:
    """It is deleted there while no agent is up: the finalizer keeps it until its status is here."""
    pod = await world.pod()
    await world.has_phase("Running")
    await world.stop()
    # Long enough to end by itself: a deletion's time has whole seconds, so that of one second hardly anything may be left.
    await world.there.delete("Pod", remote_name(pod), 30)
    await world.there.until("Pod", remote_name(pod), lambda found: found and found["status"]["phase"] == "Failed")
    await world.start()
    failed = await world.has_phase("Failed")
    assert failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    await world.there.until("Pod", remote_name(pod), lambda found: found is None)
    assert set(world.machine.starts.values()) == {1}


async def test_a_copy_that_was_torn_away_is_lost_and_not_made_again(world: World) -> None:
    pod = await world.pod()
    await world.has_phase("Running")
    await world.stop()
    pods = await world.there.store.resource("", "Pod")
    await world.there.store.patch(pods, remote_name(pod), {"metadata": {"finalizers": None}}, world.there.namespace)
    await world.there.delete("Pod", remote_name(pod), 0)
    await world.there.until("Pod", remote_name(pod), lambda found: found is None)
    await world.start()
    failed = await world.has_phase("Failed")
    assert failed["status"]["reason"] == "Lost"
    assert await world.there.list("Pod") == []


async def test_what_is_gone_here_ends_there(world: World) -> None:
    """Deleted by force while no agent was up; and files of a pod that was never made."""
    pod = await world.pod()
    await world.has_phase("Running")
    await world.stop()
    await world.here.delete("Pod", "work-0", 0)
    await world.here.until("Pod", "work-0", lambda found: found is None)
    copy = await world.there.get("Pod", remote_name(pod))
    assert copy is not None
    labels = {**copy["metadata"]["labels"], "kuscia.secretflow/pod-uid": "never-made"}
    await world.there.make("ConfigMap", "left-over", metadata={"labels": labels})
    await world.there.make("ConfigMap", "somebody-elses", metadata={"labels": {CARRIER: "other"}})
    await world.start()
    await world.there.until("Pod", remote_name(pod), lambda found: found is None)
    await world.there.until("ConfigMap", "left-over", lambda found: found is None)
    assert await world.there.get("ConfigMap", "somebody-elses") is not None


async def test_a_namesake_has_a_copy_of_its_own(world: World) -> None:
    first = await world.pod()
    await world.has_phase("Running")
    await world.stop()
    await world.here.delete("Pod", "work-0", 0)
    second = await world.pod()
    await world.start()
    await world.has_phase("Running")
    await world.there.until("Pod", remote_name(first), lambda found: found is None)
    copy = await world.there.get("Pod", remote_name(second))
    assert copy is not None
    assert copy["metadata"]["finalizers"] == [FINALIZER]
    assert set(world.machine.starts.values()) == {1}


async def test_what_the_other_cluster_refuses_is_said(world: World) -> None:
    world.settings = Settings(
        kubeconfig=world.settings.kubeconfig, namespace=world.there.namespace, template={"spec": {"restartPolicy": "Sometimes"}}
    )
    await world.stop()
    await world.start()
    await world.pod()
    refused = await world.here.until("Pod", "work-0", lambda found: found and found.get("status", {}).get("containerStatuses"))
    assert refused is not None
    state = refused["status"]["containerStatuses"][0]["state"]["waiting"]
    assert state["reason"] == "CreateContainerConfigError"
    assert "Sometimes" in state["message"]
    await world.here.delete("Pod", "work-0", 5)
    await world.here.until("Pod", "work-0", lambda found: found is None)


async def test_logs_are_asked_for_there(world: World) -> None:
    await world.pod()
    await world.has_phase("Running")
    query = LogQuery(namespace="alice", pod="work-0", container="main")
    with pytest.raises(AgentError, match="the other cluster"):  # the simulated kubelet serves none
        async for _ in world.carrier.logs(query):
            pass
    with pytest.raises(AgentError, match="has no copy") as refused:
        async for _ in world.carrier.logs(LogQuery(namespace="alice", pod="other", container="main")):
            pass
    assert refused.value.reason == "NotFound"


@pytest.mark.parametrize("kubeconfig", ["", "/nowhere/kubeconfig"])
async def test_a_kubeconfig_that_can_not_be_used(world: World, kubeconfig: str) -> None:
    carrier = KubernetesPods(world.here.store, Settings(kubeconfig=kubeconfig), node=NODE, identity="m/1", clock=wall_clock)
    with pytest.raises(AgentError, match=r"kubernetes\.kubeconfig"):
        await carrier.open()
    await carrier.close()


async def test_the_other_cluster_may_be_away_at_the_start(world: World, tmp_path: Path) -> None:
    """Nothing is decided before its pods are known; then everything goes on."""
    await world.stop()
    path = tmp_path / "away"
    path.write_text(re.sub(r"https://127\.0\.0\.1:\d+", "https://127.0.0.1:1", Path(world.settings.kubeconfig).read_text()))
    real, world.settings = world.settings, Settings(kubeconfig=str(path), namespace=world.there.namespace)
    pod = await world.pod()
    await world.start()
    await asyncio.sleep(1.5)
    assert (await world.here.get("Pod", "work-0") or {}).get("status", {}).get("phase") in (None, "Pending")
    await world.stop()
    world.settings = real
    await world.start()
    await world.has_phase("Running")
    assert await world.there.get("Pod", remote_name(pod)) is not None
