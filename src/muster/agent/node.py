"""Keeps the Node of this agent: registration, heartbeat, status, pressure, fencing, stopping and leaving.

Concurrency: `register` first, then `run` as one task with a child that watches the fencing deadline; everything on the agent's
event loop. `facts` is asked for whenever something is reported, so whoever changes something calls `poke`.

Invariants:
- a name that another agent keeps is never taken from it while it may still run something: not while its lease is fresh, and not
  while unfinished pods are bound to it;
- work is never fenced later than `fenceSeconds` after the last request that the control plane has answered was sent;
- nothing that the control plane answers ends `run`; only cancellation does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from muster.agent.contact import Contact
from muster.agent.node_object import AGENT_ID, Facts, differs, metadata_patch, new_node, status, stopped
from muster.objects.labels import Muster
from muster.objects.meta import annotations_of, labels_of, name_of, namespace_of
from muster.objects.names import NAMESPACE_NODE_LEASE
from muster.objects.resources import Resource
from muster.objects.status import (
    AlreadyExists,
    ApiError,
    Conflict,
    NotFound,
    Raw,
    ServiceUnavailable,
    Timeout,
    TooManyRequests,
    Unauthorized,
)
from muster.objects.time import Clock, format_micro_time, time_or
from muster.objects.words import counted
from muster.store.backoff import Backoff, is_cancelled, spread
from muster.store.contract import Store
from muster.store.events import WARNING, EventRecorder

log = logging.getLogger(__name__)

FORGOTTEN = "NodeForgotten"
TAKEN_RETRY_S = 5.0
LEAVE_POLL_S = 1.0
NAMED_MAX = 5
STOP_TIMEOUT_S = 5.0
FENCE_RETRY_S = 1.0
_BACKOFF = Backoff(base_s=0.25, max_s=10.0)


class NameTaken(Exception):
    """Another agent keeps the node of this name. The message says which, and what to do."""


class Forgotten(Exception):
    """The control plane does not know this node's certificate any more: somebody deleted the node."""


class NodeKeeper:
    """See the module. `waits_for` says why the node is not registered, or not reported; empty when all is well."""

    def __init__(
        self,
        store: Store,
        name: str,
        facts: Callable[[], Facts],
        *,
        clock: Clock,
        contact: Contact,
        fence: Callable[[], Awaitable[int]],
        pods_len: Callable[[], int] = lambda: 0,
        recorder: EventRecorder | None = None,
        say: Callable[[str], None] = log.warning,
    ) -> None:
        self._store = store
        self.name = name
        self._facts = facts
        self._clock = clock
        self.contact = contact
        self._fence = fence
        self._pods_len = pods_len
        self._recorder = recorder
        self._say = say
        self._wake = asyncio.Event()
        self._live: Raw = {}
        self._reported_s = float("-inf")
        self.waits_for = ""
        self.is_fenced = False
        self.is_registered = False
        self.has_lost_name = False
        self.forgotten = asyncio.Event()
        """Set when the control plane has said that this node is no longer one of its own."""

    @property
    def node(self) -> Raw:
        """As last seen; empty before registration."""
        return self._live

    @property
    def may_start(self) -> bool:
        """Whether new work may begin here: not while fenced, and not under a name that is another agent's now."""
        fence_s = self.contact.fence_s
        # The deadline itself and not only the flag: a process that was stopped for a while must not start anything first.
        is_late = fence_s > 0 and self.contact.silent_s >= fence_s
        return not self.is_fenced and not is_late and not self.has_lost_name

    def poke(self) -> None:
        """Something has changed: report soon."""
        self._wake.set()

    # -- registration ----------------------------------------------------------------------------------------------------------

    async def register(self) -> None:
        """Until the Node says what this agent is. Tries for ever, and says why it waits. Raises Forgotten."""
        failures = 0
        while True:
            try:
                await self._register()
            except NameTaken as error:
                self._wait_for(str(error))
                await asyncio.sleep(TAKEN_RETRY_S)
            except Conflict:
                await asyncio.sleep(_BACKOFF.delay_s(0, self.name))
            except ApiError as error:
                self._raise_forgotten(error)
                self._wait_for(f"node {self.name} can't be registered: {error}")
                await asyncio.sleep(_BACKOFF.delay_s(failures, self.name))
                failures += 1
            else:
                if self.waits_for:
                    self._say(f"node {self.name} is registered")
                self.waits_for = ""
                return

    def _wait_for(self, why: str) -> None:
        if why != self.waits_for:
            self._say(why)
        self.waits_for = why

    def _raise_forgotten(self, error: ApiError) -> None:
        """A certificate that was good and is refused now: joining again is all that helps, and somebody has to allow that."""
        if isinstance(error, Unauthorized) and any(cause.reason == FORGOTTEN for cause in error.causes):
            self.forgotten.set()
            raise Forgotten(
                f"node {self.name} was removed from the control plane, which revoked its certificate; "
                "join again with a new token (muster domain token create), or remove the data directory"
            ) from error

    async def _register(self) -> None:
        facts = self._facts()
        nodes = await self._store.resource("", "Node")
        try:
            live = await self._store.get(nodes, facts.name)
        except NotFound:
            with contextlib.suppress(AlreadyExists):
                await self._store.create(nodes, new_node(facts))
            live = await self._store.get(nodes, facts.name)
        await self._check_owner(live, facts)
        old_boot = ((live.get("status") or {}).get("nodeInfo") or {}).get("bootID")
        if (patch := metadata_patch(live, facts)) is not None:
            live = await self._store.patch(nodes, facts.name, patch)
        # The lease first: a node that says it is ready and has no lease looks silent.
        await self._renew()
        self._live = live
        await self._report(nodes, facts)
        self.is_registered, self.has_lost_name = True, False
        if old_boot and facts.identity.boot_id and old_boot != facts.identity.boot_id and self._recorder is not None:
            message = f"the machine was started again: boot id {facts.identity.boot_id}, before that {old_boot}"
            self._recorder.event(self._live, WARNING, "Rebooted", message)

    async def _check_owner(self, live: Raw, facts: Facts) -> None:
        """NameTaken unless the node is ours, was never kept by anybody, or its keeper is gone and has left nothing."""
        owner = annotations_of(live).get(AGENT_ID, "")
        info = (live.get("status") or {}).get("nodeInfo") or {}
        if owner == facts.agent_id or (not owner and not info):
            return
        machine = str(info.get("machineID", ""))
        who = (
            "another data directory of this machine"
            if machine == facts.identity.machine_id
            else f"machine {machine or 'unknown'}"
        )
        hint = f"choose another name with --name, or, if that one is gone for good: kubectl delete node {facts.name}"
        if Muster.AGENT not in labels_of(live):
            raise NameTaken(f"node {facts.name} exists and is not kept by an agent of Muster's; {hint}")
        if await self._is_lease_fresh(facts):
            raise NameTaken(f"node {facts.name} is kept by {who}, which is alive; {hint}")
        if pods := await self._unfinished_pods():
            raise NameTaken(f"node {facts.name} is kept by {who}, and {len(pods)} unfinished pods are bound to it; {hint}")

    async def _is_lease_fresh(self, facts: Facts) -> bool:
        leases = await self._store.resource("coordination.k8s.io", "Lease")
        try:
            spec = (await self._store.get(leases, facts.name, NAMESPACE_NODE_LEASE)).get("spec") or {}
        except NotFound:
            return False
        lease_s = spec.get("leaseDurationSeconds")
        renewed = time_or(spec.get("renewTime"), 0.0)
        return self._clock() - renewed < (lease_s if isinstance(lease_s, int) else facts.config.timing.lease_seconds)

    async def _unfinished_pods(self) -> list[Raw]:
        pods = await self._store.resource("", "Pod")
        page = await self._store.list(pods, field_selector=f"spec.nodeName={self.name}")
        return [pod for pod in page.items if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]

    async def wait_pod_cidr(self, timeout_s: float) -> str:
        """What the control plane has given this node for its pods; empty when it has given nothing in time."""
        nodes = await self._store.resource("", "Node")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for attempt in range(1_000_000):
                    if cidr := (self._live.get("spec") or {}).get("podCIDR"):
                        return str(cidr)
                    await asyncio.sleep(_BACKOFF.delay_s(attempt, self.name) / 4)
                    with contextlib.suppress(ApiError):
                        self._live = await self._store.get(nodes, self.name)
        return ""

    # -- while it runs ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        guard = asyncio.create_task(self._guard(), name=f"fence of node {self.name}")
        beat_s = self._facts().config.timing.heartbeat_seconds
        await self._pause(beat_s * spread(self.name))
        try:
            while True:
                await self._beat()
                await self._pause(self._facts().config.timing.heartbeat_seconds)
        finally:
            guard.cancel()
            await asyncio.gather(guard, return_exceptions=True)

    async def _pause(self, delay_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        self._wake.clear()

    async def _beat(self) -> None:
        facts = self._facts()
        try:
            async with asyncio.timeout(max(2.0, facts.config.timing.lease_seconds / 2)):
                await self._renew()
                nodes = await self._store.resource("", "Node")
                self._live = await self._store.get(nodes, facts.name)
                await self._keep(nodes, facts)
            self._wait_for_nothing()
        except NotFound:
            log.warning("node %s was deleted; registering it again", facts.name)
            await self._register_again()
        except Conflict:
            pass  # the next beat is the retry
        except (ApiError, TimeoutError, Forgotten) as error:
            if isinstance(error, ApiError):
                with contextlib.suppress(Forgotten):
                    self._raise_forgotten(error)
            self._wait_for(f"the control plane does not answer for node {facts.name}: {error or 'no answer in time'}")
        except Exception:
            if is_cancelled():
                raise
            log.exception("node %s: a heartbeat failed", facts.name)

    def _wait_for_nothing(self) -> None:
        if self.waits_for and not self.has_lost_name:
            self._say(f"the control plane answers again for node {self.name}")
            self.waits_for = ""

    async def _keep(self, nodes: Resource, facts: Facts) -> None:
        owner = annotations_of(self._live).get(AGENT_ID, "")
        if owner and owner != facts.agent_id:
            self.has_lost_name = True
            self._wait_for(
                f"node {facts.name} is kept by another agent now ({owner}); nothing new is started here. "
                "Stop one of the two, or give it another name with --name"
            )
            return
        self.has_lost_name = False
        if (patch := metadata_patch(self._live, facts)) is not None:
            self._live = await self._store.patch(nodes, facts.name, patch)
        since_s = self.contact.now_s() - self._reported_s
        wanted = status(self._live, facts, self._clock())
        if since_s >= facts.config.timing.status_seconds or differs(self._live.get("status"), wanted):
            await self._report(nodes, facts)

    async def _register_again(self) -> None:
        try:
            await self._register()
        except NameTaken as error:
            self.has_lost_name = True
            self._wait_for(str(error))
        except ApiError as error:
            with contextlib.suppress(Forgotten):
                self._raise_forgotten(error)
            self._wait_for(f"node {self.name} can't be registered again: {error}")

    async def _report(self, nodes: Resource, facts: Facts) -> None:
        wanted = status(self._live, facts, self._clock())
        self._live = await self._store.patch(nodes, facts.name, {"status": wanted}, subresource="status")
        self._reported_s = self.contact.now_s()

    async def _renew(self) -> None:
        facts = self._facts()
        leases = await self._store.resource("coordination.k8s.io", "Lease")
        sent_s = self.contact.now_s()
        spec = {
            "holderIdentity": facts.name,
            "leaseDurationSeconds": facts.config.timing.lease_seconds,
            "renewTime": format_micro_time(self._clock()),
        }
        try:
            await self._store.patch(leases, facts.name, {"spec": spec}, NAMESPACE_NODE_LEASE)
        except NotFound:
            metadata = {"name": facts.name, "namespace": NAMESPACE_NODE_LEASE}
            lease = {"apiVersion": leases.api_version, "kind": "Lease", "metadata": metadata, "spec": spec}
            await self._store.create(leases, lease, NAMESPACE_NODE_LEASE)
        self.contact.note(sent_s)
        if self.is_fenced:
            self.is_fenced = False
            self._say(f"node {facts.name} has the control plane again; new work may start")

    # -- fencing ---------------------------------------------------------------------------------------------------------------

    async def _guard(self) -> None:
        """Kills the work of this node when the control plane has been away for too long; it may then be started elsewhere."""
        while True:
            fence_s = self._facts().config.timing.fence_seconds
            left_s = fence_s - self.contact.silent_s
            if not fence_s or (self.is_fenced and left_s <= 0):
                await asyncio.sleep(FENCE_RETRY_S)
                continue
            if left_s > 0:
                await asyncio.sleep(min(left_s, FENCE_RETRY_S))
                continue
            self.is_fenced = True
            try:
                killed = await self._fence()
            except Exception:
                if is_cancelled():
                    raise
                log.exception("node %s: fencing failed and is tried again", self.name)
                self.is_fenced = False
                await asyncio.sleep(FENCE_RETRY_S)
                continue
            self._say(
                f"the control plane has not answered for {fence_s} s (timing.fenceSeconds): "
                f"{killed} pods on this node were killed, so that they may be started elsewhere"
            )

    # -- the end ---------------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Say that the agent stops; what runs goes on. Gives up after some seconds: the lease then tells."""
        if not self.is_registered or self.has_lost_name:
            return
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                nodes = await self._store.resource("", "Node")
                conditions = stopped((self._live.get("status") or {}).get("conditions"), self._pods_len(), self._clock())
                await self._store.patch(nodes, self.name, {"status": {"conditions": conditions}}, subresource="status")

    async def leave(self, *, drain: Callable[[], bool], say: Callable[[str], None]) -> None:
        """Take no more work, wait until what is here has ended (`drain`: end it), then delete the Node. Raises ApiError.

        `drain` is asked again and again, since somebody who waits may lose patience. While the control plane is away, it waits.
        """
        nodes = await self._store.resource("", "Node")
        self._live = await self._store.patch(nodes, self.name, {"spec": {"unschedulable": True}})
        told = ""
        while True:
            try:
                left = await self._unfinished_pods()
                if drain():
                    await self._end(left)
                if not left:
                    break
                news = f"node {self.name} takes no more work; it waits for the end of {_named(left)}"
            except (ServiceUnavailable, Timeout, TooManyRequests) as error:
                news = f"node {self.name} leaves when the control plane answers again: {error.message}"
            if news != told:
                say(news)
                told = news
            await asyncio.sleep(LEAVE_POLL_S)
        leases = await self._store.resource("coordination.k8s.io", "Lease")
        with contextlib.suppress(ApiError):
            await self._store.delete(leases, self.name, NAMESPACE_NODE_LEASE)
        with contextlib.suppress(NotFound):
            await self._store.delete(nodes, self.name)
        self.is_registered = False

    async def _end(self, left: Iterable[Raw]) -> None:
        pods = await self._store.resource("", "Pod")
        for pod in left:
            if not (pod.get("metadata") or {}).get("deletionTimestamp"):
                with contextlib.suppress(NotFound):
                    await self._store.delete(pods, name_of(pod), namespace_of(pod))


def _named(pods: Sequence[Raw]) -> str:
    """How many, and which ones as far as a line holds them."""
    names = sorted(f"{namespace_of(pod)}/{name_of(pod)}" for pod in pods)
    more = ", ..." if len(names) > NAMED_MAX else ""
    return f"{counted(len(names), 'pod')}: {', '.join(names[:NAMED_MAX])}{more}"
