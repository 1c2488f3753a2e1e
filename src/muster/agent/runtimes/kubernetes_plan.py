"""What to do next for a pod of this node and its copy in another cluster. Pure: the same two objects give the same step.

Neither may ever be made a second time: a copy that was seen (`was_carried`) and is gone has been lost, and the pod has failed.
"""

from __future__ import annotations

import msgspec

from muster.agent.runtimes.kubernetes_pods import has_ended, lost, status_back, was_carried
from muster.objects.meta import is_deleting, metadata_of
from muster.objects.rules.report import obj
from muster.objects.status import Raw

GRACE_S = 30


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """In this order: make the copy; report the status; end the copy; delete the pod; let the copy and its files go."""

    create: bool = False
    status: Raw | None = None
    end_after_s: int | None = None
    """Delete the copy, with so many seconds to end by itself."""
    delete: bool = False
    release: bool = False


def decide(pod: Raw | None, copy: Raw | None, now: float, *, may_start: bool = True) -> Step:
    """`pod` None: it is gone here. `copy` None: the other cluster's pods are known, and it is not among them."""
    if pod is None:
        # Deleted by force, or with its node: nobody waits for it here.
        return Step() if copy is None else _end(copy, 1)
    status = None if copy is None else status_back(pod, copy, now)
    is_over = obj(pod, "status").get("phase") in ("Succeeded", "Failed")
    if is_deleting(pod):
        if copy is None:
            return Step(delete=True, release=True)
        step = _end(copy, _grace_s(pod))
        return msgspec.structs.replace(step, status=None if is_over else status, delete=step.release)
    if is_over:
        # Somebody here has given it up; or it ended, and its copy stays for its log.
        return Step() if copy is None or has_ended(copy) else _end(copy, None)
    if copy is not None:
        return Step(status=status, release=has_ended(copy) and is_deleting(copy))
    if was_carried(pod):
        return Step(status=lost(pod, "its copy in the other cluster is gone, and nobody saw how it ended"))
    return Step(create=may_start)


def _end(copy: Raw, grace_s: int | None) -> Step:
    if has_ended(copy):
        return Step(release=True)
    wanted = grace_s if grace_s is not None else _own_grace_s(copy)
    given = metadata_of(copy).get("deletionGracePeriodSeconds")
    if is_deleting(copy) and isinstance(given, int) and given <= wanted:
        return Step()
    return Step(end_after_s=max(1, wanted))


def _grace_s(pod: Raw) -> int:
    given = metadata_of(pod).get("deletionGracePeriodSeconds")
    return given if isinstance(given, int) else GRACE_S


def _own_grace_s(copy: Raw) -> int:
    given = obj(copy, "spec").get("terminationGracePeriodSeconds")
    return given if isinstance(given, int) else GRACE_S
