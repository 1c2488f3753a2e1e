"""How many pods of each PodDisruptionBudget may go at this moment: its status, which evictions ask.

Embedded store only: on a real cluster kube-controller-manager does this. The arithmetic is Kubernetes':

- expected pods: with `minAvailable` as a number, the pods that the selector finds; otherwise the replicas that the controllers
  of those pods want. A controller without replicas (a task, a job) wants the pods that it has.
- desired healthy: `minAvailable`, or expected minus `maxUnavailable`; percentages are of the expected pods, rounded up.
- healthy: Ready, not being deleted, and not promised to an eviction that has yet to happen.
- allowed: healthy minus desired, never below zero, and zero when nothing is expected.

An eviction writes the pod into `disruptedPods` before it deletes it; that promise counts until the pod is deleted, or for two
minutes. Evictions and this controller write the same status, so each of its writes names the version that it was planned from.
And it allows more than before only on the strength of pods seen at least as late as that version: the cache of pods may lag
behind that of budgets, and would count pods that are long gone. Where it does, the pods are read from the store.

`plan` is pure; the controller around it reads caches. What can't be computed allows nothing, and says why in a condition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from muster.controllers.actions import Action, Emit, PatchStatus, target_of
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch
from muster.objects.conditions import set_condition
from muster.objects.meta import controller_of, generation_of, is_deleting, name_of
from muster.objects.selectors import LabelQuery, LabelSelector, from_label_selector
from muster.objects.status import Raw
from muster.objects.time import parse_time
from muster.objects.view import IntOrString, View, view_of
from muster.store.cache import NAMESPACE_INDEX, Cached, ObjectKey
from muster.store.contract import Store
from muster.store.events import WARNING, reference_to
from muster.store.informer import is_newer

DELETION_TIMEOUT_S = 120.0
CONDITION = "DisruptionAllowed"


class BudgetSpec(View):
    min_available: IntOrString | None = None
    max_unavailable: IntOrString | None = None
    selector: LabelSelector | None = None


class BudgetStatus(View):
    disrupted_pods: dict[str, str] = msgspec.field(default_factory=dict)


class BudgetView(View):
    spec: BudgetSpec = msgspec.field(default_factory=BudgetSpec)
    status: BudgetStatus = msgspec.field(default_factory=BudgetStatus)


class ReadyCondition(View):
    type: str = ""
    status: str = ""


class PodStatus(View):
    conditions: list[ReadyCondition] = msgspec.field(default_factory=list)


class PodView(View):
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class ScaleSpec(View):
    replicas: int = 1


class ScaleView(View):
    spec: ScaleSpec = msgspec.field(default_factory=ScaleSpec)


class PodFacts(msgspec.Struct, frozen=True):
    """Of one pod, what a budget needs to know."""

    name: str
    is_ready: bool
    is_deleting: bool = False
    controller_uid: str = ""


class BadBudget(Exception):
    """The budget's numbers or selector make no sense."""


def plan(budget: Raw, view: BudgetView, pods: Sequence[PodFacts], scales: Mapping[str, int], now: float) -> Plan:
    """The status that `budget` should have. `pods` are those its selector finds, `scales` the replicas by controller uid."""
    promises, overdue, recheck_s = _promises(view.status.disrupted_pods, pods, now)
    healthy = sum(1 for pod in pods if pod.is_ready and not pod.is_deleting and pod.name not in promises)
    failure = ""
    try:
        expected, desired = _expected_and_desired(view.spec, pods, scales)
        allowed = max(0, healthy - desired) if expected > 0 else 0
    except BadBudget as error:
        failure, expected, desired, allowed = str(error), len(pods), len(pods), 0
    status: Raw = {
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptionsAllowed": allowed,
        "observedGeneration": generation_of(budget),
        "conditions": _conditions(budget, allowed, failure, now),
    }
    if promises:
        status["disruptedPods"] = promises
    actions: list[Action] = [
        Emit(
            reference_to(budget),
            WARNING,
            "NotDeleted",
            f"Pod {name} was evicted but not deleted within {DELETION_TIMEOUT_S:g} s",
        )
        for name in overdue
    ]
    patch = _difference(budget.get("status") or {}, status)
    if patch:
        actions.append(PatchStatus(target_of(budget, at_version=True), patch))
    return Plan(actions, recheck_s)


def _promises(
    disrupted: Mapping[str, str], pods: Sequence[PodFacts], now: float
) -> tuple[dict[str, str], list[str], float | None]:
    """Those that still count, those that were never kept, and when the first of the former runs out."""
    alive = {pod.name for pod in pods if not pod.is_deleting}
    kept: dict[str, str] = {}
    overdue: list[str] = []
    recheck_s: float | None = None
    for name, since in disrupted.items():
        if name not in alive:
            continue
        try:
            left_s = parse_time(since) + DELETION_TIMEOUT_S - now
        except ValueError:
            left_s = 0.0
        if left_s <= 0:
            overdue.append(name)
            continue
        kept[name] = since
        recheck_s = left_s if recheck_s is None else min(recheck_s, left_s)
    return kept, overdue, recheck_s


def _expected_and_desired(spec: BudgetSpec, pods: Sequence[PodFacts], scales: Mapping[str, int]) -> tuple[int, int]:
    if spec.max_unavailable is not None:
        expected = _expected_scale(pods, scales)
        return expected, max(0, expected - _scaled(spec.max_unavailable, expected, "spec.maxUnavailable"))
    minimum = 1 if spec.min_available is None else spec.min_available
    if isinstance(minimum, int):
        return len(pods), _scaled(minimum, len(pods), "spec.minAvailable")
    expected = _expected_scale(pods, scales)
    return expected, _scaled(minimum, expected, "spec.minAvailable")


def _expected_scale(pods: Sequence[PodFacts], scales: Mapping[str, int]) -> int:
    """The sum of what the pods' controllers want; a pod without a controller stands for itself."""
    present: dict[str, int] = {}
    alone = 0
    for pod in pods:
        if pod.controller_uid:
            present[pod.controller_uid] = present.get(pod.controller_uid, 0) + 1
        else:
            alone += 1
    return alone + sum(scales.get(uid, count) for uid, count in present.items())


def _scaled(value: int | str, total: int, field: str) -> int:
    """A number, or a percentage of `total` rounded up."""
    if isinstance(value, int):
        number = value
    elif value.endswith("%") and value[:-1].isdecimal():
        number = math.ceil(int(value[:-1]) * total / 100)
    else:
        raise BadBudget(f"{field}: {value!r} is neither a number nor a percentage like 50%")
    if number < 0:
        raise BadBudget(f"{field}: {value!r} is negative")
    return number


def _conditions(budget: Raw, allowed: int, failure: str, now: float) -> list[Raw]:
    reason = "SyncFailed" if failure else "SufficientPods" if allowed else "InsufficientPods"
    return set_condition(
        (budget.get("status") or {}).get("conditions"),
        type_=CONDITION,
        status="True" if allowed else "False",
        now=now,
        reason=reason,
        message=failure,
        observed_generation=generation_of(budget),
    )


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Raw:
    """The merge patch from `old` to `new`, both status objects; the map of promises is compared member by member."""
    patch: Raw = {key: value for key, value in new.items() if key != "disruptedPods" and old.get(key) != value}
    old_promises, new_promises = old.get("disruptedPods") or {}, new.get("disruptedPods") or {}
    changed: Raw = {name: since for name, since in new_promises.items() if old_promises.get(name) != since}
    changed.update({name: None for name in old_promises if name not in new_promises})
    if changed:
        patch["disruptedPods"] = changed
    return patch


def _query(spec: BudgetSpec) -> LabelQuery | None:
    """None selects nothing, as a missing selector does; an empty one selects every pod of the namespace."""
    if spec.selector is None:
        return None
    try:
        return from_label_selector(spec.selector)
    except ValueError:
        return None


def _budgets_of_pod(pod: Cached, caches: Caches) -> list[ObjectKey]:
    found = []
    for budget in caches[BUDGETS].by_index(NAMESPACE_INDEX, pod.key.namespace):
        query = _query(budget.view(BudgetView).spec)
        if query is not None and query.matches(pod.labels):
            found.append(budget.key)
    return found


def _budgets_of_namespace(owner: Cached, caches: Caches) -> list[ObjectKey]:
    return [budget.key for budget in caches[BUDGETS].by_index(NAMESPACE_INDEX, owner.key.namespace)]


BUDGETS = Watch(group="policy", kind="PodDisruptionBudget", view=BudgetView)
PODS = Watch(group="", kind="Pod", view=PodView, keys=_budgets_of_pod)
SCALED = tuple(
    Watch(group="apps", kind=kind, view=ScaleView, keys=_budgets_of_namespace) for kind in ("ReplicaSet", "StatefulSet")
)


class Disruption(Controller):
    """Keys are PodDisruptionBudgets."""

    name = "disruption"
    watches = (BUDGETS, PODS, *SCALED)

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        budget = caches[BUDGETS].get(key)
        if budget is None or budget.deleting:
            return Plan()
        query = _query(budget.view(BudgetView).spec)
        pods = [] if query is None else caches[PODS].select(key.namespace, query)
        facts = [_facts(pod.key.name, pod.view(PodView), pod.deleting, pod.controller_uid) for pod in pods]
        return _plan_for(budget, facts, caches, now)

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        caches = context.caches
        budget = caches[BUDGETS].get(key)
        result = self.reconcile(key, caches, context.clock())
        # Versions of the embedded store are numbers that all kinds share, so that they can be compared.
        if budget is not None and _allows_more(result, budget) and is_newer(budget.resource_version, caches.version(PODS)):
            pods = await _read_pods(budget, context.store)
            result = _plan_for(budget, pods, caches, context.clock())
        await context.executor.apply(result.actions)
        return result.requeue_after_s


def _plan_for(budget: Cached, pods: Sequence[PodFacts], caches: Caches, now: float) -> Plan:
    owners = (owner for watch in SCALED for owner in caches[watch].select(budget.key.namespace))
    scales = {owner.uid: owner.view(ScaleView).spec.replicas for owner in owners}
    return plan(budget.raw, budget.view(BudgetView), pods, scales, now)


def _allows_more(result: Plan, budget: Cached) -> bool:
    before = (budget.raw.get("status") or {}).get("disruptionsAllowed", 0)
    patches = (action.status for action in result.actions if isinstance(action, PatchStatus))
    return any(patch.get("disruptionsAllowed", 0) > before for patch in patches)


async def _read_pods(budget: Cached, store: Store) -> list[PodFacts]:
    query = _query(budget.view(BudgetView).spec)
    if query is None:
        return []
    page = await store.list(await store.resource("", "Pod"), budget.key.namespace, label_selector=str(query))
    found = []
    for raw in page.items:
        owner = controller_of(raw)
        found.append(_facts(name_of(raw), view_of(PodView, raw), is_deleting(raw), str(owner.get("uid", "")) if owner else ""))
    return found


def _facts(name: str, pod: PodView, deleting: bool, controller_uid: str) -> PodFacts:
    is_ready = any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
    return PodFacts(name, is_ready, deleting, controller_uid)
