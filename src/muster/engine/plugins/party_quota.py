"""PartyQuota: what a party's pods ask for in all stays within the quota of its Domain.

The party is the pod's namespace. Its quota names pods, CPU, memory, bandwidth in each direction, devices, anything that pods
ask for; what it does not name is not limited. Every pod with a node counts, whoever placed it, and so does one that this engine
has just decided about: a unit whose pods do not all fit takes nothing. A quota that is lowered ends nothing and lets nothing
in. A figure that can't be read lets nothing in that asks for it.

The filter is what keeps the promise. The prefilter only says the same earlier and about the whole unit, and only where it is
certain: it counts pods that are bound, not those that are held, because an older unit may still take what a younger one holds.

Pure; called from one thread. Invariant: `used` of a party with a quota is the sum over its pods that have a known node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Mask
from muster.engine.events import QuotaGone, QuotaSeen
from muster.engine.facts import QuotaFacts
from muster.engine.plugin import Plugin, Scope, Wake
from muster.engine.pods import Phase
from muster.engine.whole_units import is_shared
from muster.objects.amounts import AMOUNT_MAX, read_limits, unit_of
from muster.objects.reasons import Holder, Reason, Shortfall, Verdict, format_amount, shortfall

if TYPE_CHECKING:
    from muster.engine.events import AnyEvent
    from muster.engine.pods import PodRecord
    from muster.engine.state import State
    from muster.engine.units import Group, Unit

HOLDERS_MAX: Final = 5
PODS: Final = "pods"

Amounts = dict[str, int]
"""By resource, in the units of the engine's rows."""


class Caps(msgspec.Struct, frozen=True):
    """How much a party may ask for in all, and what could not be read."""

    amounts: Mapping[str, int]
    problems: tuple[str, ...] = ()


def caps_of(quota: QuotaFacts) -> Caps | None:
    """The ceilings of a Domain; None when it has none. Of two for the same resource the lower holds."""
    limits = quota.spec.resource_quota
    if limits is None:
        return None
    caps: Amounts = {}
    if limits.pod_max_count is not None:
        caps[PODS] = max(limits.pod_max_count, 0)
    read, problems = read_limits(limits.hard, "spec.resourceQuota.hard")
    for name, amount in read.items():
        caps[name] = min(caps.get(name, AMOUNT_MAX), amount)
    return Caps(caps, tuple(problems)) if caps or problems else None


class PartyQuota(Plugin):
    name = "PartyQuota"
    scope = Scope.WIDE
    reason = Reason.QUOTA_EXCEEDED
    wakes_on = frozenset({Wake.QUOTA})

    def attach(self, state: State) -> None:
        super().attach(state)
        self._caps: dict[str, Caps] = {}
        self._pods: dict[str, dict[str, PodRecord]] = {}
        """Pods that count, by party and uid; only of parties that have a quota."""
        self._charged: dict[str, tuple[str, Mapping[str, int]]] = {}
        """By uid: the party and what is counted for the pod there."""
        self._used: dict[str, Amounts] = {}
        self._largest: dict[tuple[str, str], tuple[Holder, ...]] = {}
        self._unsettled: dict[str, dict[str, PodRecord]] = {}
        """By party: pods that were assumed when they were counted, and may be bound by now."""
        for quota in state.quotas.values():
            self._take_in(quota, recount=False)

    # -- counting ------------------------------------------------------------------------------------------------------------

    def pod_added(self, pod: PodRecord, slot: int) -> None:
        party = pod.namespace
        if party not in self._caps:
            return
        self._discharge(pod.uid)
        # What the pod asks for, not what a plugin set aside instead: users see the former, and the quota is about it.
        amounts = pod.shape.requests.amounts
        used = self._used.setdefault(party, {})
        for name, amount in amounts.items():
            used[name] = used.get(name, 0) + amount
        self._pods.setdefault(party, {})[pod.uid] = pod
        self._charged[pod.uid] = party, amounts
        self._largest.clear()
        if pod.phase is Phase.ASSUMED:
            self._unsettled.setdefault(party, {})[pod.uid] = pod

    def pod_removed(self, pod: PodRecord, slot: int) -> None:
        if self._discharge(pod.uid):
            self.state.woken.add(Wake.QUOTA)

    def event(self, event: AnyEvent) -> Sequence[int] | None:
        if isinstance(event, QuotaSeen):
            self._take_in(event.quota)
        elif isinstance(event, QuotaGone):
            self._drop(event.name)
        return None

    def used(self, party: str) -> Mapping[str, int]:
        """What counts against the party's quota at this moment; nothing for one without."""
        return {name: amount for name, amount in self._used.get(party, {}).items() if amount}

    def _take_in(self, quota: QuotaFacts, *, recount: bool = True) -> None:
        party, caps = quota.metadata.name, caps_of(quota)
        if caps is None:
            self._drop(party)
            return
        is_new = party not in self._caps
        self._caps[party] = caps
        if caps.problems:
            self.state.note_fault(f"Domain {party}", "; ".join(caps.problems))
        if is_new and recount:
            # Pods that are there when the plugin is attached are told one by one; these were told before there was a quota.
            for pod in self.state.pods.values():
                if pod.index >= 0 and pod.namespace == party:
                    self.pod_added(pod, self.state.nodes.slots[pod.node])

    def _drop(self, party: str) -> None:
        self._caps.pop(party, None)
        for uid in list(self._pods.get(party, ())):
            self._discharge(uid)
        for book in (self._pods, self._used, self._unsettled):
            book.pop(party, None)

    def _discharge(self, uid: str) -> bool:
        charged = self._charged.pop(uid, None)
        if charged is None:
            return False
        party, amounts = charged
        used = self._used[party]
        for name, amount in amounts.items():
            used[name] -= amount
        del self._pods[party][uid]
        self._largest.clear()
        self._unsettled.get(party, {}).pop(uid, None)
        return True

    # -- deciding ------------------------------------------------------------------------------------------------------------

    def concerns(self, pods: PodBlock) -> bool:
        """A pod of its own that fits into the quota at this moment is decided about as if there was none, which is far quicker.
        Pods of one unit are placed several at a time, so each of them is looked at."""
        if not self._caps or pods.pod is None or pods.pod.metadata.namespace not in self._caps:
            return False
        record = self.state.pods.get(pods.pod.metadata.uid)
        return record is None or is_shared(record.unit) or not self._fits(pods.pod.metadata.namespace, pods)

    def prefilter(self, unit: Unit, pods: PodBlock, now: float) -> Verdict | None:
        """Refuse a unit of which so much would go beyond a quota that it can't start, whatever happens to what is held."""
        groups = [group for group in unit.groups if group.controlled and group.pods]
        first = next((group.pods[0] for group in groups if self.state.pods[group.pods[0]].namespace in self._caps), "")
        if pods.pod is None or pods.pod.metadata.uid != first:
            return None  # asked about every pod of the unit, it answers once
        needed = [group for group in groups if group.missing]
        if needed and len(unit.groups) <= unit.min_groups:
            return self._over(needed)
        # Which of the groups start is not known yet: only one that can't even start alone is certain to be missing.
        hopeless = [over for group in needed or groups if (over := self._over([group])) is not None]
        left = len(unit.groups) - len(hopeless)
        is_certain = left < unit.min_groups if needed else len(hopeless) == len(groups)
        return hopeless[0] if hopeless and is_certain else None

    def _over(self, groups: Sequence[Group]) -> Verdict | None:
        """The verdict on the first party (by name) whose quota these groups, started together, would break."""
        asked: dict[str, Amounts] = {}
        for group in groups:
            records = [self.state.pods[uid] for uid in group.pods]
            if records[0].namespace in self._caps:
                _add(asked.setdefault(records[0].namespace, {}), least_of(records, max(group.missing, 1)))
        for party in sorted(asked):
            short = self._short(party, asked[party], self._bound(party))
            if short:
                return Verdict(
                    reason=self.reason,
                    subject=f"Domain {party}",
                    message=self._message(party, short),
                    plugin=self.name,
                    shortfalls=tuple(short),
                    helps=(f"raise spec.resourceQuota of Domain {party}, or wait until work of {party} ends",),
                )
        return None

    def _bound(self, party: str) -> Amounts:
        """What counts and can't be taken back: without the pods that are held or being bound."""
        used = dict(self._used.get(party, {}))
        unsettled = self._unsettled.get(party, {})
        for uid in [uid for uid, pod in unsettled.items() if pod.phase is not Phase.ASSUMED]:
            del unsettled[uid]
        for uid in unsettled:
            for name, amount in self._charged[uid][1].items():
                used[name] -= amount
        return used

    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        assert pods.pod is not None, "a filter of scope WIDE is asked about one pod"
        return np.full(len(nodes), self._fits(pods.pod.metadata.namespace, pods), np.bool_)

    def _fits(self, party: str, pods: PodBlock) -> bool:
        """Whether one more such pod stays within the quota; what it does not ask for does not stand against it."""
        used, asked = self._used.get(party, {}), pods.shape.requests.amounts
        return all(
            (want := asked.get(name, 0)) == 0 or used.get(name, 0) + want <= cap
            for name, cap in self._caps[party].amounts.items()
        )

    def explain(self, pods: PodBlock, nodes: NodeBlock) -> tuple[Reason, Sequence[Shortfall]]:
        if pods.pod is None:
            return self.reason, ()
        party = pods.pod.metadata.namespace
        return self.reason, self._short(party, pods.shape.requests.amounts, self._used.get(party, {}))

    def _short(self, party: str, asked: Mapping[str, int], used: Mapping[str, int]) -> list[Shortfall]:
        """What `asked` would break of the party's quota; worst first."""
        caps = self._caps.get(party)
        if caps is None:
            return []
        found = []
        for name, cap in caps.amounts.items():
            want, left = asked.get(name, 0), max(cap - used.get(name, 0), 0)
            if want > left:
                where = f"quota of Domain {party} ({format_amount(cap, unit_of(name))})"
                holders = self._holders(party, name)
                found.append(
                    shortfall(
                        self.reason, want=want, best=left, unit=unit_of(name), resource=name, where=where, holders=holders
                    )
                )
        return sorted(found, key=lambda one: (-one.missing / max(one.want, 1), one.resource))

    def _message(self, party: str, short: Sequence[Shortfall]) -> str:
        caps, used = self._caps[party], self._used.get(party, {})
        parts = []
        for one in short:
            limit, use = (format_amount(amount, one.unit) for amount in (caps.amounts[one.resource], used.get(one.resource, 0)))
            parts.append(f"{one.resource}: limit {limit}, in use {use}, requested {format_amount(one.want, one.unit)}")
        problems = f" ({'; '.join(caps.problems)})" if caps.problems else ""
        return f"the quota of Domain {party} is exceeded: {'; '.join(parts)}{problems}"

    def _holders(self, party: str, resource: str) -> tuple[Holder, ...]:
        """Who has most of it. Remembered until a pod of the party comes or goes: thousands may wait for the same."""
        found = self._largest.get((party, resource))
        if found is None:
            pods = self._pods.get(party, {}).values()
            amounts = ((self._charged[pod.uid][1].get(resource, 0), pod.key, pod.node) for pod in pods)
            largest = sorted((one for one in amounts if one[0]), key=lambda one: (-one[0], one[1]))[:HOLDERS_MAX]
            found = self._largest[party, resource] = tuple(Holder("Pod", key, amount, node) for amount, key, node in largest)
        return found


def least_of(pods: Sequence[PodRecord], count: int) -> Amounts:
    """A lower bound of what any `count` of the pods ask for together: exact when all must start, or all are alike."""
    if count >= len(pods) or all(pod.shape is pods[0].shape for pod in pods):
        total: Amounts = {}
        for pod in pods[:count]:
            _add(total, pod.shape.requests.amounts)
        return total
    names = {name for pod in pods for name in pod.shape.requests.amounts}
    return {name: sum(sorted(pod.shape.requests.amounts.get(name, 0) for pod in pods)[:count]) for name in names}


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount
