"""What a delete does to an object: it goes at once, it stays with a deletionTimestamp, or nothing changes. Pure.

Three things keep an object that is being deleted: finalizers, a grace period that has not run out (pods on a node: only the
node's agent, which deletes with grace 0, knows that their processes are gone), and for a namespace its own content.
"""

from __future__ import annotations

from typing import NamedTuple

from muster.objects.resources import Resource
from muster.objects.status import Raw
from muster.objects.time import format_time, parse_time
from muster.store.contract import Propagation

FINALIZER_ORPHAN = "orphan"
FINALIZER_FOREGROUND = "foregroundDeletion"
_POD_GRACE_DEFAULT_S = 30
_POD_GRACE_MAX_S = 10 * 365 * 24 * 3600
"""A pod may ask for 2**63 seconds; its end must still be a time that can be written, and brought nearer."""


class Deletion(NamedTuple):
    """`raw` is the object afterwards, or as it last was when `is_gone`; `is_changed` False means there is nothing to store."""

    raw: Raw
    is_gone: bool
    is_changed: bool


def plan_delete(
    resource: Resource, current: Raw, *, now: float, grace_period_s: int | None, propagation: Propagation | None
) -> Deletion:
    """`current` belongs to the caller and may be changed. `propagation` None leaves what the finalizers say.

    A negative grace period means a second, as Kubernetes takes it since 1.22: as short as may be without force.
    """
    meta = current["metadata"]
    if grace_period_s is not None and grace_period_s < 0:
        grace_period_s = 1
    finalizers = _with_propagation(meta.get("finalizers") or [], propagation)
    is_changed = finalizers != (meta.get("finalizers") or [])
    _set_finalizers(meta, finalizers)
    if meta.get("deletionTimestamp"):
        is_changed |= _shorten_grace(resource, current, grace_period_s)
    else:
        grace_s = _grace_s(resource, current, grace_period_s)
        if grace_s == 0 and not finalizers and not _is_held_by_content(resource, current):
            return Deletion(current, is_gone=True, is_changed=True)
        _begin(resource, current, now, grace_s)
        is_changed = True
    if may_go(resource, current):
        return Deletion(current, is_gone=True, is_changed=True)
    return Deletion(current, is_gone=False, is_changed=is_changed)


def may_go(resource: Resource, raw: Raw) -> bool:
    """Whether an object under deletion has nothing left that keeps it: what an update that removed a finalizer asks."""
    meta = raw["metadata"]
    return (
        bool(meta.get("deletionTimestamp"))
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
        and not _is_held_by_content(resource, raw)
    )


def is_graceful(resource: Resource) -> bool:
    return resource.kind == "Pod" and resource.group == ""


def is_namespace(resource: Resource) -> bool:
    return resource.kind == "Namespace" and resource.group == ""


def _is_held_by_content(resource: Resource, raw: Raw) -> bool:
    if not is_namespace(resource):
        return False
    spec = raw.get("spec")
    return bool(isinstance(spec, dict) and spec.get("finalizers"))


def _begin(resource: Resource, raw: Raw, now: float, grace_s: int) -> None:
    meta = raw["metadata"]
    meta["deletionTimestamp"] = format_time(now + grace_s)
    meta["deletionGracePeriodSeconds"] = grace_s
    if meta.get("generation"):
        meta["generation"] += 1
    if is_namespace(resource):
        raw["status"] = {**(raw.get("status") or {}), "phase": "Terminating"}


def _grace_s(resource: Resource, raw: Raw, asked_s: int | None) -> int:
    if not is_graceful(resource):
        return 0
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    own = spec.get("terminationGracePeriodSeconds")
    if asked_s is None:
        asked_s = max(own, 1 if own < 0 else 0) if isinstance(own, int) else _POD_GRACE_DEFAULT_S
    return min(asked_s, _POD_GRACE_MAX_S)


def _shorten_grace(resource: Resource, raw: Raw, asked_s: int | None) -> bool:
    """A second delete can only bring the end nearer."""
    meta = raw["metadata"]
    running_s = meta.get("deletionGracePeriodSeconds") or 0
    if not is_graceful(resource) or asked_s is None or asked_s >= running_s:
        return False
    started = parse_time(meta["deletionTimestamp"]) - running_s
    meta["deletionTimestamp"] = format_time(started + asked_s)
    meta["deletionGracePeriodSeconds"] = asked_s
    return True


def _with_propagation(finalizers: list[str], propagation: Propagation | None) -> list[str]:
    if propagation is None:
        return finalizers
    kept = [f for f in finalizers if f not in (FINALIZER_ORPHAN, FINALIZER_FOREGROUND)]
    if propagation == "Orphan":
        return [*kept, FINALIZER_ORPHAN]
    if propagation == "Foreground":
        return [*kept, FINALIZER_FOREGROUND]
    return kept


def _set_finalizers(meta: Raw, finalizers: list[str]) -> None:
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)
