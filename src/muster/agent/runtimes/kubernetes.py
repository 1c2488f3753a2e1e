"""RunK: the pods of this node are made in another cluster; their status, logs and end come back. A `PodCarrier`.

For each pod there is one copy in one namespace there (`kubernetes_pods`), with copies of the config maps and secrets that it
names. What to do next is decided by `kubernetes_plan`, from the pod here and the copy there, both as the informers have them.

Concurrency: one event loop. A `Runner` follows this node's pods; a second informer follows the copies, and puts the key of the
pod into the runner's queue. Nothing is decided before the copies are known. While either side is away its cache stays as it
was, nothing new is decided about it, and what fails is tried again for ever.

Invariants: nothing is kept on this machine, so that a new agent goes on where the old one was; a copy has a finalizer, so that
its end is seen; a copy that was seen once is never made again; what was made there goes when its pod here has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path

from muster.agent.config import Kubernetes as Settings
from muster.agent.contracts import AgentError, ExecSession, ExecWant, LogQuery, Missing, StreamTarget
from muster.agent.names import EndpointsView, ServiceView, backends, service_lines
from muster.agent.pod_sources import PodSources
from muster.agent.pod_status import patch_of
from muster.agent.runtimes.kubernetes_plan import Step, decide
from muster.agent.runtimes.kubernetes_pods import (
    FINALIZER,
    SOURCES_MAX,
    Carrier,
    has_ended,
    origin,
    remote_pod,
    remote_source,
    sources_of,
    waiting,
)
from muster.client.api import ApiClient
from muster.client.kubeconfig import KubeconfigError
from muster.client.messages import Request
from muster.controllers.actions import Action, Delete, Patch, PatchStatus, Target
from muster.controllers.runtime import Caches, Context, Controller, Plan, Runner, Watch
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.meta import finalizers_of, is_deleting, metadata_of, name_of, namespace_of, uid_of
from muster.objects.resources import Resource
from muster.objects.rules.report import obj
from muster.objects.status import AlreadyExists, ApiError, BadRequest, Forbidden, Invalid, NotFound, Raw
from muster.objects.time import Clock, format_time
from muster.objects.view import view_of
from muster.store.backoff import Backoff
from muster.store.cache import Cached, ObjectKey
from muster.store.contract import Preconditions, Store
from muster.store.events import EventRecorder
from muster.store.hub import InformerHub
from muster.store.informer import Change, Informer
from muster.store.kubernetes import KubernetesStore

log = logging.getLogger(__name__)

_AGAIN_S = 5.0
"""After the other cluster has refused a pod, or something that it needs is missing."""
_UNKNOWN_S = 1.0
_ALIASES_BYTES_MAX = 64 * 1024
_BACKOFF = Backoff(base_s=0.5, max_s=30.0)


class KubernetesPods:
    """See the module. `await open()`, then `run` until cancelled, then `await close()`."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        node: str,
        identity: str,
        clock: Clock,
        recorder: EventRecorder | None = None,
        may_start: Callable[[], bool] = lambda: True,
    ) -> None:
        self.may_start = may_start
        self._store = store
        self._settings = settings
        self._node = node
        self._identity = identity
        self._clock = clock
        self._recorder = recorder
        self._there: KubernetesStore | None = None
        self._driver: _Driver | None = None

    def _may(self) -> bool:
        return self.may_start()  # it may be set after the driver was made

    def missing(self) -> Sequence[Missing]:
        why = "pods run in another cluster"
        return (
            Missing("progress reports", why, "MUSTER_REPORT is not set; a task may annotate its own pod there instead"),
            Missing("traffic", why, "bytes are not counted; ceilings are left to that cluster's network plugin"),
        )

    async def open(self) -> None:
        """AgentError `KubernetesNotReady` when the kubeconfig can't be used. The cluster itself may be away."""
        settings = self._settings
        if not settings.kubeconfig:
            raise AgentError("KubernetesNotReady", "kubernetes.kubeconfig: '': name the file that leads to the other cluster")
        try:
            client = await ApiClient.from_kubeconfig(Path(settings.kubeconfig), settings.context or None)
        except (KubeconfigError, ApiError, OSError) as e:
            raise AgentError("KubernetesNotReady", f"kubernetes.kubeconfig: {settings.kubeconfig!r}: {e}") from e
        self._there = KubernetesStore(client)
        namespace = settings.namespace or client.config.namespace
        carrier = Carrier(node=self._node, identity=self._identity, namespace=namespace, settings=settings)
        self._driver = _Driver(self._store, self._there, carrier, self._clock, self._may)

    async def close(self) -> None:
        """Everything goes on there."""
        if self._there is not None:
            await self._there.close()

    async def run(self) -> None:
        assert self._driver is not None, "open comes first"
        hub = InformerHub(self._store)
        runner = Runner(self._driver, hub, clock=self._clock, recorder=self._recorder)
        hub.start()
        following = asyncio.create_task(self._driver.follow(runner), name="copies of pods")
        try:
            await asyncio.gather(runner.run(self._store), following)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await hub.stop()

    def local_uids(self) -> set[str]:
        """Pods of this node that have not ended, or have something there that has not."""
        return self._driver.alive() if self._driver is not None else set()

    async def logs(self, query: LogQuery) -> AsyncIterator[bytes]:
        if self._driver is None or self._there is None:
            raise AgentError("NotFound", "the agent is not ready yet")
        copy = self._driver.copy_of(ObjectKey(query.namespace, query.pod), query.uid)
        if copy is None:
            raise AgentError("NotFound", f"pod {query.namespace}/{query.pod} has no copy in the other cluster")
        flags = (("follow", query.follow), ("previous", query.previous), ("timestamps", query.timestamps))
        numbers = (("tailLines", query.tail_lines), ("limitBytes", query.limit_bytes))
        params = [("container", query.container), *((name, "true") for name, is_set in flags if is_set)]
        params += [(name, str(value)) for name, value in numbers if value is not None]
        params += [] if query.since is None else [("sinceTime", format_time(query.since))]
        path = f"/api/v1/namespaces/{copy.key.namespace}/pods/{copy.key.name}/log"
        request = Request(method="GET", path=path, params=params, accept="*/*")
        try:
            async with self._there.client.transport.stream(request) as stream, contextlib.aclosing(stream.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk
        except NotFound as e:
            raise AgentError("NotFound", f"the other cluster: {e.message}") from e
        except ApiError as e:
            raise AgentError("BadRequest", f"the other cluster: {e.message}") from e

    async def open_exec(self, target: StreamTarget, want: ExecWant) -> ExecSession:
        raise _elsewhere(target)

    async def dial(self, target: StreamTarget, port: int) -> socket.socket:
        raise _elsewhere(target)


def _elsewhere(target: StreamTarget) -> AgentError:
    message = f"pod {target.namespace}/{target.pod} runs in another cluster: ask that one for a connection into it"
    return AgentError("NotSupported", message)


class _Driver(Controller):
    """Keys are pods of this node, and those of copies whose pod is gone."""

    name = "carried-pods"
    workers = 8

    def __init__(self, here: Store, there: Store, carrier: Carrier, clock: Clock, may_start: Callable[[], bool]) -> None:
        self._here = here
        self._there = there
        self._carrier = carrier
        self._clock = clock
        self._may_start = may_start
        self._sources = PodSources(here, clock)
        self._copies: Informer | None = None
        self._pods: Iterable[Cached] = ()
        self.pods = Watch(group="", kind="Pod", field_selector=f"spec.nodeName={carrier.node}", keep="raw")
        self.watches = (self.pods,)

    # -- the copies ------------------------------------------------------------------------------------------------------------

    async def follow(self, runner: Runner) -> None:
        """Keep the copies in a cache, and tell the runner of every change. Until cancelled."""
        self._pods = (await runner.prepare())[self.pods].cache
        resource = await self._resource("Pod")
        copies = Informer(
            self._there,
            resource,
            namespace=self._carrier.namespace,
            label_selector=self._carrier.selector,
            keep="raw",
            indexes={"origin": _by_origin},
        )

        def tell(change: Change) -> None:
            queue = runner.queue
            for one in (change.old, change.new):
                if one is not None and queue is not None and not queue.is_closed:
                    queue.add(_key_of(one))

        copies.add_handler(tell)
        copies.start()
        try:
            await copies.wait_synced()
            self._copies = copies
            while runner.queue is None:  # noqa: ASYNC110 (the runner makes it when it has synced)
                await asyncio.sleep(0.05)
            for one in copies.cache:
                runner.queue.add(_key_of(one))
            await self._sweep_files(copies)
            await asyncio.Event().wait()
        finally:
            self._copies = None
            await copies.stop()

    async def _resource(self, kind: str) -> Resource:
        """Insists: the other cluster may be away when the agent starts."""
        failures = 0
        while True:
            try:
                return await self._there.resource("", kind)
            except ApiError as e:
                if failures == 0:
                    log.warning("the other cluster can't be reached: %s", e)
                await asyncio.sleep(_BACKOFF.delay_s(failures, self.name))
                failures += 1

    async def _sweep_files(self, copies: Informer) -> None:
        """Files that an agent made before it died, for a pod that was never made."""
        for kind in ("ConfigMap", "Secret"):
            try:
                resource = await self._there.resource("", kind)
                found = await self._there.list(resource, self._carrier.namespace, label_selector=self._carrier.selector)
                known = {origin(one.raw)[2] for one in copies.cache} | {one.uid for one in self._pods}
                for one in found.items:
                    if str(obj(metadata_of(one), "labels").get(KusciaLabel.POD_UID)) not in known:
                        await self._remove(resource, one)
            except ApiError as e:
                log.warning("what is left of older pods in the other cluster can't be listed: %s", e)

    def copy_of(self, key: ObjectKey, uid: str = "") -> Cached | None:
        found = [] if self._copies is None else self._copies.cache.by_index("origin", str(key))
        live = {one.uid for one in self._pods if one.key == key}
        wanted = {uid} if uid else live
        return next((one for one in found if origin(one.raw)[2] in wanted), None)

    def alive(self) -> set[str]:
        copies = () if self._copies is None else self._copies.cache
        there = {origin(one.raw)[2] for one in copies if not has_ended(one.raw)}
        return there | {one.uid for one in self._pods if obj(one.raw, "status").get("phase") not in ("Succeeded", "Failed")}

    # -- one pod ---------------------------------------------------------------------------------------------------------------

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        raise NotImplementedError("it acts on two clusters: see handle")

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        if self._copies is None:
            return _UNKNOWN_S
        cached = context.caches[self.pods].get(key)
        pod = None if cached is None else cached.raw
        own: Raw | None = None
        for copy in self._copies.cache.by_index("origin", str(key)):
            if pod is not None and origin(copy.raw)[2] == uid_of(pod):
                own = copy.raw
            else:
                await self._act(decide(None, copy.raw, context.clock()), None, copy.raw, context)
        step = decide(pod, own, context.clock(), may_start=self._may_start())
        return await self._act(step, pod, own, context)

    async def _act(self, step: Step, pod: Raw | None, copy: Raw | None, context: Context) -> float | None:
        again_s: float | None = None
        if pod is not None:
            status = step.status
            if step.create:
                status = await self._create(pod)
                again_s = _AGAIN_S if status is not None else None
            await context.executor.apply(self._report(pod, copy, status))
        if copy is not None and step.end_after_s is not None:
            await self._delete(copy, step.end_after_s)
        if pod is not None and step.delete:
            await context.executor.apply([Delete(_target(pod), grace_period_s=0)])
        if step.release:
            await self._release(pod, copy)
        return again_s

    def _report(self, pod: Raw, copy: Raw | None, status: Raw | None) -> list[Action]:
        patch = {} if status is None else patch_of(status, obj(pod, "status"))
        if status is not None and "conditions" in patch:
            patch["conditions"] = status["conditions"]  # a merge patch: it replaces the list as a whole
        actions: list[Action] = [PatchStatus(_target(pod), patch)] if patch else []
        said, known = obj(metadata_of(copy or {}), "annotations"), obj(metadata_of(pod), "annotations")
        news = {k: said[k] for k in (Muster.PROGRESS, Muster.RECORDS) if k in said and said[k] != known.get(k)}
        return [*actions, Patch(_target(pod), {"metadata": {"annotations": news}})] if news else actions

    async def _create(self, pod: Raw) -> Raw | None:
        """Make the copy and its files. The status that says why it can't be made; None when it is there."""
        try:
            wanted = sources_of(pod)
            if len(wanted) > SOURCES_MAX:
                message = f"it names {len(wanted)} config maps and secrets; at most {SOURCES_MAX} are copied"
                raise AgentError("CreateContainerConfigError", message)
            namespace = namespace_of(pod)
            found = await self._sources.fetch(namespace, wanted)
            lacking = [f"{kind} {name}" for (kind, name), raw in found.items() if raw is None and not wanted[kind, name]]
            if lacking:
                raise AgentError("CreateContainerConfigError", f"not found here: {', '.join(lacking)}; it waits for that")
            for key, source in found.items():
                if source is not None:
                    await self._make(remote_source(pod, self._carrier, key, source))
            await self._make(remote_pod(pod, self._carrier, await self._aliases(namespace)))
        except AgentError as e:
            return waiting(pod, e.reason, e.message, self._clock())
        except (Invalid, BadRequest) as e:
            return waiting(pod, "CreateContainerConfigError", f"the other cluster refuses it: {e.message}", self._clock())
        except (Forbidden, NotFound) as e:
            return waiting(pod, "RemoteRefused", f"the other cluster refuses it for now: {e.message}", self._clock())
        return None

    async def _aliases(self, namespace: str) -> dict[str, list[str]]:
        """Names of our services by address, as far as they have addresses now: a copy keeps the names that it was made with."""
        try:
            services = (await self._here.list(await self._here.resource("", "Service"))).items
            endpoints = (await self._here.list(await self._here.resource("", "Endpoints"))).items
        except ApiError as e:
            log.warning("services can't be read, so that pods find none by name: %s", e)
            return {}
        known = {(namespace_of(one), name_of(one)): view_of(EndpointsView, one) for one in endpoints}
        found = {
            (namespace_of(one), name_of(one)): backends(view_of(ServiceView, one), known.get((namespace_of(one), name_of(one))))
            for one in services
        }
        aliases: dict[str, list[str]] = {}
        for line in service_lines(namespace, found, _ALIASES_BYTES_MAX).splitlines():
            address, _, names = line.partition("\t")
            if not address.startswith("#"):
                aliases.setdefault(address, []).extend(names.split())
        return aliases

    async def _make(self, wanted: Raw) -> None:
        resource = await self._there.resource("", wanted["kind"])
        with contextlib.suppress(AlreadyExists):  # by an earlier try: names follow from uids
            await self._there.create(resource, wanted, self._carrier.namespace)

    async def _delete(self, copy: Raw, grace_s: int) -> None:
        resource = await self._there.resource("", "Pod")
        with contextlib.suppress(NotFound):
            only = Preconditions(uid=uid_of(copy))
            await self._there.delete(
                resource, name_of(copy), self._carrier.namespace, grace_period_s=grace_s, preconditions=only
            )

    async def _release(self, pod: Raw | None, copy: Raw | None) -> None:
        """Let go of what was made there."""
        uid = uid_of(pod) if pod is not None else origin(copy or {})[2]
        for kind in ("ConfigMap", "Secret"):
            resource = await self._there.resource("", kind)
            mine = f"{self._carrier.selector},{KusciaLabel.POD_UID}={uid}"
            for one in (await self._there.list(resource, self._carrier.namespace, label_selector=mine)).items:
                await self._remove(resource, one)
        if copy is None:
            return
        if not is_deleting(copy):
            await self._delete(copy, 0)
        left = [one for one in finalizers_of(copy) if one != FINALIZER]
        resource = await self._there.resource("", "Pod")
        with contextlib.suppress(NotFound):
            patch = {"metadata": {"uid": uid_of(copy), "finalizers": left or None}}
            await self._there.patch(resource, name_of(copy), patch, self._carrier.namespace)

    async def _remove(self, resource: Resource, one: Raw) -> None:
        with contextlib.suppress(NotFound):
            await self._there.delete(resource, name_of(one), self._carrier.namespace)


def _target(pod: Raw) -> Target:
    return Target("", "Pod", name_of(pod), str(metadata_of(pod).get("namespace", "")), uid_of(pod))


def _key_of(copy: Cached) -> ObjectKey:
    namespace, name, _uid = origin(copy.raw)
    return ObjectKey(namespace, name)


def _by_origin(copy: Cached) -> Iterable[str]:
    return (str(_key_of(copy)),)
