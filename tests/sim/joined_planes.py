"""Two control planes that run jobs together, what must hold of them at every moment, and how to look at and disturb them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from tests.sim.watching import never_oversubscribed

from muster.controllers import cluster_controllers
from muster.controllers.interconn import Interconn
from muster.controllers.pod_gc import PodGarbage
from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.meta import annotations_of, labels_of, name_of, namespace_of, owners_of, uid_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import Raw
from muster.server.admission import PodPriority, PriorityClasses
from muster.sim.machine import PodScript
from muster.sim.planes import Planes
from muster.sim.workloads import GROUP, app_image, domain
from muster.sim.world import World
from muster.store.embedded import EmbeddedStore

NAMES = ("alice", "bob")
KINDS = ("KusciaJob", "KusciaTask", "TaskResourceGroup", "TaskResource", "KusciaTaskSummary", "KusciaJobSummary")


class Script:
    """A party's pods fail so many times before they succeed."""

    def __init__(self, failures: int, run_s: float) -> None:
        self._failures, self._run_s = failures, run_s
        self._seen: dict[str, list[str]] = {}

    def __call__(self, pod: Raw) -> PodScript:
        uids = self._seen.setdefault(name_of(pod), [])
        if uid_of(pod) not in uids:
            uids.append(uid_of(pod))
        return PodScript(run_s=self._run_s, exit_code=int(uids.index(uid_of(pod)) < self._failures), stop_s=0.5)


async def assemble(
    planes: Planes, *, failures: int = 0, failing: str = "bob", machines: int = 1, run_s: float = 20, least: int = 2
) -> None:
    """All controllers of both planes, joined by the links alone; pods of one party fail so many times."""
    for name, world in planes.worlds.items():
        classes = PriorityClasses()
        classes.apply({"metadata": {"name": "urgent"}, "value": 1_000})
        assert isinstance(world.store, EmbeddedStore)
        world.store.admission = PodPriority(classes)
        await world.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE_CROSS_DOMAIN}})
        await world.create(app_image())
        for one in NAMES:
            made = domain(one)
            made["spec"] = {"role": "partner", "interConnProtocols": ["kuscia"]} if one != name else {}
            await world.create(made)
        world.add_machines(
            machines,
            prefix=name,
            capacity={"cpu": "4", "memory": "64Gi", "pods": "100"},
            labels={KusciaLabel.NODE_NAMESPACE: name},
            script_for=Script(failures if name == failing else 0, run_s),
        )
        world.add_manager(f"{name}-manager", lambda: [PodGarbage(), *cluster_controllers()])
        other = NAMES[1 - NAMES.index(name)]
        planes.link(name, "interconn", other, lambda host, name=name: [Interconn(host, name)])  # type: ignore[misc]
    planes.invariant("never oversubscribed", lambda: never_oversubscribed(planes))
    watcher = Watcher(least)
    planes.invariant("whole", lambda: watcher.check(planes))


class Watcher:
    """No pod of an attempt is on a node before all parties had a place in that very attempt; no pod runs twice at once, and
    none is started twice.

    What the parties of an attempt lose afterwards ends it, which takes a while; that is not looked at here.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._versions: tuple[str, ...] = ()
        self._attempts: dict[str, str] = {}
        """By uid of a group or a summary: the uid of the initiator's group."""
        self._whole: set[str] = set()
        self._pods: dict[str, tuple[str, str]] = {}

    async def check(self, planes: Planes) -> None:
        worlds = list(planes.worlds.values())
        versions = tuple([(await w.store.list(await w.store.resource("", "Pod"), limit=1)).resource_version for w in worlds])
        if versions != self._versions:
            self._versions = versions
            for world in worlds:
                await self._learn(world)
            await self._starts_whole(worlds)
        self._runs_once(worlds)

    async def _learn(self, world: World) -> None:
        for one in await world.objects(GROUP, "TaskResourceGroup"):
            self._attempts.setdefault(uid_of(one), annotations_of(one).get(Muster.SUMMARY_UID) or uid_of(one))
        for one in await world.objects(GROUP, "KusciaTaskSummary"):
            self._attempts.setdefault(uid_of(one), str(owners_of(one)[0].get("uid", "")))

    def _attempt(self, pod: Raw) -> str:
        group = labels_of(pod).get(KusciaLabel.TASK_RESOURCE_GROUP_UID, "")
        known = self._attempts.get(group, group)
        return self._attempts.get(known, known)

    async def _starts_whole(self, worlds: list[World]) -> None:
        places: dict[str, set[str]] = {}
        begun: dict[str, str] = {}
        for world in worlds:
            planned = {pod["uid"] for one in await world.objects("muster.dev", "Placement") for pod in one["spec"]["pods"]}
            for pod in await world.objects("", "Pod"):
                self._pods[uid_of(pod)] = (namespace_of(pod), name_of(pod))
                if KusciaAnnotation.TASK_RESOURCE_GROUP not in annotations_of(pod):
                    continue
                attempt = self._attempt(pod)
                if pod["spec"].get("nodeName"):
                    begun[attempt] = f"{namespace_of(pod)}/{name_of(pod)}"
                if pod["spec"].get("nodeName") or uid_of(pod) in planned:
                    places.setdefault(attempt, set()).add(namespace_of(pod))
        self._whole |= {attempt for attempt, parties in places.items() if len(parties) >= self._least}
        for attempt, pod_key in begun.items():
            assert attempt in self._whole, f"{pod_key} is on a node, and only {places[attempt]} ever had a place in its attempt"

    def _runs_once(self, worlds: list[World]) -> None:
        running: Counter[tuple[str, str]] = Counter()
        for world in worlds:
            for machine in world.machines.values():
                assert all(count == 1 for count in machine.starts.values()), machine.starts
                now_s = world.loop.time()
                alive = [process.pod_uid for process in machine.processes.values() if process.is_running(now_s)]
                running.update(self._pods[uid] for uid in alive if uid in self._pods)
        assert all(count == 1 for count in running.values()), running


async def job_of(world: World, name: str = "j") -> Raw:
    found = [one for one in await world.objects(GROUP, "KusciaJob", NAMESPACE_CROSS_DOMAIN) if name_of(one) == name]
    return found[0] if found else {}


async def phase_of(world: World, name: str = "j") -> str:
    return str(((await job_of(world, name)).get("status") or {}).get("phase", ""))


async def task_of(world: World) -> Raw:
    """The status of the only KusciaTask there is."""
    found = await world.objects(GROUP, "KusciaTask")
    return dict(found[0].get("status") or {}) if len(found) == 1 else {}


def are(planes: Planes, phase: str, name: str = "j") -> Callable[[], Awaitable[bool]]:
    """Whether the job has this phase at both."""

    async def check() -> bool:
        return all([await phase_of(world, name) == phase for world in planes.worlds.values()])

    return check


def run_everywhere(planes: Planes) -> Callable[[], Awaitable[bool]]:
    """Whether each plane has a pod of a party that runs."""

    async def check() -> bool:
        for name, world in planes.worlds.items():
            pods = await world.objects("", "Pod", name)
            if not any((pod.get("status") or {}).get("phase") == "Running" for pod in pods):
                return False
        return True

    return check


def is_quiet(planes: Planes) -> Callable[[], Awaitable[bool]]:
    """Whether no process runs, and no pod waits."""

    async def check() -> bool:
        for world in planes.worlds.values():
            now_s = world.loop.time()
            if any(p.is_running(now_s) for machine in world.machines.values() for p in machine.processes.values()):
                return False
            ended = ("Succeeded", "Failed")
            if any((pod.get("status") or {}).get("phase") not in ended for pod in await world.objects("", "Pod")):
                return False
        return True

    return check


async def command(world: World, stage: str, trigger: str, version: int, name: str = "j") -> None:
    """A stage command, as its user gives it."""
    labels = {
        KusciaLabel.JOB_STAGE: stage,
        KusciaLabel.JOB_STAGE_TRIGGER: trigger,
        KusciaLabel.JOB_STAGE_VERSION: str(version),
    }
    resource = await world.store.resource(GROUP, "KusciaJob")
    await world.store.patch(resource, name, {"metadata": {"labels": labels}}, NAMESPACE_CROSS_DOMAIN)


async def delete(world: World, group: str, kind: str, name: str, namespace: str | None = None) -> None:
    await world.store.delete(await world.store.resource(group, kind), name, namespace)


async def nothing_is_left(*worlds: World) -> None:
    for world in worlds:
        for kind in KINDS:
            assert not await world.objects(GROUP, kind), f"{kind} is left"
        for kind in ("Pod", "Service"):
            assert not [one for one in await world.objects("", kind) if namespace_of(one) in NAMES], f"{kind} is left"
        assert not await world.objects("muster.dev", "Placement")
