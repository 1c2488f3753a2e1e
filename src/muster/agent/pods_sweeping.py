"""Takes away what no record stands for: directories, cgroups and networks that an earlier agent left behind when it died.

A record is written before anything else of a pod and removed after everything else, so what has none is wanted by nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Collection

from muster.agent import pod_records, volumes_disk
from muster.agent.contracts import AgentError, RunRef, Sandbox
from muster.agent.pods_machine import Machine

log = logging.getLogger(__name__)

_TRIES_MAX = 20


class Sweeper:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def sweep(self, wanted: Collection[str]) -> None:
        machine = self._machine
        for uid in set(pod_records.known_uids(machine.layout)) - set(wanted):
            await self._remove_runs(uid)
            await self.remove_directory(uid)
        for uid in machine.cgroups.list() - set(wanted):
            log.info("the cgroups of pod %s are wanted by nobody and go", uid)
            await self._remove_cgroups(uid)
        if machine.networks is not None:
            for uid in await machine.networks.list() - set(wanted):
                log.info("the network of pod %s is wanted by nobody and goes", uid)
                with contextlib.suppress(AgentError):
                    await machine.networks.release(uid)

    async def remove_directory(self, uid: str) -> None:
        with contextlib.suppress(AgentError, OSError):
            await asyncio.to_thread(volumes_disk.remove_tree, self._machine.layout.pod(uid))

    async def _remove_runs(self, uid: str) -> None:
        """Runs whose record can't be read: they are ended, whatever they are."""
        sandbox = Sandbox(uid=uid, namespace="", name="", hostname="", user=0)
        top = self._machine.layout.pod(uid) / "containers"
        names = os.listdir(top) if top.is_dir() else []
        for name in names:
            for attempt in pod_records.attempts(self._machine.layout, uid, name):
                with contextlib.suppress(AgentError, OSError):
                    await self._machine.runtime.remove(sandbox, RunRef(uid, name, attempt))

    async def _remove_cgroups(self, uid: str) -> None:
        for _ in range(_TRIES_MAX):
            try:
                self._machine.cgroups.remove(uid)
                return
            except (AgentError, OSError) as e:
                log.debug("cgroups of pod %s: %s", uid, e)
                await asyncio.sleep(0.1)
