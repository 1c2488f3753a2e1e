"""An agent that is killed at any moment leaves nothing that the next one does not find, use or take away."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.agent.contracts import NetworkWant
from muster.agent.network import namespaces
from tests.agent.network.machine import Machine, needs_namespaces

pytestmark = needs_namespaces

ROUNDS = 60 if os.environ.get("MUSTER_SOAK") else 4

AGENT = """
import asyncio, random, sys
from pathlib import Path
from muster.agent.config import Network
from muster.agent.contracts import NetworkWant
from muster.agent.layout import Layout
from muster.agent.network import PodNetworks

async def main(top, home, seed):
    chance = random.Random(seed)
    networks = PodNetworks(
        Layout(Path(top) / "data", Path(top) / "run"), Network(), "10.250.1.0/26",
        uplink_egress_bps=10**8, uplink_ingress_bps=10**8, home=home,
    )
    await networks.open()
    print("open", flush=True)
    async def live(uid):
        for _ in range(1000):
            bps = chance.choice([None, 10**6, 10**7])
            limits = dict(egress_limit_bps=bps, ingress_limit_bps=bps)
            await networks.ensure(NetworkWant(uid=uid, **limits, egress_request_bps=bps or 0))
            print("ensured", flush=True)
            if chance.random() < 0.7:
                await networks.release(uid)
    await asyncio.gather(*(live(f"pod-{n}") for n in range(6)))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
async def test_killed_at_any_moment(machine: Machine, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    networks = machine.networks()
    top = networks.layout.data.parent
    for turn in range(ROUNDS):
        child = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(top), machine.netns, str(seed * 1000 + turn)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(chance.randint(1, 40)):
            assert child.stdout.readline(), "it ended by itself"
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()

        networks = machine.networks(cidr="10.250.1.0/26", uplink_bps=10**8)
        await networks.open()
        assert list(networks.missing()) == []
        found = await networks.list()
        assert found <= {f"pod-{n}" for n in range(6)}
        kept = await networks.ensure(NetworkWant(uid="pod-0", ingress_limit_bps=10**7))
        assert namespaces.is_namespace(Path(kept.netns))
        assert networks.traffic("pod-0") is not None
        for uid in found - {"pod-0"} if chance.random() < 0.5 else ():
            await networks.release(uid)
            assert uid not in await networks.list()
        addresses = [link.alias.split()[1] for link in machine.links() if link.name.startswith(f"m{networks.layout.id}v")]
        assert len(addresses) == len(set(addresses))
        await networks.close()
    networks = machine.networks()
    await networks.teardown()
    assert machine.left_over() == []
