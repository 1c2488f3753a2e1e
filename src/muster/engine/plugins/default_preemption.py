"""DefaultPreemption: when a pod fits nowhere, find a node where it would if pods of lower priority made way.

As in kube-scheduler: a pod with preemptionPolicy Never asks nobody to go; only nodes that pass the NODE filters are looked at,
as no eviction makes a node another one; disruption budgets are kept where that is possible at all; a pod that has a nominated
node on which somebody less important is still ending waits for that, however long the grace period is. Room that was made for
others at least as important is not given away again.

Other than there: where there are queues, a job (Job, KusciaTask) that is not marked preemptible makes way for nobody's priority
but that of the system's own classes, which users can't have; whoever writes the larger number into a job does not stop the
others'. Pods that are no job's are Kubernetes' business, and make way as they do there. Members of a unit of several pods are
evicted together (`wholeUnits`), since what is left of a gang holds resources for nothing; and for a gang room is made for all
its pods that must start together, or not at all (`gangs`).

Pure: keeps nothing but what it has read of the budgets, and which queues there are. `helper` is set by whoever runs the
profile; without one, only resources count. The choice itself is `victims.select`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec
import numpy as np

from muster.engine.blocks import PodBlock
from muster.engine.budgets import Budgets
from muster.engine.columns import Mask
from muster.engine.events import AnyEvent, QueueGone, QueueSeen
from muster.engine.making_room import make_room
from muster.engine.plugin import Nomination, Plugin, Scope, Wake
from muster.engine.pods import PodRecord
from muster.engine.state import State
from muster.engine.units import Unit
from muster.engine.victims import Ask, candidates_for, free_ahead, select
from muster.objects.reasons import Reason, Verdict

USER_PRIORITY_MAX: Final = 1_000_000_000
"""What is above belongs to the system's own PriorityClasses."""


class DefaultPreemptionArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    min_candidate_nodes_percentage: int = 10
    min_candidate_nodes_absolute: int = 100
    whole_units: bool = True
    """Evict all members of a unit of several pods, or none."""
    gangs: bool = False
    """Make room for all members of a gang at once."""

    def __post_init__(self) -> None:
        percent, absolute = self.min_candidate_nodes_percentage, self.min_candidate_nodes_absolute
        if not 0 <= percent <= 100:
            raise ValueError(f"minCandidateNodesPercentage must be from 0 to 100, not {percent}")
        if absolute < 0:
            raise ValueError(f"minCandidateNodesAbsolute must be 0 or more, not {absolute}")
        if not percent and not absolute:
            raise ValueError("minCandidateNodesPercentage and minCandidateNodesAbsolute can't both be 0; set one of them")


class DefaultPreemption(Plugin):
    name = "DefaultPreemption"
    scope = Scope.WIDE
    reason = Reason.WAITING_FOR_VICTIMS
    wakes_on: ClassVar[frozenset[Wake]] = frozenset({Wake.NODE, Wake.POD})
    Args = DefaultPreemptionArgs

    def __init__(self, args: DefaultPreemptionArgs | None = None) -> None:
        super().__init__(args)
        self._budgets = Budgets()
        self._queues: set[str] = set()

    def attach(self, state: State) -> None:
        super().attach(state)
        seen = [event for event in state.order_objects.values() if isinstance(event, QueueSeen)]
        self._queues = {event.queue.metadata.name for event in seen}

    def event(self, event: AnyEvent) -> Sequence[int] | None:
        if isinstance(event, QueueSeen):
            self._queues.add(event.queue.metadata.name)
        elif isinstance(event, QueueGone):
            self._queues.discard(event.name)
        return None

    def post_filter(self, unit: Unit, pods: PodBlock, now: float) -> Nomination | Verdict | None:
        if pods.shape.spec.preemption_policy == "Never":
            return None
        placed = self.state.placed
        if not (((placed.priority < int(pods.priority)) | placed.ending) & (placed.node >= 0)).any():
            return None
        uid = pods.pod.metadata.uid if pods.pod is not None else ""
        where = self._static_mask(pods)
        waiting = self._waiting_for(uid, pods, where)
        if waiting is not None:
            return waiting
        ask = self._ask(unit, uid, int(pods.priority), where)
        if not unit.is_single:
            return self._for_gang(unit, uid, ask) if self.args.gangs else None
        if self.helper is not None:
            helper = self.helper
            ask = msgspec.structs.replace(ask, feasible=lambda slot, gone: helper.feasible_without(pods, slot, gone))
        room = select(self.state, pods, ask)
        if room is None:
            return None
        violating = frozenset(pod.uid for pod in room.violating)
        message = "" if room.victims else _waits(room.node, len(room.ending))
        return Nomination(
            room.node, tuple(pod.uid for pod in room.victims), violating, message, covered=self._covered(room.victims)
        )

    # -- inside ---------------------------------------------------------------------------------------------------------------

    def _waiting_for(self, uid: str, pods: PodBlock, where: Mask) -> Verdict | None:
        """That room was made for the pod already, and is not free yet."""
        nominated = self.helper.nominations.get(uid) if self.helper is not None else None
        node = nominated[0] if nominated else pods.pod.status.nominated_node_name if pods.pod is not None else ""
        slot = self.state.nodes.slots.get(node)
        if slot is None or not where[slot]:
            return None
        on_node = self.state.on_node.get(node, {}).values()
        ending = sum((p.is_ending or p.is_victim) and p.priority < int(pods.priority) for p in on_node)
        if not ending:
            return None
        return Verdict(
            reason=Reason.WAITING_FOR_VICTIMS,
            subject=node,
            plugin=self.name,
            message=_waits(node, ending),
        )

    def _ask(self, unit: Unit, uid: str, priority: int, where: Mask) -> Ask:
        state, args = self.state, self.args
        placed = state.placed
        eligible: Mask = placed.priority < priority
        if self._queues and priority <= USER_PRIORITY_MAX:
            eligible &= ~placed.staying
        if not unit.is_single and any(group.bound for group in unit.groups):
            # A member never makes way for another of the same unit.
            for index in np.flatnonzero(eligible & (placed.node >= 0)).tolist():
                pod = placed.records[index]
                if pod is not None and pod.unit == unit.id:
                    eligible[index] = False
        if state.budgets or len(self._budgets):
            ending = np.flatnonzero(placed.ending & (placed.node >= 0)).tolist()
            self._budgets.update(state.budgets, [pod for i in ending if (pod := placed.records[i]) is not None])
        own = {uid, *unit.pods}
        nominations = self.helper.nominations if self.helper is not None else {}
        promised = [(n, pod) for other, (n, pod) in nominations.items() if other not in own and pod.priority >= priority]
        return Ask(
            eligible=eligible,
            cost=placed.priority,
            nodes=where,
            budgets=self._budgets if len(self._budgets) else None,
            whole_units=args.whole_units,
            candidates_max=candidates_for(
                len(state.nodes), args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
            ),
            free=free_ahead(state, promised) if promised else None,
        )

    def _for_gang(self, unit: Unit, uid: str, ask: Ask) -> Nomination | None:
        """Room for every pod that must start, as one proposal. Groups of partners are theirs to make room for."""
        groups = [group for group in unit.groups if group.controlled]
        members = [self.state.pods[pod] for group in groups for pod in group.pods[: group.missing]]
        if not members:
            return None
        helper = self.helper
        room = make_room(
            self.state,
            members,
            ask,
            where=self._static_mask,
            feasible=helper.feasible_without if helper is not None else None,
            block_of=helper.block if helper is not None else None,
        )
        if room is None:
            return None
        places = dict(room.places)
        node = places.get(uid) or room.places[0][1]
        awaited = f"{len(room.victims)} pods to end" if room.victims else "pods that are ending"
        message = f"waits for {awaited}, so that {len(places)} pods can start together"
        violating = frozenset(pod.uid for pod in room.violating)
        return Nomination(node, tuple(pod.uid for pod in room.victims), violating, message, places, self._covered(room.victims))

    def _covered(self, victims: Sequence[PodRecord]) -> frozenset[str]:
        return frozenset(pod.uid for pod in self._budgets.covered(victims))

    def _static_mask(self, pods: PodBlock) -> Mask:
        return self.helper.static_mask(pods) if self.helper is not None else np.ones(len(self.state.nodes), np.bool_)


def _waits(node: str, ending: int) -> str:
    return f"waits for {ending} pods to end on node {node}"
