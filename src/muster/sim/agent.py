"""A simulated node agent: registers its node, sends heartbeats, and carries the pods bound to it through their phases.

It speaks to the store as a real agent would and is built from the real parts (informer, queue, runner, executor); only the
machine under it is simulated (`muster.sim.machine`). `decide` is pure: from the pod as last seen, its process, its script and
the time follow what to do on the machine, what to report, and when to look again.

Concurrency: `SimAgent.run` is one component's main coroutine. It may be killed anywhere and started again on the same machine:
the processes that it finds are adopted, and what was started is never started again.

Invariants: a pod's process starts only when the pod, as last seen, is bound here, not being deleted, and was never reported
started; a pod is deleted for good only when its process has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec

from muster.controllers.actions import Action, Delete, PatchStatus, Target
from muster.controllers.manager import Manager
from muster.controllers.runtime import Caches, Context, Controller, Plan, Runner, Watch
from muster.objects.conditions import find_condition, set_condition
from muster.objects.labels import Muster
from muster.objects.meta import is_deleting, metadata_of, uid_of
from muster.objects.names import NAMESPACE_NODE_LEASE
from muster.objects.resources import Resource
from muster.objects.status import AlreadyExists, ApiError, NotFound, Raw
from muster.objects.time import Clock, format_micro_time, format_time, parse_time
from muster.sim.machine import Machine, PodScript, Process, ScriptFor
from muster.store.backoff import Backoff, spread
from muster.store.cache import Cache, ObjectKey
from muster.store.contract import PatchType, Store

FENCE_POLL_S = 1.0
_RESTART_BACKOFF = Backoff(base_s=10.0, max_s=300.0, spread_ratio=0.0)


class AgentTiming(msgspec.Struct, frozen=True, kw_only=True):
    heartbeat_s: float = 10.0
    status_s: float = 30.0
    """How often the Node itself is reported, and registered again if it is gone."""
    lease_s: int = 40
    fence_s: int = 0
    """So long after it last reached the control plane everything on the machine is killed; 0: never."""


class Step(msgspec.Struct, kw_only=True):
    """What `decide` found: at most one thing to do on the machine, then at most one report, then a wait."""

    start: bool = False
    stop_after_s: float | None = None
    is_forced: bool = False
    forget: bool = False
    status: Raw | None = None
    delete: bool = False
    again_s: float | None = None


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """One pod on its machine: as last seen in the store, its process, how often it was started here, and the time.

    `now_s` is the machine's own clock, `now` the wall clock.
    """

    pod: Raw
    process: Process | None
    starts: int
    script: PodScript
    now_s: float
    now: float
    slowness: float = 1.0
    is_fenced: bool = False
    """Whether the machine's guard killed its process: then it is over, since it may have been started elsewhere."""

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running(self.now_s)

    @property
    def old_status(self) -> Raw:
        return self.pod.get("status") or {}

    @property
    def is_over(self) -> bool:
        return self.old_status.get("phase") in ("Succeeded", "Failed")

    @property
    def may_restart(self) -> bool:
        if self.is_fenced:
            return False
        policy = (self.pod.get("spec") or {}).get("restartPolicy") or "Always"
        exit_code = 137 if self.process is None else self.process.exit_code
        return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def decide(at: Situation) -> Step:
    """The next step for this pod. Pure."""
    if is_deleting(at.pod):
        return _decide_end(at)
    if at.is_over:
        return Step(forget=at.process is not None and not at.is_running)
    if at.process is not None and at.is_running:
        again_s = None if at.process.ends_s is None else at.process.ends_s - at.now_s
        return Step(status=_status(at, "Running"), again_s=again_s)
    if at.process is not None:
        return _decide_ended(at, at.process)
    if at.starts and not at.may_restart:
        # It ran here once and is gone without a trace: the machine was switched off.
        return Step(status=_status(at, "Failed", exit_code=137, reason="NodeRestarted"))
    return _decide_start(at)


def _decide_start(at: Situation) -> Step:
    since = at.old_status.get("startTime")
    if not since and not at.script.stuck and at.script.pull_s + at.script.start_s <= 0:
        return Step(start=True, again_s=0.0)  # nothing to wait for, so nothing to tell about it
    if not since:
        return Step(status=_status(at, "Pending", waiting="ContainerCreating"))
    waited_s = at.now - parse_time(since)
    script = at.script
    if script.stuck == "pull":
        if waited_s < script.pull_s:
            return Step(again_s=script.pull_s - waited_s)
        return Step(status=_status(at, "Pending", waiting="ImagePullBackOff"))
    if script.stuck == "start":
        return Step(status=_status(at, "Pending", waiting="CreateContainerError"))
    needed_s = (script.pull_s + script.start_s) * at.slowness
    if waited_s < needed_s:
        return Step(again_s=needed_s - waited_s)
    return Step(start=True, again_s=0.0)


def _decide_ended(at: Situation, process: Process) -> Step:
    if at.may_restart:
        assert process.ends_s is not None
        left_s = process.ends_s + _RESTART_BACKOFF.delay_s(at.starts - 1) - at.now_s
        if left_s > 0:
            return Step(status=_status(at, "Running", waiting="CrashLoopBackOff"), again_s=left_s)
        return Step(start=True, again_s=0.0)
    phase = "Succeeded" if process.exit_code == 0 else "Failed"
    return Step(status=_status(at, phase, exit_code=process.exit_code, reason=process.reason))


def _decide_end(at: Situation) -> Step:
    """Graceful deletion: `deletionTimestamp` is when the grace period is over."""
    process = at.process
    if process is None:
        return Step(delete=True)
    if at.is_running:
        left_s = max(0.0, parse_time(str(metadata_of(at.pod)["deletionTimestamp"])) - at.now)
        is_willing = at.script.stuck != "stop" and at.script.stop_s <= left_s
        stop_s = at.script.stop_s if is_willing else left_s
        ends_s = at.now_s + stop_s if process.ends_s is None else min(at.now_s + stop_s, process.ends_s)
        return Step(stop_after_s=stop_s, is_forced=not is_willing, again_s=ends_s - at.now_s)
    phase = "Succeeded" if process.exit_code == 0 else "Failed"
    status = None if at.is_over else _status(at, phase, exit_code=process.exit_code, reason=process.reason)
    return Step(status=status, delete=True, forget=True)


def _status(at: Situation, phase: str, *, waiting: str = "", exit_code: int = 0, reason: str = "") -> Raw | None:
    """The status to report; None when the pod, as last seen, has it."""
    old = at.old_status
    is_up = phase == "Running" and not waiting
    conditions: list[Raw] = list(old.get("conditions") or ())
    for type_, holds in (("Initialized", True), ("ContainersReady", is_up), ("Ready", is_up)):
        why = "" if holds else "PodCompleted" if phase == "Succeeded" else "ContainersNotReady"
        conditions = set_condition(conditions, type_=type_, status="True" if holds else "False", now=at.now, reason=why)
    state: Raw = {"running": {}}
    if waiting:
        state = {"waiting": {"reason": waiting}}
    elif phase in ("Succeeded", "Failed"):
        ended = {"exitCode": exit_code, "reason": reason or ("Error" if exit_code else "Completed")}
        state = {"terminated": {**ended, "finishedAt": _finished_at(at)}}
    new: Raw = {"phase": phase, "conditions": conditions, "startTime": old.get("startTime") or format_time(at.now)}
    if phase == "Failed" and reason:
        new["reason"] = reason
    new["containerStatuses"] = [
        {
            "name": container.get("name", ""),
            "image": container.get("image", ""),
            "imageID": "",
            "ready": is_up,
            "started": is_up,
            "restartCount": max(0, at.starts - 1),
            "state": state,
        }
        for container in (at.pod.get("spec") or {}).get("containers") or ()
    ]
    return new if any(old.get(key) != value for key, value in new.items()) else None


def _finished_at(at: Situation) -> str:
    """When its process ended, on the wall clock; now, when it is gone without a trace. Said once, it stays said."""
    for container in at.old_status.get("containerStatuses") or ():
        said = ((container.get("state") or {}).get("terminated") or {}).get("finishedAt")
        if said:
            return str(said)
    ends_s = at.process.ends_s if at.process is not None else None
    return format_time(at.now if ends_s is None else at.now - (at.now_s - ends_s))


class PodDriver(Controller):
    """Carries pods of one machine. Keys are pods."""

    name = "pods"

    def __init__(self, machine: Machine, script_for: ScriptFor, check_alive: Callable[[], None]) -> None:
        self._machine = machine
        self._check_alive = check_alive
        self._script_for = script_for
        self.pods = Watch(group="", kind="Pod", field_selector=f"spec.nodeName={machine.name}", keep="raw")
        self.watches = (self.pods,)

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        raise NotImplementedError("the driver also acts on its machine: see handle")

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        self._check_alive()
        now_s = asyncio.get_running_loop().time()
        cache, machine = context.caches[self.pods], self._machine
        is_closed = machine.guard(now_s)
        self.sweep(cache, now_s)
        cached = cache.get(key)
        if cached is None or not machine.is_on:
            return None
        uid, script = cached.uid, self._script_for(cached.raw)
        step = decide(
            Situation(
                pod=cached.raw,
                process=machine.processes.get(uid),
                starts=machine.starts.get(uid, 0),
                script=script,
                now_s=now_s,
                now=context.clock(),
                slowness=machine.slowness,
                is_fenced=uid in machine.fenced,
            )
        )
        if step.start:
            if is_closed:
                return FENCE_POLL_S
            if machine.fence_at_s is not None and not await self._is_wanted(key, uid, context):
                return FENCE_POLL_S
            now_s = asyncio.get_running_loop().time()
            if machine.guard(now_s):
                return FENCE_POLL_S
            machine.start(uid, script, now_s)
        elif step.stop_after_s is not None:
            machine.stop(uid, step.stop_after_s, now_s, is_forced=step.is_forced)
        target = Target("", "Pod", key.name, key.namespace, uid)
        actions: list[Action] = [PatchStatus(target, step.status)] if step.status is not None else []
        if step.delete:
            actions.append(Delete(target, grace_period_s=0))
        await context.executor.apply(actions)
        self._check_alive()
        if step.forget:
            machine.forget(uid)
        return step.again_s

    async def _is_wanted(self, key: ObjectKey, uid: str, context: Context) -> bool:
        """Whether the store still wants this very pod to run: the control plane may have given it up, and the cache lags."""
        try:
            live = await context.store.get(await context.store.resource("", "Pod"), key.name, key.namespace)
        except NotFound:
            return False
        self._check_alive()
        return uid_of(live) == uid and (live.get("status") or {}).get("phase") not in ("Succeeded", "Failed")

    def sweep(self, cache: Cache, now_s: float) -> None:
        """End processes whose pod is gone: it was deleted by force, perhaps while no agent was looking."""
        self._check_alive()
        known = {cached.uid for cached in cache}
        for uid in list(self._machine.processes):
            if uid not in known:
                self._machine.stop(uid, 0.0, now_s, is_forced=True)
                self._machine.forget(uid)


class SimAgent:
    """One run of the agent of one machine. `check_alive` raises when this run is dead: it must not touch the machine then."""

    def __init__(
        self,
        store: Store,
        machine: Machine,
        *,
        clock: Clock,
        script_for: ScriptFor,
        timing: AgentTiming | None = None,
        check_alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._machine = machine
        self._clock = clock
        self._timing = timing or AgentTiming()
        self._driver = PodDriver(machine, script_for, check_alive)

    async def run(self) -> None:
        """Until cancelled."""
        await self._insist(self._register)
        if self._timing.fence_s:
            # Before any work: a silence counts from the last renewal, which may have been another life ago.
            leases = await self._resource("coordination.k8s.io", "Lease")
            await self._insist(lambda: self._renew(leases))
        beating = asyncio.create_task(self._beat(), name=f"heartbeat {self._machine.name}")
        manager = Manager(self._store, [self._driver], clock=self._clock, name=f"agent-{self._machine.name}", resync_s=0)
        tasks = (
            beating,
            asyncio.create_task(manager.run(), name=f"agent {self._machine.name}"),
            asyncio.create_task(self._sweep(manager), name=f"sweep {self._machine.name}"),
        )
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _sweep(self, manager: Manager) -> None:
        runner = manager.runners[0]
        assert isinstance(runner, Runner)
        informer = (await runner.prepare())[self._driver.pods]
        await informer.wait_synced()
        self._driver.sweep(informer.cache, asyncio.get_running_loop().time())

    async def _insist(self, operation: Callable[[], Awaitable[object]]) -> None:
        backoff, failures = Backoff(base_s=0.5, max_s=10.0), 0
        while True:
            try:
                await operation()
                return
            except ApiError:
                await asyncio.sleep(backoff.delay_s(failures, self._machine.name))
                failures += 1

    async def _register(self) -> None:
        nodes = await self._store.resource("", "Node")
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self._machine.name,
                "labels": {"kubernetes.io/hostname": self._machine.name, **self._machine.labels},
                "annotations": {Muster.FENCE_SECONDS: str(self._timing.fence_s)} if self._timing.fence_s else {},
            },
            "spec": {"taints": self._machine.taints} if self._machine.taints else {},
        }
        with contextlib.suppress(AlreadyExists):
            await self._store.create(nodes, node)
        await self._report_node(nodes)

    async def _report_node(self, nodes: Resource) -> None:
        live = await self._store.get(nodes, self._machine.name)
        old: Raw = live.get("status") or {}
        now = self._clock()
        conditions = set_condition(
            old.get("conditions"),
            type_="Ready",
            status="True",
            now=now,
            reason="KubeletReady",
            message="the simulated agent is up",
            fields={"lastHeartbeatTime": format_time(now)},
        )
        status = {"capacity": self._machine.capacity, "allocatable": self._machine.capacity, "conditions": conditions}
        status["nodeInfo"] = {"bootID": f"{self._machine.name}-{self._machine.boots}", "kubeletVersion": "sim"}
        await self._store.patch(nodes, self._machine.name, {"status": status}, subresource="status")

    async def _beat(self) -> None:
        nodes = await self._resource("", "Node")
        leases = await self._resource("coordination.k8s.io", "Lease")
        timing, beats = self._timing, 0
        await asyncio.sleep(timing.heartbeat_s * spread(self._machine.name))
        while True:
            try:
                await self._renew(leases)
                if beats % max(1, round(timing.status_s / timing.heartbeat_s)) == 0:
                    await self._report_node(nodes)
            except NotFound:
                await self._insist(self._register)
            except ApiError:
                pass  # the next beat is the retry
            beats += 1
            await asyncio.sleep(timing.heartbeat_s)

    async def _resource(self, group: str, kind: str) -> Resource:
        found: list[Resource] = []

        async def ask() -> None:
            found.append(await self._store.resource(group, kind))

        await self._insist(ask)
        return found[-1]

    async def _renew(self, leases: Resource) -> None:
        name, sent_s = self._machine.name, asyncio.get_running_loop().time()
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": self._timing.lease_s,
            "renewTime": format_micro_time(self._clock()),
        }
        lease = {
            "apiVersion": leases.api_version,
            "kind": "Lease",
            "metadata": {"name": name, "namespace": NAMESPACE_NODE_LEASE},
            "spec": spec,
        }
        try:
            await self._store.patch(leases, name, {"spec": spec}, NAMESPACE_NODE_LEASE, patch_type=PatchType.MERGE)
        except NotFound:
            await self._store.create(leases, lease, NAMESPACE_NODE_LEASE)
        if self._timing.fence_s:
            self._machine.guard(asyncio.get_running_loop().time())  # what was due before this answer came is due
            self._machine.fence_at_s = sent_s + self._timing.fence_s


def is_ready(obj: Raw) -> bool:
    """Whether a pod or node reports condition Ready."""
    condition = find_condition((obj.get("status") or {}).get("conditions"), "Ready")
    return condition is not None and condition.get("status") == "True"
