"""The parts of a node, made from its configuration, opened and closed in order.

Imports are inside the functions: a node that creates its pods in another cluster needs no network and no shims, and the process
runtime no images. A part that can't be opened is named in `PartFailed`.

Concurrency: one event loop; `open` once, then `tasks` are run by the agent, then `close` (or `teardown`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.agent.config import AgentConfig
from muster.agent.contracts import AgentError, Missing, PodCarrier, Traffic
from muster.agent.fencing import count_running
from muster.agent.images_collecting import keep_collecting
from muster.agent.layout import Layout
from muster.agent.offering import Offer
from muster.objects.bandwidth import mbps_to_bps
from muster.objects.time import Clock
from muster.store.contract import Store
from muster.store.events import EventRecorder

if TYPE_CHECKING:
    from muster.agent.cgroups import PodCgroups
    from muster.agent.contracts import ContainerRuntime, Networks
    from muster.agent.metrics import MetricKeeper
    from muster.agent.pods import LocalPods

log = logging.getLogger(__name__)

JOURNAL = "kernel-changes.jsonl"


class PartFailed(Exception):
    """Which part could not be opened, and why."""


class NoCounts:
    """Pods in the host's network have no traffic of their own."""

    def traffic_of_all(self) -> Mapping[str, Traffic]:
        return {}


class Parts:
    """See the module. `carrier` is there after `open`."""

    def __init__(
        self, config: AgentConfig, layout: Layout, store: Store, node: str, *, clock: Clock, recorder: EventRecorder
    ) -> None:
        self._config = config
        self._layout = layout
        self._store = store
        self._node = node
        self._clock = clock
        self._recorder = recorder
        self.carrier: PodCarrier | None = None
        self.cgroups: PodCgroups | None = None
        self.networks: Networks | None = None
        self.runtime: ContainerRuntime | None = None
        self.metrics: MetricKeeper | None = None
        self._pods: LocalPods | None = None
        self._missing: list[Missing] = []
        self._tasks: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        self._closers: list[tuple[str, Callable[[], Awaitable[None]]]] = []

    async def open(self, *, pod_cidr: str, offer: Offer, address: str, uplink: str, may_start: Callable[[], bool]) -> None:
        """PartFailed, with everything closed again."""
        try:
            if self._config.runtime == "kubernetes":
                await self._open_elsewhere(may_start)
            else:
                await self._open_local(pod_cidr, offer, address, uplink, may_start)
        except BaseException:
            await self.close()
            raise

    async def _open_local(self, pod_cidr: str, offer: Offer, address: str, uplink: str, may_start: Callable[[], bool]) -> None:
        from muster.agent.cgroups import node_limits, open_cgroups
        from muster.agent.shim.client import Shims

        cgroups = self.cgroups = open_cgroups(self._layout.id, journal=self._layout.data / JOURNAL)
        try:
            cgroups.limit_node(node_limits(offer.allocatable))
        except AgentError as error:  # What runs already may use more than a smaller node offers.
            log.warning("all pods together are not limited to what the node offers: %s", error.message)
        networks = self.networks = await self._network(pod_cidr, offer)
        shims = Shims(self._layout, self._clock)
        runtime = self.runtime = self._make_runtime(shims)
        await self._opened("shims", shims.open, shims.close)
        await self._opened(f"runtime {runtime.name}", runtime.open, runtime.close)

        from muster.agent.pods import LocalPods

        pods = LocalPods(
            self._store,
            self._layout,
            self._config,
            node=self._node,
            runtime=runtime,
            cgroups=cgroups,
            networks=networks,
            clock=self._clock,
            host_ip=address,
            devices=offer.units,
            allocatable=offer.allocatable,
            recorder=self._recorder,
            dial=shims.sessions.dial,
        )
        pods.may_start = may_start
        self.carrier = self._pods = pods
        self._tasks.append(("pods", pods.run))
        if (collect := getattr(runtime, "collect_images", None)) is not None:
            self._tasks.append(("images", functools.partial(keep_collecting, collect)))
        self._find_peers(pods, networks)
        self._measure(pods, cgroups, networks, uplink)

    def _find_peers(self, pods: LocalPods, networks: Networks | None) -> None:
        """Names of services inside pods, and routes to the pods of other nodes."""
        from muster.agent.names import NameKeeper
        from muster.agent.peers import PeerKeeper

        names = NameKeeper(
            self._store,
            self._layout,
            lambda: [(uid, local.record.sandbox.namespace) for uid, local in list(pods.sandboxes.items())],
        )
        pods.fill_names = names.fill
        self._tasks.append(("names", names.run))
        if networks is not None:
            self._tasks.append(("peers", PeerKeeper(self._store, networks, self._node).run))

    def _measure(self, pods: LocalPods, cgroups: PodCgroups, networks: Networks | None, uplink: str) -> None:
        from muster.agent.host_usage import Host
        from muster.agent.metrics import MetricKeeper

        keeper = self.metrics = MetricKeeper(
            self._store,
            self._node,
            cgroups,
            networks if networks is not None else NoCounts(),
            lambda: [local.record.pod for local in pods.sandboxes.values()],
            clock=self._clock,
            config=self._config,
            host=Host(uplink),
        )
        self._tasks.append(("metrics", keeper.run))

    async def _open_elsewhere(self, may_start: Callable[[], bool]) -> None:
        from muster.agent.runtimes.kubernetes import KubernetesPods

        pods = KubernetesPods(
            self._store,
            self._config.kubernetes,
            node=self._node,
            identity=str(self._layout.data.absolute()),
            clock=self._clock,
            recorder=self._recorder,
            may_start=may_start,
        )
        await self._opened("runtime kubernetes", pods.open, pods.close)
        self.carrier = pods
        self._tasks.append(("pods", pods.run))

    async def _network(self, pod_cidr: str, offer: Offer) -> Networks | None:
        """The pods' own network; None, which is the host's, where the file wants that, or allows it and nothing else works."""
        enabled = self._config.network.enabled
        if enabled == "never":
            self._without_network("network.enabled is never")
            return None
        why = "" if pod_cidr else "no addresses for pods: neither network.podCIDR nor the node's spec.podCIDR is set"
        if not why:
            from muster.agent.network.networks import PodNetworks

            usable_bps = mbps_to_bps(offer.bandwidth_mbps)
            try:
                networks = PodNetworks(
                    self._layout, self._config.network, pod_cidr, uplink_egress_bps=usable_bps, uplink_ingress_bps=usable_bps
                )
                await self._opened("network", networks.open, networks.close)
                return networks
            except (PartFailed, AgentError) as error:
                why = str(error)
        if enabled == "always":
            raise PartFailed(f"network.enabled is always, and there can't be one: {why}")
        self._without_network(why)
        return None

    def _without_network(self, why: str) -> None:
        so = "tasks share the host's network: no address of their own, no bandwidth limits, no traffic counted"
        self._missing.append(Missing("network namespaces", why, so))

    def _make_runtime(self, shims: Any) -> ContainerRuntime:
        assert self.cgroups is not None
        if self._config.runtime == "runc":
            from muster.agent.runtimes.runc import RuncRuntime

            return RuncRuntime(self._layout, shims, self.cgroups, self._config)
        from muster.agent.runtimes.process import ProcessRuntime

        return ProcessRuntime(self._layout, shims, self.cgroups, self._config)

    async def _opened(self, name: str, open_: Callable[[], Awaitable[None]], close: Callable[[], Awaitable[None]]) -> None:
        try:
            await open_()
        except (AgentError, OSError) as error:
            with contextlib.suppress(AgentError, OSError):
                await close()
            raise PartFailed(f"{name}: {error}") from error
        self._closers.append((name, close))

    # -- while it runs ---------------------------------------------------------------------------------------------------------

    def tasks(self) -> Sequence[tuple[str, Callable[[], Awaitable[None]]]]:
        """What runs until it is cancelled, by the name that a failure is reported under."""
        return self._tasks

    def missing(self) -> list[Missing]:
        parts = (self.runtime, self.cgroups, self.networks, self.carrier, self.metrics)
        found = [one for part in parts if part is not None and hasattr(part, "missing") for one in part.missing()]
        return list(dict.fromkeys([*found, *self._missing]))

    def resize(self, offer: Offer) -> None:
        """The node offers something else now; what runs goes on with what it has."""
        from muster.agent.cgroups import node_limits

        if self.cgroups is not None:
            try:
                self.cgroups.limit_node(node_limits(offer.allocatable))
            except AgentError as error:
                log.warning("the limits of all pods together could not be changed: %s", error.message)
        if self._pods is not None:
            self._pods.devices = offer.units

    def kill_all(self) -> set[str]:
        """Kill every process of every pod that has a cgroup here; the uids of those that had some."""
        killed = set()
        for uid in self.cgroups.list() if self.cgroups is not None else ():
            try:
                if self.cgroups is not None and self.cgroups.kill(uid):
                    killed.add(uid)
            except AgentError as error:
                log.warning("pod %s could not be killed by its cgroup: %s", uid, error.message)
        return killed

    async def close(self) -> None:
        """Backwards. What runs in pods goes on; when nothing does, nothing is left in the kernel either."""
        if self.carrier is not None and await self._is_idle():
            try:
                await self.teardown()
            except Exception:
                log.exception("what is left of an idle node could not be taken away")
        closers, self._closers = self._closers, []
        for name, close in reversed(closers):
            try:
                await close()
            except Exception:
                log.exception("%s could not be closed in order", name)

    async def _is_idle(self) -> bool:
        try:
            held = set() if self.networks is None else await self.networks.list()
            return not held and not (self.cgroups is not None and self.cgroups.list()) and not count_running(self._layout.pods)
        except (AgentError, OSError):
            return False

    async def teardown(self) -> None:
        """Nothing of this agent's is left in the kernel."""
        if self.networks is not None:
            await self.networks.teardown()
        if self.cgroups is not None:
            self.cgroups.teardown()
