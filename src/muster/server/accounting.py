"""Pods of users and queues can't vanish before the ledger has noted how long they ran: they are made with its finalizer.

Only where the ledger runs: it takes the finalizer away when a run is noted. A pod that came without asking here, because a
cluster's API server could not reach its webhooks, gets it from the ledger as soon as that sees the pod.

Nobody else takes it away, says that a run was noted, or how much it moved: who may change a pod of their own could otherwise
have it run for nothing. What agents measured, they say: nodes, and who may write the status of pods in the namespace.

Concurrency: on the event loop; `allows` is asked only when somebody says how much a pod moved.
"""

from __future__ import annotations

import msgspec

from muster.engine.facts import PodFacts
from muster.engine.work import work_of
from muster.objects.labels import Muster
from muster.objects.meta import annotations_of, finalizers_of, metadata_of
from muster.objects.status import Raw
from muster.objects.view import view_of
from muster.server.access_review import Allows
from muster.server.admission import Hook, is_new_pod, refused
from muster.server.authorization import MASTERS
from muster.server.node_index import NODES_GROUP
from muster.server.queue_acts import CONTROLLERS
from muster.server.rbac import Attributes
from muster.store.embedded.admission import Actor, AdmissionRequest


class AccountedPods(Hook):
    """See the module. `trusted`: logins of Muster's own controllers on a real cluster."""

    def __init__(self, *, trusted: frozenset[str] = frozenset(), allows: Allows | None = None) -> None:
        self._trusted = trusted
        self._allows = allows

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        raw = request.object
        if not is_new_pod(request) or raw is None or Muster.LEDGER_FINALIZER in finalizers_of(raw):
            return None
        if not is_accounted(raw):
            return None
        meta = {**metadata_of(raw), "finalizers": [*finalizers_of(raw), Muster.LEDGER_FINALIZER]}
        return {**raw, "metadata": meta}

    async def validate(self, request: AdmissionRequest) -> None:
        actor, raw = request.actor, request.object
        resource = request.resource
        if actor is None or raw is None or (resource.group, resource.kind) != ("", "Pod"):
            return
        if MASTERS in actor.groups or CONTROLLERS in actor.groups or actor.user in self._trusted:
            return
        old, new = annotations_of(request.old or {}), annotations_of(raw)
        for key in (Muster.ACCOUNTED, Muster.TRAFFIC):
            if old.get(key) != new.get(key) and not (key == Muster.TRAFFIC and await self._is_agent(actor, request.namespace)):
                raise refused(
                    request, f"metadata.annotations[{key}]: {actor.user!r} may not write it, the ledger goes by it; leave it"
                )
        if request.old is not None and Muster.LEDGER_FINALIZER in {*finalizers_of(request.old)} - {*finalizers_of(raw)}:
            raise refused(
                request,
                f"metadata.finalizers: {Muster.LEDGER_FINALIZER} goes when the pod's run is noted; {actor.user!r} may not take "
                "it away, leave it",
            )

    async def _is_agent(self, actor: Actor, namespace: str) -> bool:
        if NODES_GROUP in actor.groups:
            return True
        reporting = Attributes(verb="patch", resource="pods", subresource="status", namespace=namespace)
        return self._allows is not None and await self._allows(actor, reporting)


def is_accounted(raw: Raw) -> bool:
    """Whether the pod says whose it is, or in which queue."""
    try:
        work = work_of(view_of(PodFacts, raw))
    except msgspec.ValidationError:
        return False  # the schema refuses it next
    return bool(work.user or work.queue or work.group)
