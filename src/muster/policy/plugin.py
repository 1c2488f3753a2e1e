"""The order's part in every profile: it watches pods come and go, keeps units off room that is planned for others, makes room.

Pure, single-threaded. It is asked about room only for the pods of the unit that the gate let through last, and only if that
would run on past somebody's planned start; all other pods are none of its business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from muster.engine.blocks import NodeBlock, PodBlock, fits
from muster.engine.columns import Mask
from muster.engine.plugin import Nomination, Plugin, Scope, Wake
from muster.engine.pods import PodRecord
from muster.engine.units import Unit
from muster.objects.reasons import Reason, Verdict

if TYPE_CHECKING:
    from muster.policy.order import PolicyOrder


class PolicyPlugin(Plugin):
    name = "Policy"
    scope = Scope.WIDE
    reason = Reason.BACKFILL_WOULD_DELAY
    wakes_on: ClassVar[frozenset[Wake]] = frozenset({Wake.NODE, Wake.ROOM})
    makes_room_by_shape = False

    def __init__(self, order: PolicyOrder) -> None:
        super().__init__()
        self._order = order

    def pod_added(self, pod: PodRecord, slot: int) -> None:
        self._order.book.note(pod)
        # The next pod of the unit finds less beside the plans.
        self._order.gate.take_off(pod, slot, 1)

    def pod_removed(self, pod: PodRecord, slot: int) -> None:
        self._order.book.note(pod)
        self._order.gate.take_off(pod, slot, -1)

    def concerns(self, pods: PodBlock) -> bool:
        gate = self._order.gate
        return gate.limit is not None and pods.pod is not None and pods.pod.metadata.uid in gate.limited

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        limit = self._order.gate.limit
        assert limit is not None  # `concerns` has said so
        mask: Mask = fits(pods, nodes.changed(nodes.take(limit)))
        return mask

    def post_filter(self, unit: Unit, pods: PodBlock, now: float) -> Nomination | Verdict | None:
        return self._order.make_room(unit, pods, self.helper, now)
