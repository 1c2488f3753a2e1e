"""Parties, machines and controllers in real time, on the embedded store or on a real API server.

A `World` has what `muster up` or `muster controller` would run: on the embedded store with its file all controllers and the
admission of pods, on a real API server the cluster's controllers with the permissions that `muster install` grants and no
others. Its machines are simulated, their agents are the simulator's on the wall clock.

Concurrency: everything on the test's event loop. The API server is shared by all tests of a run, so every name has the tag
of its world, and `close` takes away what was made.

Invariant: pods run until the test ends them (`finish`), unless their script says otherwise. No test depends on how fast
anything is.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from muster.cli.manifests import CONTROLLER_RULES, rules_for
from muster.client import ApiClient
from muster.controllers import cluster_controllers, embedded_controllers
from muster.controllers.manager import Manager
from muster.objects.catalog import CATALOG
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.meta import annotations_of, labels_of, name_of, namespace_of, uid_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN, NAMESPACE_NODE_LEASE
from muster.objects.status import AlreadyExists, Conflict, NotFound, Raw
from muster.objects.time import wall_clock
from muster.server.admission import builtin_hooks
from muster.server.authorization import Authorizer
from muster.server.bootstrap import bootstrap
from muster.server.memory import Memory
from muster.sim.agent import SimAgent
from muster.sim.machine import Machine, PodScript
from muster.sim.workloads import GROUP, app_image, domain, job_task, kuscia_job
from muster.store.contract import PatchType, Store
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.admission import Admissions
from muster.store.kubernetes import KubernetesStore
from tests.controllers.kinds import serve_kinds, with_permissions_of

WAIT_S = 60.0
POLL_S = 0.1
FOREVER = PodScript(pull_s=0, start_s=0, run_s=None, stop_s=0.05)
SHORT = PodScript(pull_s=0, start_s=0, run_s=0.2, stop_s=0.05)
FAILING = PodScript(pull_s=0, start_s=0, run_s=0.1, exit_code=3, stop_s=0.05)


class World:
    """See the module. `open_world` makes one."""

    def __init__(self, store: Store, acting: Store) -> None:
        self.store = store
        self.acting = acting
        """What the controllers write to: the same objects, with their permissions only."""
        self.tag = uuid.uuid4().hex[:6]
        self.image = f"app-{self.tag}"
        self.machines: dict[str, Machine] = {}
        self.parties: list[str] = []
        self.manager: Manager | None = None
        self.scripts: dict[str, tuple[PodScript, ...]] = {}
        """By what a pod's name begins with: the script of its first run, of its second, ...; the last one holds on."""
        self._runs: dict[tuple[str, str], list[str]] = {}
        """By namespace and name: the uids of the pods that were seen, in order."""
        self._agents: list[asyncio.Task[None]] = []
        self._made: list[Raw] = []

    # -- life ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The controllers, as after a start of their process: nothing is known but what is stored."""
        assert self.manager is None
        is_alone = isinstance(self.store, EmbeddedStore)
        controllers = embedded_controllers(ca_pem="none") if is_alone else cluster_controllers()
        self.manager = Manager(self.acting, controllers, clock=wall_clock)
        self.manager.start()

    async def kill(self) -> None:
        """End the controllers wherever they are."""
        manager, self.manager = self.manager, None
        if manager is not None:
            await manager.stop()

    async def close(self) -> None:
        """Take everything away, the controllers helping, and see that they are in good health when it is over."""
        try:
            if self.manager is None:
                self.start()
            for kind in ("KusciaJob", "KusciaDeployment", "Job", "Pod", "PodGroup"):
                await self._remove(kind)
            await self.until(self._is_empty, "an empty world")
            await self._remove("Domain")
            await self.until(self._is_healthy, "controllers in good health")
        finally:
            await self.kill()
            for agent in self._agents:
                agent.cancel()
            await asyncio.gather(*self._agents, return_exceptions=True)
            for raw in self._made:
                with contextlib.suppress(NotFound):
                    await self._delete(raw)

    async def _remove(self, kind: str) -> None:
        mine = [raw for raw in self._made if raw["kind"] == kind]
        for raw in mine:
            with contextlib.suppress(NotFound):
                await self._delete(raw)
        self._made = [raw for raw in self._made if raw["kind"] != kind]
        for raw in mine:
            await self.until_gone(raw)

    async def _is_empty(self) -> bool:
        tasks = [raw for kind in ("KusciaTask", "TaskResourceGroup") for raw in await self.objects(GROUP, kind)]
        return not await self.pods() and not any(self.tag in name_of(raw) for raw in tasks)

    async def _is_healthy(self) -> bool:
        """All run, see what they watch, and fail on nothing of this world: what is forbidden to one would fail for ever."""
        assert self.manager is not None
        health = self.manager.health()
        failing = [key for runner in self.manager.runners for key in runner.failing if self.tag in str(key)]
        return not failing and not health.informers and all(one.state == "running" for one in health.controllers)

    async def _delete(self, raw: Raw) -> None:
        await self.store.delete(await self._resource(raw), name_of(raw), namespace_of(raw) or None)

    async def _resource(self, raw: Raw) -> Any:
        return await self.store.resource(str(raw["apiVersion"]).rpartition("/")[0], str(raw["kind"]))

    # -- who there is ----------------------------------------------------------------------------------------------------

    async def add_parties(self, *names: str, cpus: int = 4, quota: Raw | None = None) -> list[str]:
        """Each with its namespace and one node."""
        made = [f"{name}-{self.tag}" for name in names]
        for name in made:
            raw = domain(name)
            if quota is not None:
                raw["spec"]["resourceQuota"] = quota
            await self.create(raw)
            self.parties.append(name)
            self._made.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            await self.add_node(name, cpus)
        for name in made:
            await self.until_account(name)
        if not any(raw["kind"] == "AppImage" for raw in self._made):
            await self.create(app_image(self.image))
        return made

    async def until_account(self, namespace: str) -> None:
        """The namespace is there, and pods may be made in it."""

        async def is_ready() -> bool:
            return await self.find("", "ServiceAccount", "default", namespace) is not None

        await self.until(is_ready, f"service account of namespace {namespace}")

    async def add_node(self, party: str, cpus: int = 4) -> Machine:
        """A node of the party and the agent on it. A new node is marked as not ready by the API server; where there is nobody
        who takes the mark away when its agent reports, that is done here."""
        name = f"{party}-{sum(machine.startswith(party) for machine in self.machines)}"
        capacity = {"cpu": str(cpus), "memory": "32Gi", "pods": "110"}
        machine = Machine(name, capacity=capacity, labels={KusciaLabel.NODE_NAMESPACE: party})
        labels = {"kubernetes.io/hostname": name, **machine.labels}
        await self.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}})
        nodes = await self.store.resource("", "Node")
        await self.store.patch(nodes, name, {"spec": {"taints": None}}, patch_type=PatchType.MERGE)
        lease = {"name": name, "namespace": NAMESPACE_NODE_LEASE}
        self._made.append({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": lease})
        agent = SimAgent(self.store, machine, clock=wall_clock, script_for=self.script)
        self._agents.append(asyncio.create_task(agent.run(), name=f"agent {name}"))
        self.machines[name] = machine
        return machine

    def script(self, pod: Raw) -> PodScript:
        runs = self._runs.setdefault((namespace_of(pod), name_of(pod)), [])
        if uid_of(pod) not in runs:
            runs.append(uid_of(pod))
        found = [prefix for prefix in self.scripts if name_of(pod).startswith(prefix)]
        scripts = self.scripts[max(found, key=len)] if found else (FOREVER,)
        return scripts[min(runs.index(uid_of(pod)), len(scripts) - 1)]

    # -- objects ---------------------------------------------------------------------------------------------------------

    async def create(self, raw: Raw) -> Raw:
        made = await self.store.create(await self._resource(raw), raw, namespace_of(raw) or None)
        self._made.insert(0, raw)
        return made

    async def find(self, group: str, kind: str, name: str, namespace: str | None = None) -> Raw | None:
        try:
            return await self.store.get(await self.store.resource(group, kind), name, namespace)
        except NotFound:
            return None

    async def objects(self, group: str, kind: str, namespaces: Iterable[str] | None = None) -> list[Raw]:
        """Of these namespaces, or of all; cluster-wide ones as well."""
        resource = await self.store.resource(group, kind)
        if namespaces is None:
            return (await self.store.list(resource)).items
        return [raw for namespace in namespaces for raw in (await self.store.list(resource, namespace)).items]

    async def pods(self, prefix: str = "") -> list[Raw]:
        """Of the parties of this world."""
        return [raw for raw in await self.objects("", "Pod", self.parties) if name_of(raw).startswith(prefix)]

    async def until(self, check: Callable[[], Awaitable[Any]], what: str) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not await check():
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise AssertionError(f"{what}: not within {WAIT_S:g} s; {await self._troubles()}") from None

    async def _troubles(self) -> str:
        """For whoever has to find out: what fails, and where the work of this world is."""
        said = []
        if self.manager is not None:
            health = self.manager.health()
            said += [f"{one.name} {one.state} {one.failing}" for one in health.controllers if not one.is_healthy]
            said += [f"informer {name}: {why}" for name, why in health.informers.items()]
        for kind in ("KusciaJob", "KusciaTask"):
            for raw in await self.objects(GROUP, kind, [NAMESPACE_CROSS_DOMAIN]):
                if self.tag in name_of(raw):
                    status = raw.get("status") or {}
                    said.append(f"{kind} {name_of(raw)}: {[status.get(key) for key in ('phase', 'reason', 'message')]}")
        for raw in await self.pods():
            deleted = raw["metadata"].get("deletionTimestamp", "")
            phase = (raw.get("status") or {}).get("phase")
            said.append(f"Pod {namespace_of(raw)}/{name_of(raw)}: {phase} on {raw['spec'].get('nodeName')} {deleted}")
        return "; ".join(said)

    async def until_gone(self, raw: Raw) -> None:
        group = str(raw["apiVersion"]).rpartition("/")[0]

        async def is_gone() -> bool:
            return await self.find(group, raw["kind"], name_of(raw), namespace_of(raw) or None) is None

        await self.until(is_gone, f"end of {raw['kind']} {name_of(raw)}")

    async def until_status(self, group: str, kind: str, name: str, namespace: str | None, **wanted: Any) -> Raw:
        """The status, once it has all of `wanted`; the last one seen is in the complaint."""
        seen: Raw = {}

        async def check() -> bool:
            nonlocal seen
            found = await self.find(group, kind, name, namespace)
            seen = (found or {}).get("status") or {}
            return all(seen.get(key) == value for key, value in wanted.items())

        try:
            await self.until(check, f"{kind} {name} with {wanted}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it has {seen}") from None
        return seen

    # -- jobs of several parties -----------------------------------------------------------------------------------------

    def task(self, job: str, alias: str, parties: Sequence[str], **fields: Any) -> Raw:
        """Its KusciaTask is named `<job>-<tag>-<alias>`, and its pods after that."""
        return job_task(alias, parties, taskID=self.task_id(job, alias), **fields) | {"appImage": self.image}

    def task_id(self, job: str, alias: str) -> str:
        return f"{job}-{self.tag}-{alias}"

    async def submit(self, job: str, *tasks: Raw, annotations: dict[str, str] | None = None, **spec: Any) -> Raw:
        raw = kuscia_job(f"{job}-{self.tag}", tasks, **spec)
        raw["metadata"]["annotations"] = annotations or {}
        return await self.create(raw)

    async def job(self, job: str, phase: str, **wanted: Any) -> Raw:
        """The status of the job, once it has this phase."""
        name = f"{job}-{self.tag}"
        return await self.until_status(GROUP, "KusciaJob", name, NAMESPACE_CROSS_DOMAIN, phase=phase, **wanted)

    async def task_status(self, job: str, alias: str, phase: str, **wanted: Any) -> Raw:
        name = self.task_id(job, alias)
        return await self.until_status(GROUP, "KusciaTask", name, NAMESPACE_CROSS_DOMAIN, phase=phase, **wanted)

    async def command(self, job: str, stage: str) -> None:
        """Labelled on the version that was read: the controller changes the labels too, after a restart."""
        resource, name = await self.store.resource(GROUP, "KusciaJob"), f"{job}-{self.tag}"

        async def is_given() -> bool:
            found = await self.store.get(resource, name, NAMESPACE_CROSS_DOMAIN)
            version = int(labels_of(found).get(KusciaLabel.JOB_STAGE_VERSION, "0")) + 1
            labels = {
                KusciaLabel.JOB_STAGE: stage,
                KusciaLabel.JOB_STAGE_TRIGGER: self.parties[0],
                KusciaLabel.JOB_STAGE_VERSION: str(version),
            }
            patch = {"metadata": {"labels": labels, "resourceVersion": found["metadata"]["resourceVersion"]}}
            try:
                await self.store.patch(resource, name, patch, NAMESPACE_CROSS_DOMAIN)
            except Conflict:
                return False
            return True

        await self.until(is_given, f"{stage} of {name}")

    # -- pods ------------------------------------------------------------------------------------------------------------

    async def running(self, prefix: str, count: int) -> list[Raw]:
        """The pods of this name, once so many run, and are reported to."""
        found: list[Raw] = []

        async def check() -> bool:
            nonlocal found
            found = [
                raw
                for raw in await self.pods(prefix)
                if (raw.get("status") or {}).get("phase") == "Running" and "deletionTimestamp" not in raw["metadata"]
            ]
            return len(found) == count

        await self.until(check, f"{count} running pods {prefix}")
        return found

    async def finish(self, pods: Iterable[Raw], exit_code: int = 0) -> None:
        """End their processes. The agents look at them because of the progress that they report."""
        resource = await self.store.resource("", "Pod")
        for pod in pods:
            process = self.machines[pod["spec"]["nodeName"]].processes[uid_of(pod)]
            process.ends_s, process.exit_code = asyncio.get_running_loop().time(), exit_code
            patch = {"metadata": {"annotations": {Muster.PROGRESS: "1"}}}
            await self.store.patch(resource, name_of(pod), patch, namespace_of(pod))

    def processes(self) -> list[str]:
        """Of all machines, by pod uid."""
        now_s = asyncio.get_running_loop().time()
        return [uid for machine in self.machines.values() for uid in machine.running(now_s)]

    def starts(self) -> list[int]:
        """How often each pod was started that ever was."""
        return [count for machine in self.machines.values() for count in machine.starts.values()]

    async def leftovers(self, prefix: str) -> list[str]:
        """Whatever is still there of the task or tasks whose names begin so."""
        found: list[str] = []

        def note(kind: str, raws: Iterable[Raw], text: Callable[[Raw], str] = name_of) -> None:
            found.extend(f"{kind} {namespace_of(raw)}/{name_of(raw)}" for raw in raws if text(raw).startswith(prefix))

        for kind in ("Pod", "Service", "ConfigMap"):
            note(kind, await self.objects("", kind, self.parties))
        note("TaskResource", await self.objects(GROUP, "TaskResource", self.parties), _group_of)
        note("TaskResourceGroup", await self.objects(GROUP, "TaskResourceGroup"))
        note("KusciaTask", await self.objects(GROUP, "KusciaTask", [NAMESPACE_CROSS_DOMAIN]))
        note("Placement", await self.objects("muster.dev", "Placement"), lambda raw: raw["spec"]["unit"].partition("/")[2])
        return found


def _group_of(resource: Raw) -> str:
    return annotations_of(resource).get("kuscia.secretflow/task-resource-group", "")


@contextlib.asynccontextmanager
async def open_world(kubeconfig: Path | None, directory: Path) -> AsyncIterator[World]:
    """On the API server of this kubeconfig, or on an embedded store in this directory. The controllers run."""
    async with contextlib.AsyncExitStack() as stack:
        store = await (_embedded(directory) if kubeconfig is None else _kubernetes(kubeconfig))
        stack.push_async_callback(store.close)
        world = World(store, await stack.enter_async_context(with_permissions_of(store, *CONTROLLER_RULES)))
        world.start()
        stack.push_async_callback(world.close)
        yield world


async def _embedded(directory: Path) -> EmbeddedStore:
    """As a server has it, without the port."""
    hooks = Admissions()
    store = await EmbeddedStore.open(directory / "store", clock=wall_clock, admission=hooks)
    memory = Memory(store, wall_clock)
    memory.start()
    hooks.hooks += builtin_hooks(Authorizer(memory.rbac), memory.priorities, memory.has_account)
    await bootstrap(store)
    return store


async def _kubernetes(kubeconfig: Path) -> KubernetesStore:
    store = KubernetesStore(await ApiClient.from_kubeconfig(kubeconfig))
    needed = {(rule.group, plural) for rule in rules_for(CONTROLLER_RULES) for plural in rule.resources}
    await serve_kinds(store, *(one.kind for one in CATALOG.custom if (one.group, one.plural) in needed))
    with contextlib.suppress(AlreadyExists):
        raw = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE_CROSS_DOMAIN}}
        await store.create(await store.resource("", "Namespace"), raw)
    return store
