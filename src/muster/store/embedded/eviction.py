"""Eviction: the deletion of a pod, as far as its disruption budget lets it go.

A step inside a transaction, as that of `deletes.py`; on the loop. The deletion and the note of it in the budget's status are
stored together, so two evictions can't both take the last disruption that is allowed. The arithmetic is in `budgets.py`.
"""

from __future__ import annotations

from muster.objects.status import Cause, InternalError, Raw, TooManyRequests
from muster.objects.time import format_time
from muster.store.contract import EventType, Preconditions
from muster.store.embedded import rules
from muster.store.embedded.budgets import disruptions_allowed, has_status, is_free_to_go, selects, still_disrupted
from muster.store.embedded.context import WriteContext
from muster.store.embedded.core import Core
from muster.store.embedded.deletes import Deletes
from muster.store.embedded.records import Record
from muster.store.embedded.registry import Registry
from muster.store.embedded.shaping import Shaper
from muster.store.embedded.transaction import Result, Transaction

_DISRUPTED_LEN_MAX = 2000


class Evictions:
    def __init__(self, core: Core, registry: Registry, shaper: Shaper, deletes: Deletes) -> None:
        self._core = core
        self._registry = registry
        self._shaper = shaper
        self._deletes = deletes

    async def evict(
        self,
        txn: Transaction,
        name: str,
        namespace: str,
        context: WriteContext,
        *,
        grace_period_s: int | None = None,
        uid: str = "",
    ) -> list[Result]:
        """Delete the pod and write the disruption down in its budget, together; TooManyRequests when the budget says no."""
        served = self._registry.pods()
        context.is_judged = True
        if self._shaper.asks_about("CREATE", served.stored, "eviction"):
            body = _eviction(name, namespace, grace_period_s, uid)
            await self._shaper.admit_body("CREATE", served.stored, context, body=body, subresource="eviction")
        record = txn.require(served.stored, served.collection, (namespace, name))
        rules.check_preconditions(served.stored, record, Preconditions(uid=uid or None))
        pod = record.raw()
        results: list[Result] = []
        if not is_free_to_go(pod):
            results += self._charge_budget(txn, record)
        preconditions = Preconditions(uid=record.uid)
        deleted = await self._deletes.delete(
            txn, served.stored, name, namespace, context, grace_period_s=grace_period_s, preconditions=preconditions
        )
        return [deleted, *results]

    def _charge_budget(self, txn: Transaction, record: Record) -> list[Result]:
        budgets = self._registry.find_kind("policy", "PodDisruptionBudget")
        if budgets is None:
            return []
        matching = [
            (budget, raw)
            for key in budgets.collection.keys_in(record.namespace)
            if (budget := txn.read(budgets.collection, key)) is not None and selects(raw := budget.raw(), record.labels)
        ]
        if not matching:
            return []
        if len(matching) > 1:
            names = ", ".join(sorted(budget.name for budget, _ in matching))
            raise InternalError(
                f'pod "{record.name}" has more than one PodDisruptionBudget ({names}), which the eviction subresource does not '
                "support; make their selectors disjoint"
            )
        budget, raw = matching[0]
        now = self._core.clock()
        status = dict(raw.get("status") or {})
        disrupted = still_disrupted(status.get("disruptedPods"), now)
        is_maintained = has_status(raw)
        if is_maintained:
            allowed = status.get("disruptionsAllowed") or 0
        else:
            # Nobody maintains this budget's status, or not yet: count the pods themselves. Those being deleted count as gone.
            allowed = disruptions_allowed(raw, self._pods_of(txn, raw, record.namespace))
        if allowed < 1:
            raise _refused(record, budget, raw, allowed)
        if len(disrupted) >= _DISRUPTED_LEN_MAX:
            raise TooManyRequests(
                f"poddisruptionbudgets {budget.name!r} has {len(disrupted)} evictions on their way, which is the limit; "
                "wait for them",
                retry_after_s=10,
            )
        if is_maintained:
            status["disruptionsAllowed"] = allowed - 1
        # Always noted: whoever is working out a status from what was before this must find that the budget has changed.
        status["disruptedPods"] = {**disrupted, record.name: format_time(now)}
        changed = {**raw, "metadata": dict(raw["metadata"]), "status": status}
        return [txn.write(budgets.stored, budgets.collection, EventType.MODIFIED, changed, was=budget)]

    def _pods_of(self, txn: Transaction, budget: Raw, namespace: str) -> list[Raw]:
        pods = self._registry.pods().collection
        found = (txn.read(pods, key) for key in pods.keys_in(namespace))
        return [record.raw() for record in found if record is not None and selects(budget, record.labels)]


def _eviction(name: str, namespace: str, grace_period_s: int | None, uid: str) -> Raw:
    """The `Eviction` that a client would send."""
    body: Raw = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": None},
    }
    options: Raw = {}
    if grace_period_s is not None:
        options["gracePeriodSeconds"] = grace_period_s
    if uid:
        options["preconditions"] = {"uid": uid}
    return {**body, "deleteOptions": options} if options else body


def _refused(pod: Record, budget: Record, raw: Raw, allowed: int) -> TooManyRequests:
    status = raw.get("status") or {}
    detail = f"the budget {budget.name} allows {max(allowed, 0)} disruptions now"
    if status.get("desiredHealthy") is not None:
        needed, there = status["desiredHealthy"], status.get("currentHealthy", 0)
        detail = f"the budget {budget.name} needs {needed} healthy pods and has {there} currently"
    return TooManyRequests(
        f"Cannot evict pod as it would violate the pod's disruption budget: {detail}.",
        kind="pods",
        name=pod.name,
        causes=[Cause("", detail, "DisruptionBudget")],
    )
