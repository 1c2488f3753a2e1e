"""A small world of parties and jobs for the simulator: builders, what must hold at every moment, and what in the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from muster.controllers import cluster_controllers
from muster.controllers.pod_gc import PodGarbage
from muster.controllers.runtime import Runnable
from muster.objects.labels import KusciaAnnotation, KusciaLabel
from muster.objects.meta import annotations_of, labels_of, name_of, namespace_of, uid_of
from muster.objects.status import Raw
from muster.sim.machine import Machine, PodScript
from muster.sim.workloads import GROUP, app_image, domain, job_task, kuscia_job
from muster.sim.world import World

PARTIES = ("alice", "bob", "carol")
FINISHED = ("Succeeded", "Failed")
RUN_S = 8.0


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a test's job. It fails `failures` times, at its first party, before it succeeds."""

    alias: str
    parties: tuple[str, ...]
    dependencies: tuple[str, ...] = ()
    tolerable: bool = False
    failures: int = 0
    retries: int = 0
    cpu: int = 1
    priority: int = 0

    @property
    def succeeds(self) -> bool:
        return self.failures <= self.retries


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    tasks: tuple[TaskSpec, ...]
    mode: str = "Strict"
    parallelism: int = 2

    @property
    def natural_phase(self) -> str:
        """How it ends when nobody interferes."""
        good: set[str] = set()
        for task in self.tasks:  # dependencies come first
            if task.succeeds and good.issuperset(task.dependencies):
                good.add(task.alias)
        return "Succeeded" if all(task.tolerable or task.alias in good for task in self.tasks) else "Failed"

    def task_id(self, alias: str) -> str:
        return f"{self.name}-{alias}"

    def manifest(self) -> Raw:
        tasks = [self._task(task) for task in self.tasks]
        return kuscia_job(self.name, tasks, scheduleMode=self.mode, maxParallelism=self.parallelism)

    def _task(self, task: TaskSpec) -> dict[str, Any]:
        return job_task(
            task.alias,
            task.parties,
            cpu=str(task.cpu),
            dependencies=task.dependencies,
            taskID=self.task_id(task.alias),
            tolerable=task.tolerable,
            priority=task.priority,
            **({"retry": {"limit": task.retries, "backoffSeconds": 2}} if task.retries else {}),
        )


def controllers() -> list[Runnable]:
    return [*cluster_controllers(), PodGarbage()]


class Outcomes:
    """Which pods fail: a pod's attempt is counted within its KusciaTask, from 1."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskSpec] = {}
        """By task id."""
        self._uids: dict[tuple[str, str, str], list[str]] = {}

    def add(self, job: JobSpec) -> None:
        self.tasks.update({job.task_id(task.alias): task for task in job.tasks})

    def script(self, pod: Raw) -> PodScript:
        task = self.tasks.get(annotations_of(pod).get(KusciaAnnotation.TASK_ID, ""))
        if task is None:
            return PodScript(run_s=RUN_S)
        # Pods of two parties may have the same name.
        key = (labels_of(pod).get(KusciaLabel.TASK_UID, ""), namespace_of(pod), name_of(pod))
        uids = self._uids.setdefault(key, [])
        if uid_of(pod) not in uids:
            uids.append(uid_of(pod))
        attempt = uids.index(uid_of(pod)) + 1
        fails = attempt <= task.failures and namespace_of(pod) == task.parties[0]
        return PodScript(run_s=RUN_S / 2 if fails else RUN_S, exit_code=1 if fails else 0, stop_s=0.5)


async def build(world: World, outcomes: Outcomes, *, cpus: int = 4, parties: Sequence[str] = PARTIES) -> dict[str, Machine]:
    """One machine for each party, the parties, and the application that all tasks run."""
    await world.create(app_image())
    machines = {}
    for party in parties:
        await world.create(domain(party))
        capacity = {"cpu": str(cpus), "memory": "32Gi", "pods": "110"}
        labels = {KusciaLabel.NODE_NAMESPACE: party}
        [machines[party]] = world.add_machines(1, prefix=party, capacity=capacity, labels=labels, script_for=outcomes.script)
    return machines


# -- at every moment -----------------------------------------------------------------------------------------------------------


def guard(world: World) -> None:
    world.invariant("no node over its capacity", never_oversubscribed)
    world.invariant("started once", started_once)
    world.invariant("all parties or none", all_or_none)
    world.invariant("what has succeeded is not run again", succeeded_once)


def cpus_of(pod: Raw) -> int:
    total = 0
    for container in pod["spec"]["containers"]:
        total += int(((container.get("resources") or {}).get("requests") or {}).get("cpu", 0))
    return total


async def never_oversubscribed(world: World) -> None:
    used: dict[str, int] = {}
    for pod in await world.objects("", "Pod"):
        if (node := pod["spec"].get("nodeName")) and (pod.get("status") or {}).get("phase") not in FINISHED:
            used[node] = used.get(node, 0) + cpus_of(pod)
    for node, cpus in used.items():
        capacity = int(world.machines[node].capacity["cpu"])
        assert cpus <= capacity, f"{node} has {cpus} of {capacity} CPUs in use"


def started_once(world: World) -> None:
    for machine in world.machines.values():
        for uid, starts in machine.starts.items():
            assert starts <= 1, f"pod {uid} was started {starts} times on {machine.name}"


async def all_or_none(world: World) -> None:
    """While a pod of a task runs, every party that the task can't do without has (or had, in this attempt) its resources."""
    had: dict[str, dict[str, str]] = world.memory.setdefault("had", {})
    """By TaskResourceGroup uid: pods (namespace/name) that were bound, or in a plan that will be carried out."""
    pods = await world.objects("", "Pod")
    planned = {pod["uid"] for placement in await world.objects("muster.dev", "Placement") for pod in placement["spec"]["pods"]}
    now_s = world.loop.time()
    running = {uid for machine in world.machines.values() for uid in machine.running(now_s)}
    alive: dict[str, str] = {}
    for pod in pods:
        group = labels_of(pod).get(KusciaLabel.TASK_RESOURCE_GROUP_UID)
        if not group:
            continue
        if pod["spec"].get("nodeName") or uid_of(pod) in planned:
            had.setdefault(group, {})[f"{namespace_of(pod)}/{name_of(pod)}"] = namespace_of(pod)
        if uid_of(pod) in running:
            alive[group] = annotations_of(pod).get(KusciaAnnotation.TASK_RESOURCE_GROUP, "")
    if not alive:
        return
    for trg in await world.objects(GROUP, "TaskResourceGroup"):
        if uid_of(trg) in alive:
            _check_group(trg, set(had.get(uid_of(trg), {})))


def _check_group(trg: Raw, had: set[str]) -> None:
    spec = trg["spec"]
    parties: list[dict[str, Any]] = spec["parties"]
    ready = 0
    for party in parties:
        names = {f"{party['domainID']}/{pod['name']}" for pod in party.get("pods") or ()}
        ready += len(names & had) >= (party.get("minReservedPods") or len(names))
    least = spec.get("minReservedMembers") or len(parties)
    assert ready >= least, f"task {name_of(trg)} runs, and only {ready} of {least} parties have resources"


async def succeeded_once(world: World) -> None:
    done: dict[str, str] = world.memory.setdefault("succeeded", {})
    for task in await world.objects(GROUP, "KusciaTask"):
        known = done.get(name_of(task))
        assert known in (None, uid_of(task)), f"task {name_of(task)} had succeeded and was made again"
        if (task.get("status") or {}).get("phase") == "Succeeded":
            done[name_of(task)] = uid_of(task)


# -- in the end ----------------------------------------------------------------------------------------------------------------


async def phases(world: World) -> dict[str, str]:
    return {name_of(job): (job.get("status") or {}).get("phase", "") for job in await world.objects(GROUP, "KusciaJob")}


async def held_by_finished_work(world: World) -> list[str]:
    """What is left over from tasks that have ended: nothing, when all is well."""
    found = [f"Placement {name_of(p)}" for p in await world.objects("muster.dev", "Placement")]
    ended = {name_of(t) for t in await world.objects(GROUP, "KusciaTask") if (t.get("status") or {}).get("phase") in FINISHED}
    live = {name_of(t) for t in await world.objects(GROUP, "KusciaTask")} - ended
    for kind in ("Pod", "Service", "ConfigMap"):
        for one in await world.objects("", kind):
            task = annotations_of(one).get(KusciaAnnotation.TASK_ID)
            if task is None or task in live:
                continue
            if kind != "Pod" or (one.get("status") or {}).get("phase") not in FINISHED:
                found.append(f"{kind} {namespace_of(one)}/{name_of(one)} of task {task}")
    groups = {name_of(trg) for trg in await world.objects(GROUP, "TaskResourceGroup")}
    return [*found, *(f"TaskResourceGroup {name} of no task" for name in sorted(groups - ended - live))]


def chain(name: str, parties: Iterable[str], length: int, **options: Any) -> JobSpec:
    """A job whose tasks follow each other."""
    tasks = [TaskSpec(alias=f"t{n}", parties=tuple(parties), dependencies=(f"t{n - 1}",) if n else ()) for n in range(length)]
    return JobSpec(name=name, tasks=tuple(tasks), **options)
