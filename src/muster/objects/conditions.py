"""Conditions: named facts about an object, each with the moment when it last changed.

Pure; `now` is handed in. Invariant: `lastTransitionTime` moves only when `status` does, so that writing the same condition
again changes nothing and a controller that repeats itself does not wake up its watchers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from muster.objects.status import Raw
from muster.objects.time import Timestamp, format_time
from muster.objects.view import View

ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(View):
    """One fact. Kinds with more fields in their conditions (lastProbeTime, lastHeartbeatTime, ...) subclass this."""

    type: str
    status: ConditionStatus = "Unknown"
    observed_generation: int | None = None
    last_transition_time: Timestamp = ""
    reason: str = ""
    message: str = ""


Conditions = Annotated[
    list[Condition],
    msgspec.Meta(
        extra_json_schema={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "x-kubernetes-patch-merge-key": "type",
            "x-kubernetes-patch-strategy": "merge",
        }
    ),
]
"""The type of a `conditions` field."""


def find_condition(conditions: Iterable[Mapping[str, Any]] | None, type_: str) -> Raw | None:
    """A copy of the raw condition of that type; None when there is none. Anything that is no list of objects is empty."""
    if not isinstance(conditions, Iterable):
        return None
    return next((dict(c) for c in conditions if isinstance(c, Mapping) and c.get("type") == type_), None)


def is_true(conditions: Iterable[Mapping[str, Any]] | None, type_: str) -> bool:
    """Whether the condition is there and its status is `True`; absent and `Unknown` are not."""
    condition = find_condition(conditions, type_)
    return condition is not None and condition.get("status") == "True"


def set_condition(
    conditions: Sequence[Raw] | None,
    *,
    type_: str,
    status: ConditionStatus,
    now: float,
    reason: str = "",
    message: str = "",
    observed_generation: int | None = None,
    fields: Mapping[str, Any] | None = None,
) -> list[Raw]:
    """`conditions` with this one set, in its old place or at the end. Fields that it had and that are not named here stay.

    `fields` are further members of the condition, for kinds that have some (`lastProbeTime`).
    """
    before = [dict(c) for c in conditions if isinstance(c, Mapping)] if isinstance(conditions, Sequence) else []
    old = next((c for c in before if c.get("type") == type_), None)
    new: Raw = dict(old or {})
    new.update(fields or {})
    new.update({"type": type_, "status": status, "reason": reason, "message": message})
    if observed_generation is not None:
        new["observedGeneration"] = observed_generation
    if old is None or old.get("status") != status or not old.get("lastTransitionTime"):
        new["lastTransitionTime"] = format_time(now)
    if old is None:
        return [*before, new]
    return [new if c is old else c for c in before]


def with_condition(conditions: Sequence[Condition], condition: Condition, now: float) -> list[Condition]:
    """The same for views: `condition.last_transition_time` is filled in here, whatever it was."""
    old = next((c for c in conditions if c.type == condition.type), None)
    if old is not None and old.status == condition.status and old.last_transition_time:
        since = old.last_transition_time
    else:
        since = format_time(now)
    new = msgspec.structs.replace(condition, last_transition_time=since)
    if old is None:
        return [*conditions, new]
    return [new if c is old else c for c in conditions]


def without_condition(conditions: Sequence[Raw] | None, type_: str) -> list[Raw]:
    """`conditions` without the one of that type."""
    if not isinstance(conditions, Sequence):
        return []
    return [dict(c) for c in conditions if isinstance(c, Mapping) and c.get("type") != type_]
