"""What administrators did to a job's place in its queue: held, released, pinned, unpinned, moved; who and when. Pure.

The acts themselves are in plain sight: annotation `muster.dev/hold`, annotation `muster.dev/pin`, the queue. The record of them
is the annotation `muster.dev/acts`, a JSON list with the latest last, which the server writes as it lets the act pass
(`server.queue_acts`), and nobody else can. At most ACTS_MAX are kept: the audit log has them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from muster.objects.labels import Muster
from muster.objects.meta import annotations_of, labels_of
from muster.objects.status import Raw

ACTS_MAX: Final = 20
TEXT_MAX: Final = 200
Verb = Literal["Held", "Released", "Pinned", "Unpinned", "Moved"]


class Act(msgspec.Struct, frozen=True, omit_defaults=True):
    act: Verb
    by: str = ""
    at: str = ""
    detail: str = ""
    """Why it is held, where it is pinned, from where to where it went."""

    def __str__(self) -> str:
        who = f" by {self.by}" if self.by else ""
        when = f" at {self.at}" if self.at else ""
        return f"{self.act}{who}{when}" + (f": {self.detail}" if self.detail else "")


class Standing(msgspec.Struct, frozen=True):
    """What acts change about a job. None where there is no such annotation."""

    hold: str | None = None
    pin: str | None = None
    queue: str = ""


def standing_of(raw: Raw) -> Standing:
    """Of a Job, which names its queue in its spec, or of another kind, which does in a label or an annotation."""
    notes = annotations_of(raw)
    spec = raw.get("spec")
    if raw.get("kind") == "Job":
        queue = spec.get("queue") if isinstance(spec, dict) else ""
    else:
        queue = labels_of(raw).get(Muster.QUEUE) or notes.get(Muster.QUEUE)
    return Standing(notes.get(Muster.HOLD), notes.get(Muster.PIN), str(queue or ""))


def acts_between(before: Standing, after: Standing) -> list[Act]:
    """What was done, without who and when."""
    found: list[Act] = []
    if before.hold != after.hold:
        found.append(Act("Released") if after.hold is None else Act("Held", detail=after.hold[:TEXT_MAX]))
    if before.pin != after.pin:
        found.append(Act("Unpinned") if after.pin is None else Act("Pinned", detail=f"place {after.pin[:TEXT_MAX]}"))
    if before.queue != after.queue:
        names = [name or "the default queue" for name in (before.queue, after.queue)]
        found.append(Act("Moved", detail=f"from {names[0]} to {names[1]}"))
    return found


def acts_of(notes: Mapping[str, Any]) -> list[Act]:
    """The record, the latest last; what can't be read counts as not there."""
    try:
        return msgspec.json.decode(str(notes.get(Muster.ACTS) or "[]"), type=list[Act])
    except msgspec.DecodeError:
        return []


def acts_text(acts: list[Act]) -> str:
    return msgspec.json.encode(acts[-ACTS_MAX:]).decode()
