"""Builders and a running scheduler for tests: real store, real engine, virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from muster.controllers.manager import Manager
from muster.controllers.scheduler import Scheduler
from muster.controllers.scheduler_running import SchedulerRunner
from muster.engine.machine import Engine
from muster.engine.plugin import Plugin
from muster.engine.plugins.default_preemption import DefaultPreemption
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.objects.conditions import find_condition
from muster.objects.status import Raw
from muster.sim.clock import current_loop
from muster.store.contract import Store

PROFILE = "muster-scheduler"


def engine_of(*more: Plugin, is_shadow: bool = False) -> Engine:
    """A profile that looks at amounts, and preempts."""
    return Engine([Profile(PROFILE, [Fit(), DefaultPreemption(), *more], is_shadow=is_shadow)])


def node(name: str, cpu: str = "4", **resources: str) -> Raw:
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": "110", **resources}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod(
    name: str,
    cpu: str = "1",
    *,
    namespace: str = "default",
    scheduler: str = PROFILE,
    gang: str = "",
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Raw:
    labels = dict(labels or {})
    if gang:
        labels["pod-group.scheduling.sigs.k8s.io"] = gang
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"schedulerName": scheduler, "restartPolicy": "Never", "containers": [container], **spec},
    }


def pod_group(name: str, least: int, namespace: str = "default") -> Raw:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minMember": least},
    }


async def create(store: Store, *objects: Raw) -> list[Raw]:
    made = []
    for obj in objects:
        resource = await store.resource(str(obj["apiVersion"]).rpartition("/")[0], str(obj["kind"]))
        made.append(await store.create(resource, obj, obj["metadata"].get("namespace")))
    return made


async def objects(store: Store, kind: str, group: str = "") -> list[Raw]:
    return (await store.list(await store.resource(group, kind))).items


async def places(store: Store) -> dict[str, str]:
    """Where each pod is; empty for those without a node."""
    return {p["metadata"]["name"]: p["spec"].get("nodeName", "") for p in await objects(store, "Pod")}


async def events(store: Store, reason: str) -> list[Raw]:
    return [event for event in await objects(store, "Event") if event["reason"] == reason]


async def condition(store: Store, name: str, type_: str) -> Raw:
    pods = await store.resource("", "Pod")
    live = await store.get(pods, name, "default")
    return find_condition((live.get("status") or {}).get("conditions"), type_) or {}


def used(pods: Sequence[Raw]) -> dict[str, int]:
    """Whole CPUs per node that pods which have not ended ask for."""
    total: dict[str, int] = {}
    for one in pods:
        where = one["spec"].get("nodeName")
        if where and (one.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            total[where] = total.get(where, 0) + int(one["spec"]["containers"][0]["resources"]["requests"]["cpu"])
    return total


@asynccontextmanager
async def scheduling(store: Store, scheduler: Scheduler | None = None) -> AsyncIterator[SchedulerRunner]:
    manager = Manager(store, [scheduler or Scheduler(engine=engine_of)], clock=current_loop().clock)
    runner = manager.runners[0]
    assert isinstance(runner, SchedulerRunner)
    manager.start()
    try:
        yield runner
    finally:
        await manager.stop()
