"""Runs all manifests of one folder in one simulated world, and keeps every version of every object that was there.

The world is the real thing but for its machines: the controllers of a cluster, the scheduler, agents, and the embedded store,
which defaults, checks and refuses what is submitted as the server does. A `Node` in a manifest becomes a simulated machine with
its labels and capacity. What a pod does there it says itself, as for `muster up --simulated-nodes`.

Checks read the record after the end, so that one run serves all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from muster.cli.simulated import exit_code_of, failures_of, seconds_of
from muster.controllers import cluster_controllers
from muster.controllers.pod_gc import PodGarbage
from muster.objects.meta import name_of, namespace_of, uid_of
from muster.objects.names import KUBERNETES_NAMESPACES, NAMESPACE_CROSS_DOMAIN
from muster.objects.status import ApiError, Invalid, Raw
from muster.sim.machine import PodScript
from muster.sim.world import World, simulate

MANIFESTS = Path(__file__).parent / "manifests"
COMMON = "common.yaml"
SETTLE_S = 5.0
"""For nodes and namespaces to come."""
KUSCIA, SIGS, MUSTER = "kuscia.secretflow", "scheduling.sigs.k8s.io", "muster.dev"
_GROUPS = {
    "KusciaJob": KUSCIA,
    "KusciaTask": KUSCIA,
    "KusciaDeployment": KUSCIA,
    "TaskResourceGroup": KUSCIA,
    "TaskResource": KUSCIA,
    "PodGroup": SIGS,
    "Placement": MUSTER,
    "Pod": "",
    "Service": "",
    "ConfigMap": "",
}
"""The kinds that are kept."""

Act = Callable[["Stage"], Awaitable[None]]


class Seen(msgspec.Struct, frozen=True):
    """One version of an object. `at` is in seconds since the manifests were submitted."""

    at: float
    raw: Raw
    is_gone: bool


class Record:
    """What was there, by kind and `namespace/name` (or `name`)."""

    def __init__(self) -> None:
        self.versions: dict[tuple[str, str], list[Seen]] = {}
        self.refused: dict[str, str] = {}
        """`Kind/name` to what the server said to a manifest that it refused."""
        self.failures: dict[str, Exception] = {}
        """By file: what went wrong with its act."""

    def add(self, kind: str, raw: Raw, at: float, *, is_gone: bool) -> None:
        self.versions.setdefault((kind, key_of(raw)), []).append(Seen(at, raw, is_gone))

    def all(self, kind: str, key: str) -> list[Seen]:
        """Every version, the first first. There is at least one."""
        found = self.versions.get((kind, key))
        assert found, f"there never was a {kind} {key}; there were {self.keys(kind)}"
        return found

    def keys(self, kind: str, prefix: str = "") -> list[str]:
        """In the order in which they were first seen."""
        return [key for known, key in self.versions if known == kind and key.startswith(prefix)]

    def last(self, kind: str, key: str) -> Raw:
        return self.all(kind, key)[-1].raw

    def first(self, kind: str, key: str) -> Raw:
        return self.all(kind, key)[0].raw

    def status(self, kind: str, key: str) -> Raw:
        """As it was in the end."""
        status: Raw = self.last(kind, key).get("status") or {}
        return status

    def values(self, kind: str, key: str, *path: str) -> list[Any]:
        """The values that a field had, one after the other, each once in a row; None where it was not there."""
        found: list[Any] = []
        for seen in self.all(kind, key):
            value: Any = seen.raw
            for word in path:
                value = value.get(word) if isinstance(value, dict) else None
            if not found or found[-1] != value:
                found.append(value)
        return found

    def when(self, kind: str, key: str, test: Callable[[Raw], object]) -> float:
        """When the first version came for which `test` holds."""
        for seen in self.all(kind, key):
            if test(seen.raw):
                return seen.at
        raise AssertionError(f"no version of {kind} {key} is so; the last is {self.last(kind, key)}")

    def ever(self, kind: str, key: str, test: Callable[[Raw], object]) -> bool:
        return any(test(seen.raw) for seen in self.all(kind, key))


class Stage:
    """For what a manifest can't do alone: somebody changes or deletes something while it runs."""

    def __init__(self, world: World, record: Record) -> None:
        self.world, self.record = world, record

    async def until(self, kind: str, key: str, test: Callable[[Raw], object]) -> None:
        def holds() -> bool:
            versions = self.record.versions.get((kind, key))
            return bool(versions and not versions[-1].is_gone and test(versions[-1].raw))

        await self.world.run_until(holds, timeout_s=300, every_s=0.5, what=f"what was waited for at {kind} {key}")

    async def patch(self, kind: str, key: str, change: Raw, *, group: str | None = None, subresource: str = "") -> None:
        namespace, _, name = key.rpartition("/")
        resource = await self.world.store.resource(_GROUPS.get(kind, "") if group is None else group, kind)
        await self.world.store.patch(resource, name, change, namespace or None, subresource=subresource)

    async def delete(self, kind: str, key: str) -> None:
        namespace, _, name = key.rpartition("/")
        await self.world.store.delete(await self.world.store.resource(_GROUPS.get(kind, ""), kind), name, namespace or None)

    async def refused(self, what: str, change: Awaitable[None]) -> None:
        """Keep what the server says to a change that it refuses."""
        try:
            await change
        except Invalid as error:
            self.record.refused[what] = str(error)


def key_of(raw: Raw) -> str:
    return f"{namespace_of(raw)}/{name_of(raw)}" if namespace_of(raw) else name_of(raw)


def documents(file: Path) -> list[Raw]:
    return [one for one in yaml.safe_load_all(file.read_text()) if one]


class _Scripts:
    """What pods do, and how often one of a name has failed."""

    def __init__(self) -> None:
        self._failed: dict[str, list[str]] = {}

    def __call__(self, pod: Raw) -> PodScript:
        exit_code, limit = exit_code_of(pod), failures_of(pod)
        runs = self._failed.setdefault(key_of(pod), [])
        if uid_of(pod) not in runs:
            runs.append(uid_of(pod))
        if limit is not None and runs.index(uid_of(pod)) >= limit:
            exit_code = 0
        return PodScript(run_s=seconds_of(pod), exit_code=exit_code)


def run(folder: str, files: Sequence[str], acts: Mapping[str, Act], *, seconds: float, seed: int = 0) -> Record:
    """Submit the files of a folder, after what they share, and let `seconds` of virtual time pass. `acts` are by file."""
    record = Record()

    async def scenario(world: World) -> None:
        world.add_manager("controllers", lambda: [*cluster_controllers(), PodGarbage()])
        scripts = _Scripts()
        for document in documents(MANIFESTS / COMMON):
            await _submit(world, document, record, scripts)
        await world.run_for(SETTLE_S, every_s=5.0)
        began_s = world.loop.time()
        for kind in _GROUPS:
            world.spawn(_follow(world, kind, record, began_s), name=f"record {kind}")
        for file in files:
            for document in documents(MANIFESTS / folder / file):
                await _submit(world, document, record, scripts)
        stage = Stage(world, record)
        acting = [_try(file, act(stage), record) for file, act in acts.items()]
        await asyncio.gather(world.run_for(seconds, every_s=5.0), *acting)

    simulate(scenario, seed=seed, namespaces=(*KUBERNETES_NAMESPACES, NAMESPACE_CROSS_DOMAIN))
    return record


async def _try(file: str, act: Awaitable[None], record: Record) -> None:
    """What goes wrong is the affair of this file's test alone."""
    try:
        await act
    except (AssertionError, ApiError) as error:
        record.failures[file] = error


async def _submit(world: World, document: Raw, record: Record, scripts: _Scripts) -> None:
    metadata = document["metadata"]
    if document["kind"] == "Node":
        capacity = {"pods": "110", "memory": "64Gi", **document["status"]["capacity"]}
        world.add_machines(1, prefix=metadata["name"], capacity=capacity, labels=metadata["labels"], script_for=scripts)
        return
    try:
        await world.create(document)
    except Invalid as error:
        record.refused[f"{document['kind']}/{metadata['name']}"] = str(error)


async def _follow(world: World, kind: str, record: Record, began_s: float) -> None:
    resource = await world.store.resource(_GROUPS[kind], kind)
    async for event in world.store.watch(resource, bookmarks=False):
        record.add(kind, event.object, world.loop.time() - began_s, is_gone=event.type == "DELETED")
