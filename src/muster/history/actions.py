"""Which requests to the server are acts of people that history keeps, and how: who submitted, commanded, changed what.

Taken from the entries of the audit log, or, where the API server is a cluster's, of what its webhook sees (`server.webhook`):
the same entries, with code 0 for what was let pass, as a webhook is not told how a request ends. Reads and dry runs are left
out, and so is the routine of machines: heartbeats and measurements of nodes, the status of the pods that they run, questions,
and what the controllers of a cluster do. Bodies and tokens are in no entry, so they are not here either; what a write changed
about work, users, queues and policies is, as a note. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.history.records import Action
from muster.objects.time import parse_time

_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_ROUTINE = frozenset(
    {
        "events",
        "leases",
        "nodemetrics",
        "scheduleexplanations",
        "tokenreviews",
        "subjectaccessreviews",
        "selfsubjectaccessreviews",
    }
)
_MACHINES = (
    "system:node:",
    "system:serviceaccount:kube-system:",
    "system:kube-controller-manager",
    "system:kube-scheduler",
    "system:apiserver",
)
_ACCOUNT = "system:serviceaccount:"
_TEXT_MAX = 512
DID = "did"
"""The note of an entry that says what was changed: see `objects.changes`."""


def action_of(entry: Mapping[str, Any]) -> Action | None:
    """The action of an audit entry; None when it is none that history keeps."""
    about = entry.get("object")
    if not isinstance(about, Mapping) or entry.get("verb") not in _VERBS or entry.get("stage") != "complete":
        return None
    if "dryRun=" in str(entry.get("uri", "")):
        return None
    user, resource = str(entry.get("user", "")), str(about.get("resource", ""))
    if resource in _ROUTINE or user.startswith(_MACHINES):
        return None
    if resource == "pods" and entry.get("verb") in ("patch", "update") and user.startswith(_ACCOUNT):
        return None  # agents and operators, about their own pods
    notes = entry.get("notes")
    notes = notes if isinstance(notes, Mapping) else {}
    group = str(about.get("group", ""))
    said = [f"on behalf of whom it says, by {entry['impersonator']}"] if entry.get("impersonator") else []
    said += [str(entry["reason"])] if entry.get("reason") else []
    said += [str(notes[DID])] if notes.get(DID) else []
    return Action(
        at=parse_time(str(entry["time"])),
        user=user[:_TEXT_MAX],
        verb=str(entry["verb"]),
        resource=f"{resource}.{group}" if group else resource,
        namespace=str(about.get("namespace", ""))[:_TEXT_MAX],
        name=str(about.get("name") or notes.get("name", ""))[:_TEXT_MAX],
        subresource=str(about.get("subresource", ""))[:_TEXT_MAX],
        code=int(entry.get("code") or 0),
        note="; ".join(said)[:_TEXT_MAX],
    )
