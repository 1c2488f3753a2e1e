"""Jobs that wait are no storm of writes: all controllers, the real store, and every change of it counted.

While nothing happens, nothing is written about what waits, however much it is. While jobs end, what is written for each of them
is bounded by the places that are told one by one, and does not grow with the number of those that wait.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest

from muster.controllers import cluster_controllers
from muster.controllers.places import TOP
from muster.objects.names import KUBERNETES_NAMESPACES
from muster.objects.status import Raw
from muster.sim.faults import CALM
from muster.sim.machine import PodScript
from muster.sim.world import World, simulate
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.collection import Collection
from muster.store.embedded.records import Event

JOBS = 120
QUEUES = 2
AT_ONCE = 2
RUN_S = 600.0
SETTLE_S = 120.0
OWN_WRITES_MAX = 8
"""Of a job that starts and one that ends in its place: transitions, counts, and the message of the next in line."""
_HEARTBEATS = ("leases.coordination.k8s.io", "nodes")


def named(kind: str, name: str, spec: Raw) -> Raw:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def job(number: int) -> Raw:
    role = {"name": "w", "command": ["x"], "resources": {"requests": {"cpu": "1"}}}
    raw = named("Job", f"j{number:04}", {"queue": f"q{number % QUEUES}", "roles": [role]})
    raw["metadata"]["namespace"] = "default"
    return raw


class Writes:
    def __init__(self, store: EmbeddedStore) -> None:
        self.counts: Counter[str] = Counter()
        store.listeners.append(self._note)

    def _note(self, collection: Collection, _event: Event) -> None:
        if collection.id not in _HEARTBEATS:
            self.counts[collection.id] += 1


@pytest.mark.slow
def test_what_waits_is_not_written_again_and_again() -> None:
    async def scenario(world: World) -> tuple[Counter[str], Counter[str], int]:
        assert isinstance(world.store, EmbeddedStore)
        writes = Writes(world.store)
        world.add_machines(1, capacity={"cpu": str(AT_ONCE), "memory": "8Gi", "pods": "100"}, script_for=_script)
        world.add_manager("controllers", cluster_controllers)
        for number in range(QUEUES):
            await world.create(named("Queue", f"q{number}", {"policy": "balanced"}))
        for number in range(JOBS):
            await world.create(job(number))
        await world.run_for(SETTLE_S, every_s=SETTLE_S)
        assert await _in_phase(world, "Queued") == JOBS - AT_ONCE
        writes.counts.clear()
        await world.run_for(RUN_S - 2 * SETTLE_S, every_s=RUN_S)
        calm = writes.counts.copy()
        writes.counts.clear()
        await world.run_for(2 * RUN_S, every_s=RUN_S)
        return calm, writes.counts.copy(), await _in_phase(world, "Succeeded")

    (calm, moving, ended), _ = simulate(scenario, faults=CALM, namespaces=KUBERNETES_NAMESPACES)
    assert calm["jobs.muster.dev"] == calm["pods"] == calm["events"] == 0, calm
    assert calm["queues.muster.dev"] <= QUEUES, calm
    assert ended >= 2 * AT_ONCE
    per_end = TOP + OWN_WRITES_MAX + math.ceil(math.log2(JOBS / TOP))
    assert moving["jobs.muster.dev"] <= ended * per_end, moving
    assert moving["pods"] <= ended * OWN_WRITES_MAX, moving


def _script(_pod: Raw) -> PodScript:
    return PodScript(run_s=RUN_S)


async def _in_phase(world: World, phase: str) -> int:
    jobs = await world.objects("muster.dev", "Job", "default")
    return sum((one.get("status") or {}).get("phase") == phase for one in jobs)
