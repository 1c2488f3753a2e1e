"""`NoNetworks`: for machines where pods can't have a network of their own. They use the host's; nothing is shaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.agent.contracts import Missing, NetworkWant, PodNetwork, Traffic


class NoNetworks:
    """`why` is for the user; `address` is the node's own, which is then that of its pods."""

    def __init__(self, why: str, address: str = "") -> None:
        self._missing = Missing(
            "network namespaces",
            why,
            "tasks share the host's network: they see each other's ports, and bandwidth is neither limited nor counted",
        )
        self._address = address
        self._uids: set[str] = set()

    def missing(self) -> Sequence[Missing]:
        return [self._missing]

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def ensure(self, want: NetworkWant) -> PodNetwork:
        self._uids.add(want.uid)
        return PodNetwork(uid=want.uid, netns="", ip=self._address, gateway="")

    async def release(self, uid: str) -> Traffic | None:
        self._uids.discard(uid)
        return None

    async def list(self) -> set[str]:
        return set(self._uids)

    def traffic(self, uid: str) -> Traffic | None:
        return None

    def traffic_of_all(self) -> dict[str, Traffic]:
        return {}

    async def set_peers(self, peers: Mapping[str, str]) -> None:
        pass

    async def set_uplink(self, egress_bps: int, ingress_bps: int) -> None:
        pass

    async def teardown(self) -> None:
        self._uids.clear()
