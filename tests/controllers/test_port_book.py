"""Who has which port: caches, ledger, and what the store held when the term began."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, cast

import pytest

from muster.controllers.port_book import PORT_INDEX, PortBook, ports_of_deployment, ports_of_task
from muster.controllers.runtime import Caches, Context, Watch
from muster.controllers.task_ports import PortLedger
from muster.objects.kinds.kuscia_base import GROUP
from muster.objects.kinds.kuscia_tasks import KusciaTask, PartyAllocatedPorts
from muster.objects.labels import KusciaAnnotation
from muster.objects.status import Raw
from muster.store.cache import Cache, Cached

TASKS = Watch(group=GROUP, kind="KusciaTask", view=KusciaTask, indexes={PORT_INDEX: ports_of_task})
DEPLOYMENTS = Watch(group=GROUP, kind="KusciaDeployment", indexes={PORT_INDEX: ports_of_deployment})
NUMBER = 25_000


def task(uid: str, *, phase: str = "Running", is_released: bool = False) -> Raw:
    status: Raw = {"phase": phase, "allocatedPorts": [{"domainID": "alice", "namedPort": {"t-0/p": NUMBER}}]}
    status["conditions"] = [{"type": "ResourceCreated", "status": "True", "reason": "Released" if is_released else "Created"}]
    meta = {"name": uid, "namespace": "cross-domain", "uid": uid}
    spec = {"initiator": "alice", "taskInputConfig": "", "parties": []}
    return {"apiVersion": f"{GROUP}/v1alpha1", "kind": "KusciaTask", "metadata": meta, "spec": spec, "status": status}


def deployment(uid: str) -> Raw:
    text = f'[{{"domainID": "alice", "namedPort": {{"d/p": {NUMBER}}}}}]'
    meta = {"name": uid, "namespace": "cross-domain", "uid": uid, "annotations": {KusciaAnnotation.ALLOCATED_PORTS: text}}
    return {"apiVersion": f"{GROUP}/v1alpha1", "kind": "KusciaDeployment", "metadata": meta, "spec": {}}


@dataclasses.dataclass
class Informed:
    version: str
    cache: Cache


class World:
    """A store at version 10, and caches that are as far as they are told to be."""

    def __init__(self, *stored: Raw) -> None:
        self.stored = stored
        self.informed = {watch: Informed("5", Cache()) for watch in (TASKS, DEPLOYMENTS)}
        for watch, one in self.informed.items():
            for name, function in watch.indexes.items():
                one.cache.add_index(name, function)
        self.caches = Caches(cast(Any, self.informed))

    async def resource(self, _group: str, kind: str) -> str:
        return kind

    async def list(self, kind: str, _namespace: str, **_options: Any) -> Any:
        items = [raw for raw in self.stored if raw["kind"] == kind]
        return type("Page", (), {"items": items, "resource_version": "10", "continue_token": ""})()

    def show(self, raw: Raw, watch: Watch) -> Cached:
        cached = Cached(watch.kind, raw, "1", "bytes", [KusciaTask] if watch is TASKS else [])
        self.informed[watch].cache.put(cached)
        return cached

    def begun(self) -> PortBook:
        book = PortBook(PortLedger(), TASKS, DEPLOYMENTS)
        context = cast(Any, type("Term", (), {"store": self, "caches": self.caches}))
        asyncio.run(book.begin(cast(Context, context)))
        return book


@pytest.mark.parametrize(
    ("stored", "is_taken"),
    [
        pytest.param(task("t"), True, id="a task"),
        pytest.param(deployment("d"), True, id="a deployment"),
        pytest.param(task("t", phase="Failed"), True, id="a task that ended and whose pods may still run"),
        pytest.param(task("t", phase="Failed", is_released=True), False, id="a task of which nothing is left"),
    ],
)
def test_what_the_store_held_at_the_start_is_taken_though_caches_lag(stored: Raw, is_taken: bool) -> None:
    world = World(stored)
    book = world.begun()
    assert book.is_taken("alice", NUMBER, "other", world.caches) is is_taken
    assert not book.is_taken("alice", NUMBER, stored["metadata"]["uid"], world.caches), "it may have its own again"
    assert not book.is_taken("bob", NUMBER, "other", world.caches)


def test_a_cache_that_has_come_as_far_is_believed() -> None:
    """What was there at the start and is gone since is free, whatever other kinds' caches do."""
    world = World(task("gone"))
    book = world.begun()
    assert book.is_taken("alice", NUMBER, "other", world.caches)
    world.informed[TASKS].version = "10"
    assert not book.is_taken("alice", NUMBER, "other", world.caches)


def test_what_this_process_gives_out_is_taken_until_the_cache_shows_it_or_it_is_gone() -> None:
    world = World()
    book = world.begun()
    fresh = {**task("t"), "status": {}}
    cached = world.show(fresh, TASKS)
    book.note(cached, [PartyAllocatedPorts(domain_id="alice", named_port={"t-0/p": NUMBER})], is_shown=False)
    book.note(cached, None, is_shown=False)
    assert book.is_taken("alice", NUMBER, "other", world.caches), "the cache lags"
    book.note(world.show(task("t"), TASKS), None, is_shown=True)
    assert book.is_taken("alice", NUMBER, "other", world.caches), "from the cache now"
    world.informed[TASKS].cache = Cache()
    world.informed[TASKS].cache.add_index(PORT_INDEX, ports_of_task)
    book.forget(cached.key)
    assert not book.is_taken("alice", NUMBER, "other", world.caches)
