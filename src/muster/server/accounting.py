"""Pods of users and queues can't vanish before the ledger has noted how long they ran: they are made with its finalizer.

Only where the ledger runs beside the server (`muster up`): it takes the finalizer away when a run is noted. On a real cluster
the ledger puts it on as soon as it sees the pod.

Concurrency: on the event loop; memory only.
"""

from __future__ import annotations

import msgspec

from muster.engine.facts import PodFacts
from muster.engine.work import work_of
from muster.objects.labels import Muster
from muster.objects.meta import finalizers_of, metadata_of
from muster.objects.status import Raw
from muster.objects.view import view_of
from muster.server.admission import Hook, is_new_pod
from muster.store.embedded.admission import AdmissionRequest


class AccountedPods(Hook):
    """See the module."""

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        raw = request.object
        if not is_new_pod(request) or raw is None or Muster.LEDGER_FINALIZER in finalizers_of(raw):
            return None
        if not is_accounted(raw):
            return None
        meta = {**metadata_of(raw), "finalizers": [*finalizers_of(raw), Muster.LEDGER_FINALIZER]}
        return {**raw, "metadata": meta}


def is_accounted(raw: Raw) -> bool:
    """Whether the pod says whose it is, or in which queue."""
    try:
        work = work_of(view_of(PodFacts, raw))
    except msgspec.ValidationError:
        return False  # the schema refuses it next
    return bool(work.user or work.queue or work.group)
