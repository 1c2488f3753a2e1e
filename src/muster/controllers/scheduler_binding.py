"""Carrying out what the engine decided for single pods: many bindings under way at once, each until its outcome is certain.

A binding that fails is one of three things:

| the store says | it means | what happens |
|---|---|---|
| NotFound; Conflict, and the pod is ending, replaced, or on another node | it never will be | the engine is told, finally |
| Conflict, and the pod is on this very node | an earlier try got through | it is bound |
| a refusal (Invalid, Forbidden, ...) | nothing was written | the engine is told, and may try again |
| anything else (a time-out, an overloaded server) | it may have been written, or may yet be | the same binding is tried again |

The last line is why capacity is never given away twice: as long as a binding may still come to be, what it takes stays counted.
Only after minutes of failures, longer than any server holds a request, is the pod read, and given back if it has no node.

Concurrency: `add` and `cancel` are plain calls; workers on the same event loop do the rest. Bindings of one pod are not ordered
among each other; the store takes the first.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec
from prometheus_client import Counter, Gauge, Histogram

from muster.engine.decisions import PlacedPod
from muster.engine.volumes import SELECTED_NODE
from muster.objects.meta import is_deleting, uid_of
from muster.objects.resources import Resource
from muster.objects.status import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    MethodNotAllowed,
    NotFound,
    Raw,
    RequestEntityTooLarge,
)
from muster.store.backoff import Backoff, is_cancelled
from muster.store.contract import Binding, Store

log = logging.getLogger(__name__)

BINDINGS = Counter("muster_scheduler_bindings", "Pods whose binding came to an end.", ["result"])
BINDING_S = Histogram("muster_scheduler_binding_seconds", "From the decision about a pod to the end of its binding.")
QUEUED = Gauge("muster_scheduler_bindings_in_progress", "Pods that are decided and not yet bound.")

_DONE, _FAILED, _NOT_TRIED = (BINDINGS.labels(result) for result in ("bound", "failed", "cancelled"))
_REFUSALS = (Invalid, BadRequest, Forbidden, MethodNotAllowed, RequestEntityTooLarge)

CustomBinder = Callable[[PlacedPod], Awaitable[None]]
"""A plugin's own way of binding (`PlacedPod.binder`); raises ApiError when it could not."""


class BindLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`workers` calls at once, each for up to `batch_len` pods; after `attempts_max` tries, minutes in all, the pod is read."""

    workers: int
    batch_len: int
    attempts_max: int = 12
    backoff: Backoff = Backoff(base_s=0.1, max_s=30.0)


ONE_BY_ONE = BindLimits(workers=128, batch_len=1)
"""For an API server: requests in parallel."""
TOGETHER = BindLimits(workers=2, batch_len=512)
"""For a store in this process: one commit for many; while one is flushed, the next is made."""


class Job(msgspec.Struct, eq=False):
    """One pod to bind. `is_planned`: it belongs to a plan that says what follows (`muster.controllers.scheduler_plans`)."""

    pod: PlacedPod
    since_s: float
    done: Callable[[Job, Outcome], None]
    attempts: int = 0
    is_labelled: bool = False
    """Whether what must be patched beforehand has been."""


class Outcome(msgspec.Struct, frozen=True):
    """`error` is empty when the pod is bound. `is_final`: it can never be; `is_cancelled`: it was not tried."""

    error: str = ""
    is_final: bool = False
    is_cancelled: bool = False

    @property
    def is_bound(self) -> bool:
        return not self.error and not self.is_cancelled


_BOUND = Outcome()
_CANCELLED = Outcome(is_cancelled=True)


class Binder:
    """See the module. `has_node` tells whether a node still exists, as far as is known here."""

    def __init__(
        self,
        store: Store,
        limits: BindLimits,
        *,
        has_node: Callable[[str], bool],
        custom: Mapping[str, CustomBinder] | None = None,
        claims: Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        """`claims` names, by a pod's uid, the volume claims that wait to be told the node, so that their volumes are made."""
        self.failing: dict[str, str] = {}
        """Pods (namespace/name) whose binding does not come to an end, with why."""
        self._store = store
        self._limits = limits
        self._has_node = has_node
        self._custom = {} if custom is None else custom
        self._claims_of = claims or (lambda uid: ())
        self._queue: OrderedDict[str, Job] = OrderedDict()
        """By the pod's uid; a pod is decided about once at a time."""
        self._is_stopping = False
        self._in_progress = 0
        """Queued, under way, and waiting for another try."""
        self._is_waiting = asyncio.Event()
        self._later: dict[asyncio.TimerHandle, Job] = {}
        self._pods: Resource | None = None
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return self._in_progress

    def add(self, pods: Iterable[PlacedPod], done: Callable[[Job, Outcome], None]) -> None:
        now_s = self._loop.time()
        for pod in pods:
            self._in_progress += 1
            self._enqueue(Job(pod, now_s, done))
        QUEUED.set(self._in_progress)

    def cancel(self, uids: Iterable[str]) -> None:
        """Do not begin with these any more. What is under way stays so: its outcome is not ours to choose."""
        for uid in uids:
            job = self._queue.get(uid)
            # One that was tried may have been bound.
            if job is not None and not job.attempts:
                del self._queue[uid]
                self._finish(job, _CANCELLED)

    async def run(self) -> None:
        """Until cancelled; then what is under way is cut off, with its outcome unknown."""
        workers = [asyncio.create_task(self._work(), name=f"binder {n}") for n in range(self._limits.workers)]
        try:
            await asyncio.gather(*workers)
        finally:
            for timer in self._later:
                timer.cancel()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            QUEUED.set(0)

    def stop(self) -> None:
        """Have `run` end by itself when what is under way has its answer; what is queued is left."""
        self._is_stopping = True
        self._queue.clear()
        self._is_waiting.set()

    # -- workers ---------------------------------------------------------------------------------------------------------------

    def _enqueue(self, job: Job) -> None:
        old = self._queue.pop(job.pod.uid, None)
        self._queue[job.pod.uid] = job
        if old is not None:
            self._finish(old, _CANCELLED)
        self._is_waiting.set()

    async def _work(self) -> None:
        while not self._is_stopping:
            await self._is_waiting.wait()
            batch: list[Job] = []
            while self._queue and len(batch) < self._limits.batch_len:
                batch.append(self._queue.popitem(last=False)[1])
            if not self._queue:
                self._is_waiting.clear()
            if batch:
                await self._bind(batch)
                QUEUED.set(self._in_progress)

    async def _bind(self, batch: Sequence[Job]) -> None:
        """Bind these, and see to the outcome of each."""
        plain: list[Job] = []
        for job in batch:
            if not self._has_node(job.pod.node):
                await self._leave_node(job)
            elif job.pod.binder or job.pod.labels or self._claims_of(job.pod.uid):
                await self._settle(job, await self._bind_specially(job))
            else:
                plain.append(job)
        if not plain:
            return
        for job, error in zip(plain, await self._bind_many([job.pod for job in plain]), strict=True):
            if error is None:
                self._finish(job, _BOUND)
            else:
                await self._settle(job, error)

    async def _bind_many(self, pods: Sequence[PlacedPod]) -> Sequence[ApiError | None]:
        try:
            return await self._store.bind_many([_binding(pod) for pod in pods])
        except ApiError as error:
            return [error] * len(pods)
        except Exception as error:
            if is_cancelled():
                raise
            log.exception("binding %d pods, the first of them %s/%s", len(pods), pods[0].namespace, pods[0].name)
            return [Invalid(f"{type(error).__name__}: {error}")] * len(pods)

    async def _bind_one(self, pod: PlacedPod) -> None:
        annotations = None if pod.labels else pod.annotations or None
        await self._store.bind(pod.name, pod.namespace, pod.node, uid=pod.uid, annotations=annotations)

    async def _bind_specially(self, job: Job) -> ApiError | None:
        pod = job.pod
        if pod.binder and pod.binder not in self._custom:
            return Invalid(f"{pod.namespace}/{pod.name}: plugin {pod.binder} has registered no binder with the scheduler")
        for claim in self._claims_of(pod.uid):
            error = await self._call(functools.partial(self._select_node, claim), pod)
            if error is not None:
                return error
        if pod.labels and not job.is_labelled:
            error = await self._call(self._label, pod)
            if error is not None:
                return error
            job.is_labelled = True
        return await self._call(self._custom[pod.binder] if pod.binder else self._bind_one, pod)

    async def _select_node(self, claim: str, pod: PlacedPod) -> None:
        """Have the claim's volume made where the pod will be. The pod is bound without waiting for it."""
        body: Raw = {"metadata": {"annotations": {SELECTED_NODE: pod.node}}}
        await self._store.patch(await self._store.resource("", "PersistentVolumeClaim"), claim, body, pod.namespace)

    async def _label(self, pod: PlacedPod) -> None:
        """One patch with all that was decided about the pod; the binding then only binds."""
        meta: Raw = {"uid": pod.uid, "labels": dict(pod.labels)}
        if pod.annotations:
            meta["annotations"] = dict(pod.annotations)
        await self._store.patch(await self._resource(), pod.name, {"metadata": meta}, pod.namespace)

    async def _call(self, bind: CustomBinder, pod: PlacedPod) -> ApiError | None:
        try:
            await bind(pod)
        except ApiError as error:
            return error
        except Exception as error:
            if is_cancelled():
                raise
            log.exception("binding %s/%s to %s", pod.namespace, pod.name, pod.node)
            return Invalid(f"{type(error).__name__}: {error}")
        return None

    # -- outcomes --------------------------------------------------------------------------------------------------------------

    async def _settle(self, job: Job, error: ApiError | None) -> None:
        if error is None:
            self._finish(job, _BOUND)
        elif isinstance(error, NotFound):
            self._finish(job, Outcome(str(error), is_final=True))
        elif isinstance(error, Conflict) or job.attempts + 1 >= self._limits.attempts_max:
            await self._look(job, error)
        elif isinstance(error, _REFUSALS):
            self._finish(job, Outcome(str(error)))
        else:
            self._try_again(job, error)

    async def _leave_node(self, job: Job) -> None:
        """The node is gone. What was tried before may have arrived, which the pod tells; later it hurts no capacity."""
        why = Invalid(f"node {job.pod.node} is gone")
        if job.attempts:
            await self._look(job, why)
        else:
            self._finish(job, Outcome(str(why)))

    async def _look(self, job: Job, error: ApiError) -> None:
        """What has become of the pod decides."""
        pod = job.pod
        try:
            live = await self._store.get(await self._resource(), pod.name, pod.namespace)
        except NotFound:
            self._finish(job, Outcome(str(error), is_final=True))
            return
        except ApiError as unreadable:
            self._try_again(job, unreadable)
            return
        node = (live.get("spec") or {}).get("nodeName")
        is_same = uid_of(live) == pod.uid
        if is_same and node == pod.node:
            self._finish(job, _BOUND)
        elif node or not is_same or is_deleting(live):
            self._finish(job, Outcome(str(error), is_final=True))
        elif isinstance(error, Conflict) and job.attempts + 1 < self._limits.attempts_max:
            self._try_again(job, error)
        else:
            self._finish(job, Outcome(str(error)))

    def _try_again(self, job: Job, error: ApiError) -> None:
        name = f"{job.pod.namespace}/{job.pod.name}"
        self.failing[name] = str(error)
        delay_s = self._limits.backoff.delay_s(job.attempts, job.pod.uid)
        job.attempts += 1
        log.info("binding %s to %s will be tried again in %.1f s: %s", name, job.pod.node, delay_s, error)

        def again() -> None:
            self._later.pop(timer, None)
            self._enqueue(job)

        timer = self._loop.call_later(delay_s, again)
        self._later[timer] = job

    def _finish(self, job: Job, outcome: Outcome) -> None:
        self._in_progress -= 1
        if job.attempts:
            self.failing.pop(f"{job.pod.namespace}/{job.pod.name}", None)
        (_DONE if outcome.is_bound else _NOT_TRIED if outcome.is_cancelled else _FAILED).inc()
        BINDING_S.observe(self._loop.time() - job.since_s)
        job.done(job, outcome)

    async def _resource(self) -> Resource:
        if self._pods is None:
            self._pods = await self._store.resource("", "Pod")
        return self._pods


def _binding(pod: PlacedPod) -> Binding:
    return Binding(pod.name, pod.namespace, pod.node, pod.uid, pod.annotations or None)
