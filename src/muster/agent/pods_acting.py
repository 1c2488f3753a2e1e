"""Does what `lifecycle` decided: prepares sandboxes, starts and stops runs, cleans up.

Concurrency: one event loop. What may take long is background work of its pod (`LocalPod.works`); what blocks goes to a thread.
When work has ended, `wake` puts the pod's key into the queue, so that the next decision sees its result. Work never raises:
what failed is in the pod's memory as a `Problem`, or is tried again until it succeeds (taking away).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import shutil
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from muster.agent import lifecycle_facts as steps
from muster.agent import pod_records, reports, volumes_disk
from muster.agent.contracts import START_ERROR, AgentError
from muster.agent.environment import PodFields
from muster.agent.images import check_id
from muster.agent.lifecycle_facts import Action, Problem, Stopping
from muster.agent.pod_etc import write_etc
from muster.agent.pod_resources import container_limits, network_want, pod_limits
from muster.agent.pods_lingering import linger
from muster.agent.pods_local import ContainerMemory, LocalPod
from muster.agent.pods_machine import Machine
from muster.agent.pods_spec import SpecMaker
from muster.agent.pods_volumes import write_volumes
from muster.agent.probes import Asker
from muster.objects.kinds.defaults import image_pull_policy
from muster.objects.labels import KusciaAnnotation
from muster.objects.meta import annotations_of
from muster.store.cache import ObjectKey
from muster.store.events import EventKind, EventRecorder

log = logging.getLogger(__name__)

_QUICK_S = 0.25
"""So long a worker waits for work that it has begun, before it turns to other pods."""
_SAY_S = 0.25
"""So long after a shim has a run in hand it is said that it started, unless it has ended by then."""
_FAULT_S = 5.0
_RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Actor:
    def __init__(self, machine: Machine, recorder: EventRecorder | None, wake: Callable[[ObjectKey], object]) -> None:
        self._machine = machine
        self._recorder = recorder
        self._wake = wake
        self._maker = SpecMaker(machine.layout, machine.config, machine.sources)

    async def act(self, local: LocalPod, actions: tuple[Action, ...]) -> bool:
        """Begin them in order. True when everything is done already, so that the next decision can be made at once."""
        begun: list[asyncio.Task[None]] = []
        for action in actions:
            if action.work in local.works:
                continue
            job = self._background(local, action)
            if job is not None:
                begun.append(self._spawn(local, action.work, job))
            else:
                await self._at_once(local, action)
        if not begun:
            return bool(actions)
        _, pending = await asyncio.wait(begun, timeout=_QUICK_S)
        return not pending

    def event(self, local: LocalPod, type_: EventKind, reason: str, message: str, container: str = "") -> None:
        if self._recorder is not None:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": local.record.pod.get("metadata")}
            path = f"spec.containers{{{container}}}" if container else ""
            self._recorder.event(pod, type_, reason, message, field_path=path)

    def fields(self, local: LocalPod) -> PodFields:
        machine = self._machine
        return PodFields(
            pod=local.record.pod,
            spec=local.spec,
            node=machine.node,
            pod_ip=local.record.sandbox.ip,
            host_ip=machine.host_ip,
            allocatable=machine.allocatable,
        )

    # -- background work ------------------------------------------------------------------------------------------------------

    def _background(self, local: LocalPod, action: Action) -> Coroutine[Any, Any, None] | None:
        match action:
            case steps.Prepare():
                return self._prepare(local)
            case steps.Pull(container=name):
                return self._pull(local, local.containers[name])
            case steps.Start(container=name, attempt=attempt):
                return self._start(local, local.containers[name], attempt)
            case steps.RunHook():
                return self._hook(local, action)
            case steps.Remove(container=name, attempt=attempt):
                return self._remove(local, local.containers[name], attempt)
            case steps.Clean():
                return self._clean(local)
        return None

    def _spawn(self, local: LocalPod, work: str, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(job, name=f"{work} of {local.title}")
        local.works[work] = task

        def ended(done: asyncio.Task[None]) -> None:
            if local.works.get(work) is done:
                del local.works[work]
            error = None if done.cancelled() else done.exception()
            if error is None:
                self._wake(local.key)
                return
            log.error("pod %s: %s failed", local.title, work, exc_info=error)
            self._note_fault(local, work, error)
            asyncio.get_running_loop().call_later(_FAULT_S, self._wake, local.key)

        task.add_done_callback(ended)
        return task

    def _note_fault(self, local: LocalPod, work: str, error: BaseException) -> None:
        """Nobody foresaw this failure; it must not be repeated without a pause."""
        word, _, name = work.partition(" ")
        message = f"{work}: {type(error).__name__}: {error}"
        if word in ("Start", "Pull"):
            local.containers[name].fail("InternalError", message, self._machine.clock())
        elif word == "Prepare":
            self._sandbox_failed(local, "InternalError", message)
        elif word in ("postStart", "preStop"):
            self._note_hook(local.containers[name], word, "failed")

    async def _prepare(self, local: LocalPod) -> None:
        machine, uid = self._machine, local.uid
        try:
            await self.write_volumes(local)
            machine.cgroups.create_pod(uid, pod_limits(local.spec, self._devices(local)))
            sandbox = local.record.sandbox
            if machine.networks is not None and not local.spec.host_network:
                network = await machine.networks.ensure(network_want(uid, local.record.pod))
                sandbox = msgspec.structs.replace(sandbox, netns=network.netns, ip=network.ip)

            def write() -> None:
                reports.make_directory(machine.layout.report(uid), sandbox.user)
                write_etc(machine.layout, sandbox, local.spec, machine.host_ip)

            await asyncio.to_thread(write)
            if machine.fill_names is not None:
                machine.fill_names(uid, sandbox.namespace)
            if sandbox != local.record.sandbox:
                local.record.sandbox = sandbox
                self._save(local)
            local.has_sandbox, local.sandbox_problem = True, None
        except AgentError as e:
            self._sandbox_failed(local, e.reason, e.message)
        except OSError as e:
            self._sandbox_failed(local, "FailedCreatePodSandBox", f"{e.filename or 'the sandbox'}: {e.strerror or e}")

    def _sandbox_failed(self, local: LocalPod, reason: str, message: str) -> None:
        times = local.sandbox_problem.times + 1 if local.sandbox_problem is not None else 1
        local.sandbox_problem = Problem(reason, message, self._machine.clock(), times)
        self.event(local, "Warning", reason, message)

    async def write_volumes(self, local: LocalPod) -> bool:
        """Have all volumes there and up to date; whether anything changed."""
        return await write_volumes(self._machine, local, self.fields(local))

    async def _pull(self, local: LocalPod, memory: ContainerMemory) -> None:
        container = memory.container
        policy = container.image_pull_policy or image_pull_policy(container.image)
        try:
            image = await self._machine.runtime.image(container.image, policy)
            if image.id:
                check_id(image, annotations_of(local.record.pod).get(KusciaAnnotation.IMAGE_ID, ""))
            memory.image = image
            if image.id:
                self.event(local, "Normal", "Pulled", f"image {container.image!r} is here", container.name)
            if memory.problem is not None and memory.problem.reason.startswith(("ErrImage", "InvalidImage")):
                memory.problem = None
        except AgentError as e:
            memory.fail(e.reason, e.message, self._machine.clock())
            self.event(local, "Warning", "Failed", e.message, container.name)
        except OSError as e:
            memory.fail("ErrImagePull", str(e), self._machine.clock())

    async def _start(self, local: LocalPod, memory: ContainerMemory, attempt: int) -> None:
        container, machine = memory.container, self._machine
        assert memory.image is not None
        try:
            limits = container_limits(container, self._devices(local))
            spec = await self._maker.make(local, memory, attempt, self.fields(local), limits)
            machine.cgroups.create_container(local.uid, container.name, limits)
            self._prune(local, memory)
            memory.begin(attempt)
            await machine.runtime.start(local.record.sandbox, spec, memory.image)
            memory.problem = None
            asyncio.get_running_loop().call_later(_SAY_S, self._say_began, local, memory, attempt)
        except AgentError as e:
            memory.fail(e.reason, e.message, machine.clock())
            self.event(local, "Warning", "Failed", e.message, container.name)
        except (OSError, ValueError) as e:
            memory.fail("CreateContainerError", str(e), machine.clock())
            self.event(local, "Warning", "Failed", str(e), container.name)

    def _say_began(self, local: LocalPod, memory: ContainerMemory, attempt: int) -> None:
        """Once for each run: when it has ended, or has not failed to execute its program for a moment."""
        if memory.told_attempt == attempt:
            return
        memory.told_attempt, name = attempt, memory.container.name
        run = memory.ended.get(attempt)
        state = run.state if run is not None else self._machine.runtime.observe(local.ref(name, attempt))
        exited = state.exited if state is not None else None
        if exited is not None and exited.reason == START_ERROR:
            self.event(local, "Warning", "Failed", f"container {name} could not be started: {exited.message}", name)
        else:
            self.event(local, "Normal", "Started", f"started container {name}", name)

    def _prune(self, local: LocalPod, memory: ContainerMemory) -> None:
        """Of earlier runs only the latest is kept, for its log and how it ended."""
        for attempt in memory.attempts[:-1]:
            shutil.rmtree(local.run_dir(memory.container.name, attempt), ignore_errors=True)
            memory.ended.pop(attempt, None)
        del memory.attempts[:-1]

    def _devices(self, local: LocalPod) -> list[str]:
        found: list[str] = []
        for name, numbers in local.record.devices.items():
            units = self._machine.units.get(name, ())
            found += [path for number in numbers if number < len(units) for path in units[number]]
        return found

    async def _hook(self, local: LocalPod, action: steps.RunHook) -> None:
        memory = local.containers[action.container]
        lifecycle = memory.container.lifecycle
        assert lifecycle is not None
        hook = lifecycle.post_start if action.kind == "postStart" else lifecycle.pre_stop
        assert hook is not None
        self._note_hook(memory, action.kind, "running")
        asker = Asker(
            self._machine.runtime, local.ref(action.container, action.attempt), memory.container, local.record.sandbox.ip
        )
        is_success, message = False, ""
        try:
            async with asyncio.timeout(action.timeout_s + 1):
                result = await asker.hook(hook, action.timeout_s)
                is_success, message = result.is_success, result.message
        except TimeoutError:
            message = f"it took longer than {action.timeout_s:g} s"
        except OSError as e:
            message = str(e)
        if not is_success:
            reason = "FailedPostStartHook" if action.kind == "postStart" else "FailedPreStopHook"
            self.event(local, "Warning", reason, message, action.container)
        self._note_hook(memory, action.kind, "done" if is_success else "failed")

    def _note_hook(self, memory: ContainerMemory, kind: str, state: steps.Hook) -> None:
        if kind == "postStart":
            memory.post_start = state
        elif memory.stopping is not None:
            memory.stopping = msgspec.structs.replace(memory.stopping, pre_stop=state)

    async def _remove(self, local: LocalPod, memory: ContainerMemory, attempt: int) -> None:
        machine, name = self._machine, memory.container.name
        self._say_began(local, memory, attempt)

        async def remove() -> None:
            await machine.runtime.remove(local.record.sandbox, local.ref(name, attempt))
            machine.cgroups.remove(local.uid, name)

        await self._insist(local, f"what run {attempt} of {name} left", remove)
        memory.is_removed = True
        self._say_back_off(local, memory, attempt)

    def _say_back_off(self, local: LocalPod, memory: ContainerMemory, attempt: int) -> None:
        run, container = memory.ended.get(attempt), memory.container
        is_init = container in local.spec.init_containers
        if run is None or run.exited is None or local.record.fate is not None:
            return
        wait_s = steps.backoff_s(steps.Facts(short_runs=memory.short_runs))
        if wait_s and steps.may_restart(local.spec, container, run.exited.code, is_init=is_init):
            message = f"back-off {wait_s:.0f}s restarting failed container {container.name}"
            self.event(local, "Warning", "BackOff", message, container.name)

    async def _clean(self, local: LocalPod) -> None:
        """Everything but record and logs. What is still being prepared is given up first."""
        machine, uid = self._machine, local.uid
        others = [task for work, task in local.works.items() if work != "Clean"]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for memory in local.containers.values():
            memory.stop_probing()
            for attempt in memory.attempts[-2:]:
                if memory.is_removed and attempt in memory.ended:
                    continue
                await self._insist(local, "a run", functools.partial(self._remove_run, local, memory.container.name, attempt))
            memory.is_removed = True

        async def release() -> None:
            if machine.networks is not None and (traffic := await machine.networks.release(uid)) is not None:
                local.annotations |= reports.traffic_annotation(traffic)

        async def remove_cgroups() -> None:
            machine.cgroups.remove(uid)

        async def remove_volumes() -> None:
            if local.spec.volumes:
                await asyncio.to_thread(volumes_disk.remove_tree, machine.layout.pod(uid) / "volumes")

        if machine.networks is not None and local.record.sandbox.netns:
            await asyncio.to_thread(linger, local.record.sandbox.netns)
        await self._insist(local, "its network", release)
        await self._insist(local, "its cgroup", remove_cgroups)
        if local.report.poll():
            local.annotations |= local.report.report.annotations()
        await self._insist(local, "its volumes", remove_volumes)
        local.record.annotations = dict(local.annotations)
        # In a thread: to replace a file waits for the disk, and so would every other pod. Known to be clean only then, so that
        # nobody takes the directory away meanwhile.
        await asyncio.to_thread(self._save, local, is_clean=True)
        local.record.is_clean = True
        local.has_sandbox = False

    def _save(self, local: LocalPod, *, is_clean: bool = False) -> None:
        with local.saving:
            record = msgspec.structs.replace(local.record, is_clean=is_clean or local.record.is_clean)
            pod_records.save(self._machine.layout, record)

    async def _remove_run(self, local: LocalPod, name: str, attempt: int) -> None:
        await self._machine.runtime.remove(local.record.sandbox, local.ref(name, attempt))

    async def _insist(self, local: LocalPod, what: str, job: Callable[[], Awaitable[object]]) -> None:
        """Taking away is tried until it succeeds: a process in the kernel's hands may hold on for a while."""
        failures = 0
        while True:
            try:
                await job()
                return
            except (AgentError, OSError) as e:
                failures += 1
                if failures in (10, 100):
                    log.warning("pod %s: %s can't be taken away yet: %s", local.title, what, e)
                await asyncio.sleep(_RETRY_S[min(failures - 1, len(_RETRY_S) - 1)])

    # -- at once --------------------------------------------------------------------------------------------------------------

    async def _at_once(self, local: LocalPod, action: Action) -> None:
        now = self._machine.clock()
        match action:
            case steps.Doom(fate=fate):
                local.record.fate = fate
                self._save(local)
                self.event(local, "Warning", fate.reason, fate.message)
            case steps.BeginStop(container=name, why=why):
                local.containers[name].stopping = Stopping(since=now)
                local.containers[name].stop_probing()
                self.event(local, "Normal", "Killing", f"stopping container {name}: {why}", name)
            case steps.Signal(container=name, attempt=attempt, signal=number):
                self._note_stopping(local.containers[name], signalled_at=now)
                await self._send(local, name, attempt, number)
            case steps.Kill(container=name, attempt=attempt):
                self._note_stopping(local.containers[name], killed_at=now)
                await self._send(local, name, attempt, signal.SIGKILL)

    def _note_stopping(self, memory: ContainerMemory, **changes: float) -> None:
        if memory.stopping is not None:
            memory.stopping = msgspec.structs.replace(memory.stopping, **changes)

    async def _send(self, local: LocalPod, name: str, attempt: int, number: int) -> None:
        # One that has ended meanwhile is what was wanted; anything else is tried again when the grace is over.
        with contextlib.suppress(AgentError, OSError):
            await self._machine.runtime.signal(local.ref(name, attempt), number)
