"""Looks at all pods now and then: what they report, how much disk they hold, whether their ConfigMaps and Secrets have changed.

Concurrency: one task; walks over directories go to a thread, one at a time, bounded in entries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from muster.agent import reports, trees, volumes
from muster.agent.contracts import AgentError
from muster.agent.environment import SourceKey
from muster.agent.pod_resources import container_limits, pod_limits
from muster.agent.pods_acting import Actor
from muster.agent.pods_local import LocalPod
from muster.agent.pods_machine import Machine
from muster.objects.meta import namespace_of
from muster.objects.quantity import Quantity
from muster.store.cache import ObjectKey

log = logging.getLogger(__name__)


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often pods are looked at. Walks over disks wait for ten times as long as the last one took, if that is more."""

    tick_s: float = 1.0
    disk_s: float = 5.0
    refresh_s: float = 60.0


class Watching:
    def __init__(self, machine: Machine, actor: Actor, wake: Callable[[ObjectKey], object], pace: Pace) -> None:
        self._pace = pace
        self._machine = machine
        self._actor = actor
        self._wake = wake

    async def run(self, pods: Mapping[str, LocalPod]) -> None:
        """Until cancelled."""
        now_s, pace = asyncio.get_running_loop().time, self._pace
        disk_at, refresh_at = now_s() + pace.tick_s, now_s() + pace.refresh_s
        traffic_at = now_s() + self._machine.config.timing.report_seconds
        while True:
            await asyncio.sleep(pace.tick_s)
            here = [local for local in pods.values() if not local.record.is_clean]
            self._read_reports(here)
            if now_s() >= disk_at:
                started_s = now_s()
                await self._check_disks(here)
                disk_at = now_s() + max(pace.disk_s, 10 * (now_s() - started_s))
            if now_s() >= refresh_at:
                await self._refresh(here)
                refresh_at = now_s() + pace.refresh_s
            if now_s() >= traffic_at:
                self._note_traffic(here)
                traffic_at = now_s() + self._machine.config.timing.report_seconds

    def _read_reports(self, pods: list[LocalPod]) -> None:
        for local in pods:
            try:
                if local.report.poll():
                    local.annotations |= local.report.report.annotations()
                    self._wake(local.key)
            except Exception:
                log.exception("pod %s: its report can't be read", local.title)

    def _note_traffic(self, pods: list[LocalPod]) -> None:
        if self._machine.networks is None:
            return
        counted = self._machine.networks.traffic_of_all()
        for local in pods:
            if (traffic := counted.get(local.uid)) is not None:
                local.annotations |= reports.traffic_annotation(traffic)
                self._wake(local.key)

    async def _refresh(self, pods: list[LocalPod]) -> None:
        for local in pods:
            if not local.has_sandbox or not any(volumes.is_from_api(volume) for volume in local.spec.volumes):
                continue
            keys: list[SourceKey] = list(volumes.references(local.spec))
            self._machine.sources.forget(namespace_of(local.record.pod), keys)
            try:
                await self._actor.write_volumes(local)
            except (AgentError, OSError) as e:
                log.info("pod %s keeps the volumes that it has: %s", local.title, e)
            except Exception:
                log.exception("pod %s keeps the volumes that it has", local.title)

    async def _check_disks(self, pods: list[LocalPod]) -> None:
        for local in pods:
            if local.disk_problem or local.record.fate is not None or not has_disk_limit(local):
                continue
            try:
                local.disk_problem = await asyncio.to_thread(disk_problem, local)
            except AgentError as e:
                log.info("pod %s: %s", local.title, e)
            except Exception:
                log.exception("pod %s: its disk can't be measured", local.title)
            if local.disk_problem:
                self._wake(local.key)


def has_disk_limit(local: LocalPod) -> bool:
    if any(volume.empty_dir is not None and volume.empty_dir.size_limit is not None for volume in local.spec.volumes):
        return True
    every = (*local.spec.init_containers, *local.spec.containers)
    return any(c.resources is not None and "ephemeral-storage" in c.resources.limits for c in every)


def disk_problem(local: LocalPod) -> str:
    """What is over its limit, as the pod's message has it; empty when nothing is. What hides from being counted is over it."""
    try:
        return _disk_problem(local)
    except trees.Uncountable as e:
        return f"the pod's disk limits can't be checked: {e}"


def _disk_problem(local: LocalPod) -> str:
    top, spec = local.layout.pod(local.uid), local.spec
    total = 0
    for volume in spec.volumes:
        if volume.empty_dir is None or volume.empty_dir.medium == "Memory":
            continue
        held = trees.held_bytes(local.layout.volume(local.uid, volume.name))
        total += held
        if (limit := volumes.size_limit(volume)) is not None and held > limit:
            return f"volume {volume.name!r} holds {held} bytes, more than its sizeLimit of {_shown(limit)}"
    for container in (*spec.init_containers, *spec.containers):
        held = trees.held_bytes(top / "containers" / container.name)
        total += held
        if (limit := container_limits(container).disk_limit_bytes) is not None and held > limit:
            what = f"container {container.name} holds {held} bytes on disk"
            return f"{what}, more than its ephemeral-storage limit of {_shown(limit)}"
    total += trees.held_bytes(top / "report")
    if (limit := pod_limits(spec).disk_limit_bytes) is not None and total > limit:
        return f"the pod holds {total} bytes on disk, more than its ephemeral-storage limit of {_shown(limit)}"
    return ""


def _shown(amount: int) -> str:
    return str(Quantity.of(amount))
