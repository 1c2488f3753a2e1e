"""`PodNetworks`: a namespace, an address and a share of the uplink for each pod, on one bridge.

    pod's namespace                      the node's namespace
    eth0 ---- cable ---- m<id>v<nnnn> == m<id>br (gateway) -- routing, masquerade -- uplink
    TBF: what it sends   TBF: what       HTB: what enters by the uplink
                         it receives     m<id>if, HTB: what leaves by the uplink

Nothing is kept on disk. The alias of a pod's port holds its uid, address and figures, the alias of the bridge which address
was given out last; a new agent reads them. See `addresses` for what follows from an address, `rules` for the packet filter,
`shaping` for the figures, decision 0012 for why.

Concurrency: the methods run on the agent's event loop; everything that changes the kernel runs in one thread of its own, one
call after the other (`wiring`), but for the deletion of interfaces, which is mostly waiting and has a second one. Calls for one
pod never overlap: `ensure` waits for a release of the same pod. Pods that are released at about the same time are released
together, since the kernel waits once for all of them. `traffic` reads counters at once.

Invariants:
- a port without an alias, a namespace without a port, a class without a pod are leftovers of a crash: `open`, `list` and
  `release` take them away;
- what an agent made is named after its `Layout.id`; nothing else is touched, except that forwarding is switched on for the
  uplink where pods reach beyond this machine (`sysctls` puts it back).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from muster.agent.config import Network
from muster.agent.contracts import AgentError, Missing, NetworkWant, PodNetwork, Traffic
from muster.agent.layout import Layout
from muster.agent.network.addresses import PodRange
from muster.agent.network.namespaces import NamespaceThread
from muster.agent.network.netlink import ROUTE, Netlink
from muster.agent.network.wiring import Wiring

log = logging.getLogger(__name__)

T = TypeVar("T")

_RELEASE_MAX: Final = 64
"""Pods released together."""
_PEERS_MAX: Final = 10_000


class PodNetworks:
    """See the module. `home` is the path of the network namespace in which the node works; empty: this process's own.

    `uplink_egress_bps` and `uplink_ingress_bps` are what this node's pods may use of the uplink together; 0: not known, then
    requests are not enforced.
    """

    def __init__(
        self,
        layout: Layout,
        config: Network,
        pod_cidr: str,
        *,
        uplink_egress_bps: int = 0,
        uplink_ingress_bps: int = 0,
        home: str = "",
    ) -> None:
        try:
            self._range = PodRange.parse(pod_cidr)
        except ValueError as error:
            raise AgentError("NetworkNotReady", f"podCIDR: {error}") from error
        self.layout = layout
        self._config = config
        self._egress_bps = uplink_egress_bps
        self._ingress_bps = uplink_ingress_bps
        self._thread = NamespaceThread(home)
        self._reaper = NamespaceThread(home)
        self._wiring: Wiring | None = None
        self._releases: dict[str, asyncio.Future[Traffic | None]] = {}
        self._releasing: asyncio.Task[None] | None = None

    def missing(self) -> Sequence[Missing]:
        wiring = self._wiring
        return [] if wiring is None else [*wiring.missing, *wiring.uplink.missing()]

    async def open(self) -> None:
        if self._wiring is not None:
            return
        try:
            wiring = await self._connect()
            await self._call(lambda: wiring.open(self._egress_bps, self._ingress_bps))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._releasing is not None:
            await asyncio.gather(self._releasing, return_exceptions=True)
        wiring, self._wiring = self._wiring, None
        for thread in (self._reaper, self._thread):
            await asyncio.to_thread(thread.close)  # what is under way is finished first
        if wiring is not None:
            wiring.close()

    async def ensure(self, want: NetworkWant) -> PodNetwork:
        netns, wiring = _netns(self.layout, want.uid), self._opened()
        while (leaving := self._releases.get(want.uid)) is not None:
            await asyncio.wait([leaving])
        port = await self._call(lambda: wiring.ensure(want), f"the network of pod {want.uid}")
        return PodNetwork(uid=want.uid, netns=netns, ip=str(port.address), gateway=str(wiring.range.gateway))

    async def release(self, uid: str) -> Traffic | None:
        _netns(self.layout, uid)
        waiting = self._releases.get(uid)
        if waiting is None:
            waiting = self._releases[uid] = asyncio.get_running_loop().create_future()
            if self._releasing is None:
                self._releasing = asyncio.create_task(self._release_all(self._opened()), name="network releases")
        return await asyncio.shield(waiting)

    async def list(self) -> set[str]:
        return await self._call(self._opened().uids)

    def traffic(self, uid: str) -> Traffic | None:
        return self.traffic_of_all().get(uid)

    def traffic_of_all(self) -> dict[str, Traffic]:
        """The same for every pod, at the price of one."""
        return {} if self._wiring is None else self._wiring.traffic()

    async def set_peers(self, peers: Mapping[str, str]) -> None:
        wiring = self._opened()
        wanted: dict[ipaddress.IPv4Network, str] = {}
        for cidr, address in sorted(peers.items())[:_PEERS_MAX]:
            try:
                wanted[PodRange.parse(cidr).network] = str(ipaddress.IPv4Address(address))
            except ValueError as error:
                log.warning("pods of another node can't be reached: pod CIDR %.80r at %.80r: %s", cidr, address, error)
        await self._call(lambda: wiring.set_peers(wanted))

    async def set_uplink(self, egress_bps: int, ingress_bps: int) -> None:
        """Other figures for the uplink; classes are changed in place."""
        wiring = self._opened()
        if (egress_bps, ingress_bps) != (self._egress_bps, self._ingress_bps):
            self._egress_bps, self._ingress_bps = egress_bps, ingress_bps
            await self._call(lambda: wiring.set_uplink(egress_bps, ingress_bps))

    async def teardown(self) -> None:
        wiring = await self._connect()
        try:
            await self._call(wiring.teardown)
        finally:
            await self.close()

    def _opened(self) -> Wiring:
        if self._wiring is None:
            raise AgentError("NetworkNotReady", "the network of this node is not set up yet")
        return self._wiring

    async def _connect(self) -> Wiring:
        if self._wiring is None:
            try:
                for thread in (self._thread, self._reaper):
                    await asyncio.to_thread(thread.open)
            except OSError as error:
                raise AgentError("NetworkNotReady", f"the node's network namespace can't be entered: {error}") from error
            home_fd = self._thread.home_fd
            self._wiring = await self._call(lambda: Wiring(self.layout, self._config, self._range, home_fd))
        return self._wiring

    async def _call(
        self, function: Callable[[], T], what: str = "the network of this node", thread: NamespaceThread | None = None
    ) -> T:
        try:
            return await (thread or self._thread).call(function)
        except OSError as error:
            raise AgentError("NetworkNotReady", f"{what}: {error.strerror or error}") from error

    async def _release_all(self, wiring: Wiring) -> None:
        """Until nobody waits. What comes while a batch is under way goes with the next."""
        try:
            while self._releases:
                await asyncio.sleep(0)
                batch = dict(list(self._releases.items())[:_RELEASE_MAX])
                uids = list(batch)
                outcome: dict[str, Traffic] | Exception
                try:
                    outcome = await self._release_some(wiring, uids)
                except Exception as error:  # noqa: BLE001 - whoever waits is told
                    outcome = error
                for uid, waiting in batch.items():
                    del self._releases[uid]
                    if isinstance(outcome, Exception):
                        waiting.set_exception(outcome)
                    else:
                        waiting.set_result(outcome.get(uid))
        finally:
            self._releasing = None

    async def _release_some(self, wiring: Wiring, uids: Sequence[str]) -> dict[str, Traffic]:
        """The kernel takes its time to delete interfaces; meanwhile others are made."""
        what = f"the networks of {len(uids)} pods"
        await self._call(lambda: wiring.unplug(uids), what)
        counts = await self._call(lambda: self._reap(wiring, uids), what, self._reaper)
        await self._call(lambda: wiring.forget(uids))  # not before: what could not be deleted is still leaving
        return counts

    @staticmethod
    def _reap(wiring: Wiring, uids: Sequence[str]) -> dict[str, Traffic]:
        with Netlink(ROUTE) as route:
            return wiring.reap(uids, route)


def _netns(layout: Layout, uid: str) -> str:
    try:
        return str(layout.netns(uid))
    except ValueError as error:
        raise AgentError("NetworkNotReady", f"pod uid: {error}") from error
