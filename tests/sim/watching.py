"""What must hold at every moment where several control planes share tasks, and how to look at them."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tests.controllers.scheduling import used

from muster.objects.labels import KusciaAnnotation
from muster.objects.meta import annotations_of, namespace_of, uid_of
from muster.sim.planes import Planes
from muster.sim.world import World


class Snapshot(NamedTuple):
    """One plane at one moment."""

    version: str
    places: Counter[tuple[str, str]]
    """By task and party: pods that have a place, promised or real."""
    begun: frozenset[str]
    """Tasks of which a pod is on a node."""
    cpus: dict[str, int]
    """In use, by node."""


async def snapshot(world: World) -> Snapshot:
    """Remembered until something is written: invariants ask for it after every write to either store."""
    pods = await world.store.resource("", "Pod")
    version = (await world.store.list(pods, limit=1)).resource_version
    known: Snapshot | None = world.memory.get("snapshot")
    if known is not None and known.version == version:
        return known
    planned = {pod["uid"] for one in await world.objects("muster.dev", "Placement") for pod in one["spec"]["pods"]}
    places: Counter[tuple[str, str]] = Counter()
    begun: set[str] = set()
    found = await world.objects("", "Pod")
    for pod in found:
        task = annotations_of(pod).get(KusciaAnnotation.TASK_RESOURCE_GROUP, "")
        if pod["spec"].get("nodeName"):
            begun.add(task)
        if pod["spec"].get("nodeName") or uid_of(pod) in planned:
            places[task, namespace_of(pod)] += 1
    world.memory["snapshot"] = made = Snapshot(version, places, frozenset(begun), used(found))
    return made


async def begun(planes: Planes) -> set[str]:
    return {task for world in planes.worlds.values() for task in (await snapshot(world)).begun}


async def never_oversubscribed(planes: Planes) -> None:
    for world in planes.worlds.values():
        for where, cpus in (await snapshot(world)).cpus.items():
            capacity = int(world.machines[where].capacity["cpu"])
            assert cpus <= capacity, f"{where} has {cpus} of {capacity} CPUs in use"
