"""Tells the store how pods are: their status, what their work reports, and that they are gone.

What is written is the difference to what the store has; a status that was sent on a version that is still the newest known is
not sent again while the watch catches up. Failures are raised (ApiError): whoever calls tries again.
"""

from __future__ import annotations

import contextlib

from muster.agent.lifecycle_facts import Situation
from muster.agent.pod_status import Place, patch_of, phase_of, read_status, status_of
from muster.agent.pods_local import LocalPod
from muster.agent.pods_machine import Machine
from muster.objects.meta import annotations_of, name_of, namespace_of, resource_version_of
from muster.objects.resources import Resource
from muster.objects.status import Conflict, NotFound
from muster.store.cache import Cached
from muster.store.contract import PatchType, Preconditions, Store

ANNOTATION_S = 1.0
"""At most so often for one pod, but for the last word."""


class Reporter:
    def __init__(self, store: Store, machine: Machine) -> None:
        self._store = store
        self._machine = machine
        self._resource: Resource | None = None

    async def report(self, local: LocalPod, at: Situation, cached: Cached | None) -> float | None:
        """Write what is new. After how many seconds there is more to write, if there is."""
        if cached is None or at.is_gone:
            return None
        await self._report_status(local, at, cached)
        return await self._report_annotations(local, at, cached)

    async def _report_status(self, local: LocalPod, at: Situation, cached: Cached) -> None:
        sandbox = local.record.sandbox
        machine = self._machine
        place = Place(
            uid=local.uid,
            name=sandbox.name,
            namespace=sandbox.namespace,
            runtime=machine.runtime.name,
            pod_ip=sandbox.ip or (machine.host_ip if local.has_sandbox else ""),
            host_ip=machine.host_ip,
        )
        old = read_status(cached.raw)
        new = status_of(at, place, old, machine.clock())
        patch = patch_of(new, old)
        version = resource_version_of(cached.raw)
        if not patch or local.sent == (version, patch):
            return
        body = {"metadata": {"uid": local.uid}, "status": patch}
        with contextlib.suppress(NotFound):
            await self._store.patch(
                await self._pods(),
                sandbox.name,
                body,
                sandbox.namespace,
                patch_type=PatchType.STRATEGIC,
                subresource="status",
            )
        local.sent = (version, patch)

    async def _report_annotations(self, local: LocalPod, at: Situation, cached: Cached) -> float | None:
        known = annotations_of(cached.raw)
        new = {key: value for key, value in local.annotations.items() if known.get(key) != value}
        if not new:
            return None
        now = self._machine.clock()
        is_over = phase_of(at) in ("Succeeded", "Failed")
        wait_s = local.reported_at + ANNOTATION_S - now
        if wait_s > 0 and not is_over:
            return wait_s
        local.reported_at = now
        body = {"metadata": {"uid": local.uid, "annotations": new}}
        with contextlib.suppress(NotFound):
            await self._store.patch(await self._pods(), local.record.sandbox.name, body, local.record.sandbox.namespace)
        return None

    async def delete(self, cached: Cached) -> None:
        """Nothing of it is left here, so nothing holds it in the store any more on our account."""
        with contextlib.suppress(NotFound, Conflict):
            await self._store.delete(
                await self._pods(),
                name_of(cached.raw),
                namespace_of(cached.raw),
                grace_period_s=0,
                preconditions=Preconditions(uid=cached.uid),
            )

    async def _pods(self) -> Resource:
        if self._resource is None:
            self._resource = await self._store.resource("", "Pod")
        return self._resource
