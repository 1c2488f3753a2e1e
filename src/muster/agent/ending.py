"""Ends and removes everything that an agent has left behind on a machine: for `muster down --tasks`, when no agent runs.

Runs are killed through their cgroups first, so that their shims note how they ended; what is left after some seconds is killed
with its shim, and is found `Lost` by the next agent. Then cgroups, network and the run directory go. Records and logs stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil

from muster.agent.assembly import JOURNAL
from muster.agent.cgroups import open_cgroups
from muster.agent.config import Network
from muster.agent.contracts import AgentError
from muster.agent.fencing import count_running, kill_runs
from muster.agent.layout import Layout
from muster.agent.measuring import identify

SHIMS_S = 5.0
ANY_RANGE = "10.255.255.0/24"
"""Taking a network down does not depend on its addresses."""


async def end_everything(layout: Layout) -> int:
    """How many pods had something running."""
    running = count_running(layout.pods)
    cgroups = open_cgroups(layout.id, journal=layout.data / JOURNAL)
    for uid in cgroups.list():
        with contextlib.suppress(AgentError):
            cgroups.kill(uid)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SHIMS_S):
            while count_running(layout.pods):  # noqa: ASYNC110 - files of other processes, no event
                await asyncio.sleep(0.05)
    await asyncio.to_thread(kill_runs, layout.pods, identify().boot_id)
    cgroups.teardown()
    if os.geteuid() == 0:
        from muster.agent.network.networks import PodNetworks

        with contextlib.suppress(AgentError):
            await PodNetworks(layout, Network(), ANY_RANGE).teardown()
    shutil.rmtree(layout.run, ignore_errors=True)
    return running
