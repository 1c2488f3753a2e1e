"""Carries the pods that are bound to this node on its own runtimes (`process`, `runc`).

One controller; its keys are pods by uid. For each: look at what the store wants and what runs here (`pods_local.situation`),
decide (`lifecycle.decide`, pure), act (`pods_acting`), report (`pod_status`), and look again when something has changed.

The store may be away at any time, also when the agent starts: the controller waits for no list. Pods that have a record go on
from it; what is to be reported is worked out anew until the store has it, so nothing is queued up and nothing gets lost. Pods
that the store has forgotten are ended only after it has been listed as a whole.

Concurrency: one event loop. `run` until cancelled; what runs in pods goes on.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar

from muster.agent import pod_records, pods_streams, users
from muster.agent.config import AgentConfig
from muster.agent.contracts import (
    AgentError,
    Cgroups,
    ContainerRuntime,
    ExecSession,
    ExecWant,
    LogQuery,
    Networks,
    Sandbox,
    StreamTarget,
)  # fmt: skip
from muster.agent.layout import Layout, safe_part
from muster.agent.lifecycle import decide
from muster.agent.lifecycle_facts import Fate
from muster.agent.pod_admission import Offer, read_pod, refusal
from muster.agent.pod_records import PodRecord
from muster.agent.pod_resources import device_counts
from muster.agent.pod_sources import PodSources
from muster.agent.pod_status import read_status
from muster.agent.pod_tokens import PodTokens
from muster.agent.pods_acting import Actor
from muster.agent.pods_local import LocalPod, situation
from muster.agent.pods_machine import Machine
from muster.agent.pods_probing import Probing
from muster.agent.pods_reading import read_logs
from muster.agent.pods_reporting import Reporter
from muster.agent.pods_sweeping import Sweeper
from muster.agent.pods_watching import Pace, Watching
from muster.controllers.runtime import Caches, Context, Controller, Plan, Runner, Watch
from muster.objects.kinds.pods import PodSpec
from muster.objects.meta import is_deleting, metadata_of, name_of, namespace_of
from muster.objects.status import ApiError, Raw
from muster.objects.time import Clock
from muster.store.backoff import Backoff
from muster.store.cache import Cached, ObjectKey
from muster.store.contract import Store
from muster.store.events import EventRecorder
from muster.store.hub import InformerHub
from muster.store.informer import Change, Informer

log = logging.getLogger(__name__)

_ROUNDS_MAX = 24
"""Decisions made for one pod before others have their turn."""
_RETRY = Backoff(base_s=0.2, max_s=15.0)
_HOSTNAME_LEN_MAX = 63
_FORGOTTEN_MAX = 4096
_ROOM_S = 30.0
"""So long a pod waits for a device or user that another one still has."""
_ROOM_RETRY_S = 0.2


class LocalPods(Controller):
    """A `PodCarrier`. `may_start` is asked before anything starts; the node sets it."""

    name = "agent-pods"
    watches: Sequence[Watch] = ()
    workers: ClassVar[int] = 16

    def __init__(
        self,
        store: Store,
        layout: Layout,
        config: AgentConfig,
        node: str,
        *,
        runtime: ContainerRuntime,
        cgroups: Cgroups,
        networks: Networks | None,
        clock: Clock,
        host_ip: str = "",
        devices: Mapping[str, tuple[tuple[str, ...], ...]] | None = None,
        allocatable: Mapping[str, str] | None = None,
        recorder: EventRecorder | None = None,
        pace: Pace | None = None,
        dial: Callable[[str, int], Awaitable[socket.socket]] | None = None,
    ) -> None:
        self.may_start: Callable[[], bool] = lambda: True
        self._store = store
        self._hub = InformerHub(store)
        self._own_recorder = recorder is None
        self._recorder = recorder or EventRecorder(store, component="muster-agent", clock=clock, instance=node)
        self._machine = Machine(
            layout=layout,
            config=config,
            runtime=runtime,
            cgroups=cgroups,
            networks=networks,
            sources=PodSources(store, clock),
            tokens=PodTokens(store, clock),
            clock=clock,
            node=node,
            host_ip=host_ip,
            allocatable=allocatable or {},
            units=devices or {},
            dial=dial,
        )
        has_networks = networks is not None and all(missing.feature != "network namespaces" for missing in networks.missing())
        self._offer = Offer(runtime=runtime.name, has_networks=has_networks, allowed_host_paths=config.allowed_host_paths)
        self._runner = Runner(self, self._hub, clock=clock, recorder=self._recorder)
        self._actor = Actor(self._machine, self._recorder, self._wake)
        self._probing = Probing(self._machine, self._actor, self._wake)
        self._reporter = Reporter(store, self._machine)
        self._sweeper = Sweeper(self._machine)
        self._watching = Watching(self._machine, self._actor, self._wake, pace or Pace())
        self._local: dict[str, LocalPod] = {}
        self._seen: dict[str, Cached] = {}
        """The store's copies, by uid."""
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        """Pods that have gone from here: a watch that lags behind must not bring them back."""
        self._waiting: dict[str, float] = {}
        """Pods for which there is no room yet, and since when."""
        self._has_synced = False

    # -- PodCarrier -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        for uid in list(pod_records.known_uids(self._machine.layout)):
            self._adopt(uid)
        await self._sweeper.sweep(self._local)
        if self._own_recorder:
            self._recorder.start()
        tasks = [
            asyncio.create_task(self._runner.run(self._store), name="agent pods"),
            asyncio.create_task(self._follow_store(), name="agent pods follow the store"),
            asyncio.create_task(self._follow_runs(), name="agent pods follow runs"),
            asyncio.create_task(self._watching.run(self._local), name="agent pods measure"),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            await self._stop(tasks)

    async def _stop(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        works = [work for local in self._local.values() for work in local.works.values()]
        for local in self._local.values():
            for memory in local.containers.values():
                memory.stop_probing()
        for task in (*tasks, *works):
            task.cancel()
        await asyncio.gather(*tasks, *works, return_exceptions=True)
        try:
            await self._hub.stop()
        finally:
            if self._own_recorder:
                await self._recorder.stop()

    def local_uids(self) -> set[str]:
        return {uid for uid, local in self._local.items() if not local.record.is_clean}

    def logs(self, query: LogQuery) -> AsyncIterator[bytes]:
        return read_logs(self._local.values(), query, self._machine.runtime.observe)

    async def open_exec(self, target: StreamTarget, want: ExecWant) -> ExecSession:
        return await pods_streams.open_exec(self._local.values(), target, want, self._machine)

    async def dial(self, target: StreamTarget, port: int) -> socket.socket:
        return await pods_streams.dial(self._local.values(), target, port, self._machine)

    @property
    def devices(self) -> Mapping[str, tuple[tuple[str, ...], ...]]:
        """Units of each device resource, by the paths that belong to each."""
        return self._machine.units

    @devices.setter
    def devices(self, units: Mapping[str, tuple[tuple[str, ...], ...]]) -> None:
        self._machine.units = units

    @property
    def fill_names(self) -> Callable[[str, str], object] | None:
        """Called with uid and namespace before a pod's first process starts, to complete its hosts file."""
        return self._machine.fill_names

    @fill_names.setter
    def fill_names(self, fill: Callable[[str, str], object] | None) -> None:
        self._machine.fill_names = fill

    @property
    def sandboxes(self) -> Mapping[str, LocalPod]:
        """The pods that are here, by uid."""
        return self._local

    # -- what wakes a pod -----------------------------------------------------------------------------------------------------

    def _wake(self, key: ObjectKey) -> object:
        queue = self._runner.queue
        return queue.add(key) if queue is not None and not queue.is_closed else None

    async def _follow_store(self) -> None:
        informer = await self._informer()
        self._hub.start()
        informer.add_handler(self._note)
        await informer.wait_synced()
        self._has_synced = True
        for local in list(self._local.values()):
            self._wake(local.key)

    async def _informer(self) -> Informer:
        failures = 0
        while True:
            try:
                selector = f"spec.nodeName={self._machine.node}"
                return await self._hub.informer("", "Pod", field_selector=selector, keep="raw")
            except ApiError as e:
                if failures == 0:
                    log.warning("the pods of node %s can't be listed yet: %s", self._machine.node, e)
                await asyncio.sleep(_RETRY.delay_s(failures, self._machine.node))
                failures += 1

    def _note(self, change: Change) -> None:
        if change.old is not None and (change.new is None or change.new.uid != change.old.uid):
            self._seen.pop(change.old.uid, None)
            self._waiting.pop(change.old.uid, None)
            self._wake(ObjectKey(change.old.key.namespace, change.old.uid))
        if change.new is not None and _has_good_uid(change.new):
            self._seen[change.new.uid] = change.new
            self._wake(ObjectKey(change.new.key.namespace, change.new.uid))

    async def _follow_runs(self) -> None:
        for local in list(self._local.values()):
            self._wake(local.key)
        async for ref in self._machine.runtime.changed():
            if (found := self._local.get(ref.uid)) is not None:
                self._wake(found.key)

    # -- one pod --------------------------------------------------------------------------------------------------------------

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        raise NotImplementedError("pods also act on this machine: see handle")

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        cached = self._seen.get(key.name)
        local = self._local.get(key.name)
        if local is None:
            if cached is None:
                return None
            local = await self._accept(cached)
            if local is None:
                return _ROOM_RETRY_S if key.name in self._waiting else await self._let_go(cached)
        again_s: float | None = None
        for _ in range(_ROUNDS_MAX):
            cached = self._seen.get(key.name)
            if cached is not None:
                local.record.pod["metadata"] = _kept_metadata(cached.raw)  # labels and annotations may change
            is_gone = cached is None and self._has_synced
            at = situation(local, cached, self._machine.runtime.observe, is_gone=is_gone, is_held=not self.may_start())
            self._probing.tend(local, at)
            decision = decide(at, self._machine.clock())
            again_s = decision.again_s
            if not decision.actions:
                break
            if not await self._actor.act(local, decision.actions):
                break
        else:
            again_s = 0.0
        at = situation(local, cached, self._machine.runtime.observe, is_gone=is_gone, is_held=not self.may_start())
        try:
            report_s = await self._reporter.report(local, at, cached)
            if decision.delete and cached is not None:
                await self._reporter.delete(cached)
            local.store_failures = 0
        except ApiError as e:
            # Whatever else is due for the pod stays due: this only asks for another try.
            if local.store_failures == 0:
                log.warning("pod %s can't be reported now, it is tried again: %s", local.title, e)
            report_s = _RETRY.delay_s(local.store_failures, local.uid)
            local.store_failures += 1
        else:
            if decision.forget:
                await self._forget(local)
                return None
        return min((s for s in (again_s, report_s) if s is not None), default=None)

    async def _let_go(self, cached: Cached) -> float | None:
        """A pod that has nothing here: it is over, or was never begun."""
        if is_deleting(cached.raw):
            await self._reporter.delete(cached)
        return None

    async def _forget(self, local: LocalPod) -> None:
        await self._sweeper.remove_directory(local.uid)
        self._local.pop(local.uid, None)
        self._forgotten[local.uid] = None
        while len(self._forgotten) > _FORGOTTEN_MAX:
            self._forgotten.popitem(last=False)

    # -- taking on ------------------------------------------------------------------------------------------------------------

    def _adopt(self, uid: str) -> None:
        """A pod of an earlier agent."""
        layout = self._machine.layout
        record = pod_records.load(layout, uid)
        if record is None:
            return
        try:
            spec = read_pod(record.pod)
        except AgentError as e:
            spec, record.fate = PodSpec(containers=[]), record.fate or Fate(e.reason, e.message)
        names = [container.name for container in (*spec.init_containers, *spec.containers)]
        self._local[uid] = LocalPod(record, spec, layout, {name: pod_records.attempts(layout, uid, name) for name in names})

    async def _accept(self, cached: Cached) -> LocalPod | None:
        """Take on a pod that the store has bound here. None when there is nothing to take on."""
        raw = cached.raw
        status = read_status(raw)
        if cached.uid in self._forgotten:
            return None
        if status.get("phase") in ("Succeeded", "Failed") or (is_deleting(raw) and not _was_begun(status)):
            return None
        layout, fate = self._machine.layout, None
        try:
            spec = read_pod(raw)
        except AgentError as e:
            spec, fate = PodSpec(containers=[]), Fate(e.reason, e.message)
        if _was_begun(status):
            message = (
                f"the pod was started on node {self._machine.node}, which has lost every trace of it; it is not started again"
            )
            fate = Fate("NodeLost", message)
        fate = fate or refusal(raw, spec, self._offer)
        devices: dict[str, list[int]] = {}
        user = 0
        try:
            if fate is None:
                devices = self._allot_devices(spec)
                taken = {local.record.sandbox.user for local in self._local.values()}
                user = users.allot(cached.uid, self._machine.config.process.user_range, taken)
        except AgentError as e:
            if self._may_wait(cached.uid):
                return None
            fate = Fate(e.reason, e.message)
        self._waiting.pop(cached.uid, None)
        hostname = (spec.hostname or name_of(raw))[:_HOSTNAME_LEN_MAX].rstrip("-.")
        record = PodRecord(
            pod={"apiVersion": "v1", "kind": "Pod", "metadata": _kept_metadata(raw), "spec": raw.get("spec")},
            sandbox=Sandbox(
                uid=cached.uid, namespace=namespace_of(raw), name=name_of(raw), hostname=hostname.split(".")[0], user=user
            ),
            started_at=self._machine.clock(),
            fate=fate,
            is_clean=fate is not None,
            devices=devices,
        )
        local = LocalPod(record, spec, layout, {})
        self._local[cached.uid] = local  # before the wait: others must not be given its user and devices
        try:
            await asyncio.to_thread(pod_records.save, layout, record, is_new=True)
        except BaseException:
            del self._local[cached.uid]
            raise
        if fate is not None:
            self._actor.event(local, "Warning", fate.reason, fate.message)
        return local

    def _may_wait(self, uid: str) -> bool:
        """What is taken may belong to a pod that is on its way out: the store has forgotten it sooner than the machine can."""
        now = self._machine.clock()
        return now - self._waiting.setdefault(uid, now) < _ROOM_S

    def _allot_devices(self, spec: PodSpec) -> dict[str, list[int]]:
        """Units that no other pod has. AgentError when there are not enough."""
        units = self._machine.units
        found: dict[str, list[int]] = {}
        for name, count in device_counts(spec, units).items():
            taken = {
                n for local in self._local.values() if not local.record.is_clean for n in local.record.devices.get(name, ())
            }
            free = [number for number in range(len(units[name])) if number not in taken]
            if len(free) < count:
                raise AgentError(
                    f"OutOf{name}", f"the pod asks for {count} of {name}; {len(free)} of {len(units[name])} are free"
                )
            found[name] = free[:count]
        return found


def _has_good_uid(cached: Cached) -> bool:
    """The uid names directories and cgroups here. No store gives out one that could not."""
    try:
        safe_part(cached.uid)
    except ValueError as e:
        log.error("pod %s is left alone: its uid %s", cached.key, e)
        return False
    return True


def _was_begun(status: Mapping[str, Any]) -> bool:
    """Whether the store knows that an agent has taken it on."""
    states = [s.get("state") for word in ("containerStatuses", "initContainerStatuses") for s in status.get(word) or ()]
    return bool(status.get("startTime")) or any(isinstance(s, dict) and s and "waiting" not in s for s in states)


def _kept_metadata(raw: Raw) -> Raw:
    kept = ("name", "namespace", "uid", "labels", "annotations", "creationTimestamp")
    return {key: value for key, value in metadata_of(raw).items() if key in kept}
