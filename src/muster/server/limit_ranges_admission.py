"""LimitRanges of a namespace on what is created in it, as Kubernetes' LimitRanger does: pods get what they leave open, and what
is beyond a bound is refused with every bound that it breaks. Claims are judged when they grow, too; pods only once, since what
their containers ask for never changes. The arithmetic is in `objects/limit_ranges.py`.

Concurrency: on the event loop; reads memory only. A namespace without a LimitRange costs one look into a dict.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.objects.limit_ranges import Range, claim_problems, fill, pod_problems, together
from muster.objects.meta import is_deleting, name_of, namespace_of
from muster.objects.status import Raw
from muster.server.admission import Hook, is_new_pod, refused
from muster.store.embedded.admission import AdmissionRequest


class LimitRanges:
    """The LimitRange objects, by namespace and in the order of their names; fed as they change in the store."""

    def __init__(self) -> None:
        self._ranges: dict[str, Sequence[Range]] = {}

    def apply(self, raw: Raw, *, deleted: bool = False) -> None:
        namespace, name = namespace_of(raw), name_of(raw)
        kept = [one for one in self._ranges.get(namespace, ()) if one.name != name]
        if not deleted:
            kept.append(Range.of(raw))
        if kept:
            self._ranges[namespace] = sorted(kept, key=lambda one: one.name)
        else:
            self._ranges.pop(namespace, None)

    def of(self, namespace: str) -> Sequence[Range] | None:
        return self._ranges.get(namespace)


class LimitRanger(Hook):
    """See the module."""

    def __init__(self, ranges: LimitRanges) -> None:
        self._ranges = ranges

    async def mutate(self, request: AdmissionRequest) -> Raw | None:
        ranges = self._ranges.of(request.namespace)
        if ranges is None or not is_new_pod(request) or request.object is None:
            return None
        return fill(request.object, ranges)

    async def validate(self, request: AdmissionRequest) -> None:
        ranges = self._ranges.of(request.namespace)
        if ranges is None or request.object is None or request.subresource:
            return
        problems: list[str] = []
        if is_new_pod(request):
            problems = pod_problems(request.object, ranges)
        elif (request.resource.group, request.resource.kind) == ("", "PersistentVolumeClaim") and not _is_going(request):
            problems = claim_problems(request.object, ranges)
        if problems:
            raise refused(request, together(problems))


def _is_going(request: AdmissionRequest) -> bool:
    return request.old is not None and is_deleting(request.old)
