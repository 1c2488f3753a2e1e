"""Which nodes the real kube-scheduler finds feasible for each pod of a small cluster.

Nothing is placed: an extender (`extender`) writes down what the filters left and refuses it, and preemption is off. So each
pod meets the same cluster. All nodes are looked at (percentageOfNodesToScore 100). A pod that kube-scheduler calls
unschedulable without having asked the extender has no feasible node. Blocking; needs a control plane that holds no nodes and
no pods of anyone else.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from muster.bench.extender import Extender, PodKey
from muster.bench.filling import NODES, PODS, clear, connected, create_all
from muster.bench.kube_scheduler import KubeScheduler, SchedulerConfig
from muster.bench.kubernetes import ControlPlane
from muster.client.api import ApiClient
from muster.objects.catalog import CATALOG
from muster.objects.status import Raw

CLAIMS = CATALOG.by_kind("", "PersistentVolumeClaim")
VOLUMES = CATALOG.by_kind("", "PersistentVolume")
TIMEOUT_S = 120.0
POLL_S = 0.1


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that stands still, and pods to try on it. All manifests are raw; `running` pods have spec.nodeName.

    Names are unique per kind and namespace; `pods` carry the scheduler name given here.
    """

    name: str
    scheduler_name: str
    nodes: list[Raw]
    running: list[Raw]
    pods: list[Raw]
    namespaces: list[Raw] = []
    furniture: list[Raw] = []
    """Runtime classes and the like: left where they are afterwards."""
    volumes: list[Raw] = []
    claims: list[Raw] = []


def feasible_sets(plane: ControlPlane, case: Case) -> dict[PodKey, frozenset[str]]:
    """For each pod of the case, by namespace and name, the nodes that kube-scheduler would choose from."""
    return asyncio.run(_feasible_sets(plane, case))


async def _feasible_sets(plane: ControlPlane, case: Case) -> dict[PodKey, frozenset[str]]:
    async with connected(plane.kubeconfig_path) as client:
        await _require_empty(client)
        try:
            await _put(client, case)
            with Extender() as extender:
                config = SchedulerConfig(
                    scheduler_name=case.scheduler_name, percentage_of_nodes=100, preemption=False, extender_url=extender.url
                )
                with KubeScheduler(plane, config, name=f"kube-scheduler-{case.name}") as scheduler:
                    return await _answers(client, case, extender, scheduler)
        finally:
            for resource in (
                PODS,
                NODES,
                CATALOG.by_kind("", "PersistentVolumeClaim"),
                CATALOG.by_kind("", "PersistentVolume"),
            ):
                await clear(client, resource)
            await _unprotect(client)


async def _require_empty(client: ApiClient) -> None:
    for resource in (NODES, PODS):
        page = await client.list(resource, limit=1)
        if page.items:
            found = page.items[0]["metadata"]["name"]
            raise RuntimeError(f"the control plane holds {resource.kind} {found}, which would count; use one of your own")


async def _put(client: ApiClient, case: Case) -> None:
    await create_all(client, [*case.namespaces, *case.furniture])
    await create_all(client, [*case.nodes, *case.volumes, *case.claims])
    for node in case.nodes:
        # A server with default admission taints a new node as not ready, and nobody here would take that away.
        stored = await client.get(NODES, node["metadata"]["name"])
        wanted = node.get("spec", {}).get("taints", [])
        if stored["spec"].get("taints", []) != wanted:
            patch = {"spec": {"taints": wanted or None}}
            await client.patch(NODES, node["metadata"]["name"], patch)
    await create_all(client, case.running)
    await create_all(client, case.pods)


async def _answers(client: ApiClient, case: Case, extender: Extender, scheduler: KubeScheduler) -> dict[PodKey, frozenset[str]]:
    wanted = {(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in case.pods}
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        # The order matters: a refusal by the extender is recorded before it shows as a condition.
        page = await client.list(PODS, field_selector="spec.nodeName=")
        refused = {_key(pod) for pod in page.items if _is_unschedulable(pod)}
        seen = extender.seen
        if wanted <= refused | seen.keys():
            break
        if time.monotonic() > deadline or not scheduler.is_running:
            missing = sorted(wanted - refused - seen.keys())[:5]
            raise RuntimeError(f"kube-scheduler said nothing about pods {missing}; its log ends:\n{scheduler.log_tail()}")
        await asyncio.sleep(POLL_S)
    if differing := extender.differing:
        raise RuntimeError(f"kube-scheduler found different nodes for the same pod: {sorted(differing)[:5]}")
    return {key: seen.get(key, frozenset()) for key in wanted}


def _key(pod: Raw) -> PodKey:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _is_unschedulable(pod: Raw) -> bool:
    return any(
        condition["type"] == "PodScheduled" and condition["status"] == "False" and condition.get("reason") == "Unschedulable"
        for condition in pod.get("status", {}).get("conditions", [])
    )


async def _unprotect(client: ApiClient) -> None:
    """Claims and volumes carry finalizers, and their controller does not run here."""
    for resource in (CLAIMS, VOLUMES):
        for item in (await client.list(resource)).items:
            metadata = item["metadata"]
            patch = {"metadata": {"finalizers": None}}
            await client.patch(resource, metadata["name"], patch, metadata.get("namespace"))
