"""Facts about a made-up node."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.agent.config import AgentConfig
from muster.agent.measuring import Found, Identity
from muster.agent.node_object import Facts
from muster.agent.offering import offer

IDENTITY = Identity(machine_id="m-1", boot_id="b-1", hostname="box", os_image="Linux", kernel="6.1", arch="amd64")
FOUND = Found(cpu_milli=4000, memory_bytes=2**33, disk_bytes=2**36, uplink="eth0", link_mbps=1000, is_link_guessed=False)


def facts(config: AgentConfig | None = None, **more: Any) -> Facts:
    config = config or AgentConfig()
    made = Facts(
        name="n1",
        config=config,
        identity=IDENTITY,
        agent_id="m-1/d-1",
        offer=offer(FOUND, config),
        addresses=("10.0.0.5",),
        port=10250,
    )
    return msgspec.structs.replace(made, **more)
