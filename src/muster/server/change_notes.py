"""Notes for the audit log, and with it for the decision log: what a write changed about work, users, queues and policies.

An audit line says who wrote which object; that it was a hold, another limit or another formula is in the body, which the log
does not keep. Lets everything pass. Concurrency: on the event loop, in the task that serves the request.
"""

from __future__ import annotations

from typing import Final

from muster.history.actions import DID
from muster.objects.changes import told_change
from muster.server.admission import Hook
from muster.server.audit import add_note
from muster.store.embedded.admission import AdmissionRequest

_GROUPS: Final = ("muster.dev", "kuscia.secretflow")


class ChangeNotes(Hook):
    async def validate(self, request: AdmissionRequest) -> None:
        if request.operation != "UPDATE" or request.subresource or request.resource.group not in _GROUPS:
            return
        if request.object is None or request.old is None:
            return
        told = told_change(request.resource.kind, request.old, request.object)
        if told:
            add_note(DID, told)
