"""Jobs at scale, in the simulator: what the controllers spend on one job, with few and with many others beside it.

Everything but the machines is real: store, controllers, scheduler. Time is virtual, so what is measured is work: processor
time, keys reconciled and writes. Each size runs in a process of its own, so that none inherits another's heap.

Three shapes: `many` (jobs of a few tasks, all at once), `accounted` (the same, of users with limits, prices and a budget: every
run is noted in the ledger), `graph` (one job, its tasks in layers).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from prometheus_client import REGISTRY

from muster.bench.lines import Say
from muster.controllers import cluster_controllers
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.meta import labels_of
from muster.objects.names import KUBERNETES_NAMESPACES
from muster.objects.status import Raw
from muster.server.accounting import AccountedPods
from muster.sim.faults import CALM
from muster.sim.machine import PodScript
from muster.sim.workloads import CROSS_DOMAIN, GROUP, app_image, domain, job_task, kuscia_job
from muster.sim.world import World, simulate
from muster.store.embedded import EmbeddedStore

Shape = Literal["many", "accounted", "graph"]
SIZES: tuple[tuple[Shape, int, int], ...] = (
    ("many", 10, 4), ("many", 100, 4), ("accounted", 100, 4), ("many", 1000, 4), ("graph", 1, 100), ("graph", 1, 1000),
)  # fmt: skip
USERS = 10
PARTIES = ("alice", "bob")
NODES_PER_PARTY = 10
RUN_S = 20.0
_LAYER = 100
"""Tasks of a graph that depend on the same one before them."""
_PARALLELISM = 128
_TIMEOUT_S = 1_000_000.0
_TRACE_LEN_MAX = 5_000_000


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    shape: Shape
    jobs: int
    tasks: int
    succeeded: int
    cpu_s: float
    cpu_ms_per_task: float
    reconciles_per_task: dict[str, float]
    """By controller."""
    writes_per_task: float
    virtual_s: float


def measure(shape: Shape, jobs: int, tasks: int, *, seed: int, say: Say) -> JobLine:
    """In a process of its own."""
    say(f"{jobs:,} jobs of {tasks:,} tasks")
    command = [sys.executable, "-m", "muster.bench.jobs", shape, str(jobs), str(tasks), str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=JobLine)


def manifests(shape: Shape, jobs: int, tasks: int) -> list[Raw]:
    """Jobs of chains, or one whose layers of tasks each wait for the first of the layer before."""
    if shape == "graph":
        made: list[dict[str, Any]] = []
        for n in range(tasks):
            layer = n // _LAYER
            made.append(job_task(f"t{n}", PARTIES, cpu="100m", dependencies=[f"t{(layer - 1) * _LAYER}"] if layer else []))
        return [kuscia_job("graph", made, maxParallelism=_PARALLELISM)]
    chain = [job_task(f"t{n}", PARTIES, cpu="100m", dependencies=[f"t{n - 1}"] if n else []) for n in range(tasks)]
    found = [kuscia_job(f"job-{n}", chain) for n in range(jobs)]
    if shape == "accounted":
        for n, job in enumerate(found):
            job["metadata"]["labels"] = {Muster.USER: f"user-{n % USERS}"}
    return found


def people() -> list[Raw]:
    """A group with prices and a budget, and its users; limits that nobody reaches, and that are checked all the same."""
    most = {"concurrent": {"cpu": 10_000}, "consumption": [{"resource": "cpu", "amount": 1_000_000, "period": "Month"}]}
    group = {"limits": most, "prices": [{"resource": "cpu", "amount": 1}], "budget": {"amount": 1_000_000}}
    own = {"group": "lab", "limits": {"concurrent": {"cpu": 1000}, "jobsSubmitted": 1000}}
    specs = [("UserGroup", "lab", group), *(("User", f"user-{n}", own) for n in range(USERS))]
    return [
        {"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        for kind, name, spec in specs
    ]


async def _scenario(world: World, work: Sequence[Raw]) -> int:
    for party in PARTIES:
        await world.create(domain(party))
        world.add_machines(
            NODES_PER_PARTY,
            prefix=party,
            capacity={"cpu": "64", "memory": "256Gi", "pods": "1000"},
            labels={KusciaLabel.NODE_NAMESPACE: party},
            script_for=lambda _pod: PodScript(run_s=RUN_S),
        )
    await world.create(app_image())
    if any(labels_of(job) for job in work):
        assert isinstance(world.store, EmbeddedStore)
        world.store.admission = AccountedPods()
        for raw in people():
            await world.create(raw)
    world.add_manager("controllers", cluster_controllers)
    for job in work:
        await world.create(job)
    resource = await world.store.resource(GROUP, "KusciaJob")
    open_names = {job["metadata"]["name"] for job in work}

    async def all_ended() -> bool:
        for job in (await world.store.list(resource, CROSS_DOMAIN)).items:
            if (job.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                open_names.discard(job["metadata"]["name"])
        return not open_names

    await world.run_until(all_ended, timeout_s=_TIMEOUT_S, every_s=60.0, what="the end of all jobs")
    found = (await world.store.list(resource, CROSS_DOMAIN)).items
    if any(labels_of(job) for job in work):
        records = (await world.store.list(await world.store.resource("muster.dev", "UsageRecord"))).items
        noted = sum(len(record["spec"]["runs"]) for record in records)
        assert noted == len(PARTIES) * sum(len(job["spec"]["tasks"]) for job in work), f"{noted} runs were noted"
    return sum((job.get("status") or {}).get("phase") == "Succeeded" for job in found)


def run_here(shape: Shape, jobs: int, tasks: int, seed: int) -> JobLine:
    """Simulate, and count what it took."""
    work = manifests(shape, jobs, tasks)
    ends: list[float] = []

    async def scenario(world: World) -> int:
        world.trace_len_max = _TRACE_LEN_MAX
        count = await _scenario(world, work)
        ends.append(world.loop.time())
        return count

    began_s = time.process_time()
    succeeded, trace = simulate(scenario, seed=seed, faults=CALM, namespaces=(*KUBERNETES_NAMESPACES, CROSS_DOMAIN))
    cpu_s = time.process_time() - began_s
    total = sum(len(job["spec"]["tasks"]) for job in work)
    return JobLine(
        shape=shape,
        jobs=len(work),
        tasks=total,
        succeeded=succeeded,
        cpu_s=round(cpu_s, 2),
        cpu_ms_per_task=round(1e3 * cpu_s / total, 2),
        reconciles_per_task={name: round(count / total, 2) for name, count in sorted(_reconciles().items())},
        writes_per_task=round(sum(" controllers#1: " in line for line in trace) / total, 2),
        virtual_s=round(ends[0], 1),
    )


def _reconciles() -> dict[str, float]:
    found: dict[str, float] = {}
    for metric in REGISTRY.collect():
        if metric.name == "muster_controller_reconciles":
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    name = sample.labels["controller"]
                    found[name] = found.get(name, 0.0) + sample.value
    return found


if __name__ == "__main__":
    import gc

    gc.disable()
    _, shape_, jobs_, tasks_, seed_ = sys.argv
    asked = msgspec.convert(shape_, Shape)
    sys.stdout.buffer.write(msgspec.json.encode(run_here(asked, int(jobs_), int(tasks_), int(seed_))))
