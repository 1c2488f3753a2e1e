"""What must hold at every moment where several control planes share tasks, and how to look at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tests.controllers.scheduling import used

from muster.objects.labels import KusciaAnnotation
from muster.objects.meta import annotations_of, namespace_of, uid_of
from muster.objects.status import Raw
from muster.sim.planes import Planes
from muster.sim.world import World
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.records import Key

T = TypeVar("T")


class Snapshot(NamedTuple):
    """One plane at one moment."""

    places: Counter[tuple[str, str]]
    """By task and party: pods that have a place, promised or real."""
    begun: frozenset[str]
    """Tasks of which a pod is on a node."""
    cpus: dict[str, int]
    """In use, by node."""


class PodFacts(NamedTuple):
    """What a snapshot needs to know of a pod."""

    uid: str
    task: str
    party: str
    node: str
    cpus: dict[str, int]


async def snapshot(world: World) -> Snapshot:
    """Invariants ask for it after every write to either store, so an object is decoded once for each version of it."""
    planned = {uid for uids in await _read(world, "muster.dev", "Placement", _planned) for uid in uids}
    places: Counter[tuple[str, str]] = Counter()
    begun: set[str] = set()
    cpus: Counter[str] = Counter()
    for pod in await _read(world, "", "Pod", _facts):
        if pod.node:
            begun.add(pod.task)
        if pod.node or pod.uid in planned:
            places[pod.task, pod.party] += 1
        cpus.update(pod.cpus)
    return Snapshot(places, frozenset(begun), dict(cpus))


async def _read(world: World, group: str, kind: str, read: Callable[[Raw], T]) -> list[T]:
    """`read` of every object of a kind; what it said of a version is remembered."""
    assert isinstance(world.store, EmbeddedStore)
    known: dict[tuple[Key, int], T] = world.memory.get(kind, {})
    records = world.store.list_records(await world.store.resource(group, kind)).records
    now = {}
    for record in records:
        version = (record.key, record.rv)
        now[version] = known[version] if version in known else read(record.raw())
    world.memory[kind] = now
    return list(now.values())


def _planned(placement: Raw) -> list[str]:
    return [pod["uid"] for pod in placement["spec"]["pods"]]


def _facts(pod: Raw) -> PodFacts:
    task = annotations_of(pod).get(KusciaAnnotation.TASK_RESOURCE_GROUP, "")
    return PodFacts(uid_of(pod), task, namespace_of(pod), pod["spec"].get("nodeName", ""), used([pod]))


async def begun(planes: Planes) -> set[str]:
    return {task for world in planes.worlds.values() for task in (await snapshot(world)).begun}


async def never_oversubscribed(planes: Planes) -> None:
    for world in planes.worlds.values():
        for where, cpus in (await snapshot(world)).cpus.items():
            capacity = int(world.machines[where].capacity["cpu"])
            assert cpus <= capacity, f"{where} has {cpus} of {capacity} CPUs in use"
