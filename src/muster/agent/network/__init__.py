"""Network namespaces of pods, their addresses, and who may send how much. `open_networks` picks what this machine allows."""

from __future__ import annotations

from muster.agent.config import Network
from muster.agent.contracts import AgentError
from muster.agent.layout import Layout
from muster.agent.network.namespaces import why_impossible
from muster.agent.network.networks import PodNetworks
from muster.agent.network.nothing import NoNetworks

__all__ = ["NoNetworks", "PodNetworks", "open_networks"]


async def open_networks(
    layout: Layout,
    config: Network,
    pod_cidr: str,
    *,
    node_address: str = "",
    uplink_egress_bps: int = 0,
    uplink_ingress_bps: int = 0,
    home: str = "",
) -> PodNetworks | NoNetworks:
    """Opened and ready. `pod_cidr` counts where the configuration gives none; `node_address` is the address of pods where
    they share the host's network. AgentError only where the configuration says `enabled: always`, or has a wrong range."""
    if config.enabled == "never":
        return NoNetworks("network.enabled is `never`", node_address)
    cidr = config.pod_cidr or pod_cidr
    why = why_impossible() or ("" if cidr else "the node has no pod CIDR, neither in network.podCIDR nor in its spec.podCIDR")
    if not why:
        networks = PodNetworks(
            layout, config, cidr, uplink_egress_bps=uplink_egress_bps, uplink_ingress_bps=uplink_ingress_bps, home=home
        )
        try:
            await networks.open()
            return networks
        except AgentError as error:
            why = error.message
    if config.enabled == "always":
        raise AgentError("NetworkNotReady", f"network.enabled is `always`, and pods can't have a network of their own: {why}")
    return NoNetworks(why, node_address)
