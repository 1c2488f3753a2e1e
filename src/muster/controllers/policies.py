"""SchedulingPolicies: the built-in ones are there, and every one says whether it can be used.

Where a built-in policy is missing, it is made. It carries a digest of its spec (annotation `muster.dev/builtin`): while the
spec still has that digest, a newer Muster may replace it by its own version. Once somebody has changed the spec, it is theirs
and left alone; deleting it brings the built-in version back. The default Queue is made where no Queue `default` exists, and is
then its owner's: to go without a default queue, set its `spec.isDefault` to false.

Status: Ready or not and why, where the formula is wrong, which queues use it, and for how many waiting jobs the live order got
no number from it.

`installed`, `default_queue` and `status_of` are pure. The controller reads caches, and the live engine on its own loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

import msgspec

from muster.controllers.actions import Action, Create, Patch, PatchStatus, target_of
from muster.controllers.runtime import Caches, Controller, Plan, Watch
from muster.engine.machine import Engine
from muster.objects.conditions import Condition, with_condition
from muster.objects.kinds.muster_base import GROUP
from muster.objects.kinds.muster_queues import FormulaError as FormulaErrorView
from muster.objects.kinds.muster_queues import SchedulingPolicySpec, SchedulingPolicyStatus
from muster.objects.labels import Kubernetes, Muster
from muster.objects.meta import annotations_of, generation_of
from muster.objects.reasons import Reason
from muster.objects.rules.muster_queues import check_policy
from muster.objects.rules.report import Report, listed
from muster.objects.status import Raw
from muster.objects.view import View, merge_patch, view_of
from muster.policy.builtin import DEFAULT, NAMES, builtin_policies, builtin_spec, digest
from muster.policy.formula import FormulaError
from muster.policy.policies import make_policy
from muster.store.cache import Cached, ObjectKey
from muster.store.informer import Change

DEFAULT_QUEUE: Final = "default"
LOOK_AGAIN_S: Final = 30.0
"""How often a policy in use is asked for how many jobs it gave no number."""
QUEUES_SHOWN_MAX: Final = 100
READY: Final = "Ready"


@runtime_checkable
class CountsNumbers(Protocol):
    """An order that counts, by the name of the policy, the waiting units whose score was no number at the last ranking."""

    @property
    def not_a_number(self) -> Mapping[str, int]: ...


class QueueSpecView(View):
    policy: str = DEFAULT
    is_default: bool = False


class QueueView(View):
    spec: QueueSpecView = msgspec.field(default_factory=QueueSpecView)


def installed(name: str, current: Raw | None) -> list[Action]:
    """What brings the built-in policy `name` up to date; nothing when it is, or is no longer ours."""
    spec = builtin_spec(name)
    mark = {"annotations": {Muster.BUILTIN: digest(spec)}}
    if current is None:
        made = builtin_policies()[name]
        made["metadata"] |= {"labels": {Kubernetes.MANAGED_BY: "muster"}, **mark}
        return [Create(made)]
    ours = annotations_of(current).get(Muster.BUILTIN)
    try:
        stored = view_of(SchedulingPolicySpec, current.get("spec") or {})
    except msgspec.ValidationError:
        return []
    if ours is None or ours != digest(stored) or ours == digest(spec):
        return []
    patch = merge_patch(current.get("spec") or {}, stored, spec)
    return [Patch(target_of(current, at_version=True), {"metadata": mark, "spec": patch})]


def default_queue(queues: Mapping[str, QueueSpecView]) -> list[Action]:
    """Make the Queue `default`. It takes what names no queue, unless another one does so already."""
    if DEFAULT_QUEUE in queues:
        return []
    spec: Raw = {"policy": DEFAULT, "isDefault": not any(queue.is_default for queue in queues.values())}
    metadata = {"name": DEFAULT_QUEUE, "labels": {Kubernetes.MANAGED_BY: "muster"}}
    return [Create({"apiVersion": f"{GROUP}/v1alpha1", "kind": "Queue", "metadata": metadata, "spec": spec})]


def status_of(policy: Raw, queues: Sequence[str], not_a_number: int, now: float) -> SchedulingPolicyStatus:
    """The policy's status; `queues` are those that use it."""
    old = old_status(policy)
    error, problem = _problem(policy)
    shown = sorted(queues)[:QUEUES_SHOWN_MAX]
    if problem:
        reason = Reason.FORMULA_INVALID if error is not None else Reason.MANIFEST_INVALID
        in_use = f"; used by {listed(shown)}, whose work goes by age until then" if shown else ""
        ready = Condition(type=READY, status="False", reason=reason.value, message=f"{problem}{in_use}")
    elif not_a_number:
        message = f"the formula gives no number for {not_a_number} waiting jobs, which rank last"
        ready = Condition(type=READY, status="True", reason="NotANumber", message=message)
    else:
        ready = Condition(type=READY, status="True", reason="Ready", message=_origin(policy))
    generation = generation_of(policy)
    ready.observed_generation = generation
    return SchedulingPolicyStatus(
        formula_error=error,
        queues=shown,
        not_a_number=not_a_number,
        observed_generation=generation,
        conditions=with_condition(old.conditions, ready, now),
    )


def old_status(policy: Raw) -> SchedulingPolicyStatus:
    try:
        return view_of(SchedulingPolicyStatus, policy.get("status") or {})
    except msgspec.ValidationError:
        return SchedulingPolicyStatus()


def _problem(policy: Raw) -> tuple[FormulaErrorView | None, str]:
    """Where the formula is wrong, and what keeps the policy from being used. Admission refuses both, where it runs."""
    try:
        make_policy(view_of(SchedulingPolicySpec, policy.get("spec") or {}))
    except FormulaError as error:
        return FormulaErrorView(position=error.position, message=error.message, hint=error.hint), str(error)
    except msgspec.ValidationError as error:
        return None, str(error)
    report = Report()
    check_policy(report, policy)
    return None, "; ".join(f"{cause.field}: {cause.message}" for cause in report.causes[:3])


def _origin(policy: Raw) -> str:
    ours = annotations_of(policy).get(Muster.BUILTIN)
    if ours is None:
        return "can be used"
    is_changed = ours != digest(view_of(SchedulingPolicySpec, policy.get("spec") or {}))
    return (
        "can be used; built in, and changed here: delete it to get the original back" if is_changed else "can be used; built in"
    )


# -- the shell ---------------------------------------------------------------------------------------------------------------


def _of_queue(queue: Cached, _caches: Caches) -> Iterable[ObjectKey]:
    """The policy that it uses, and the one that looks after the default queue."""
    return {ObjectKey("", queue.view(QueueView).spec.policy), ObjectKey("", DEFAULT)}


def _of_start(_namespace: Cached, _caches: Caches) -> Iterable[ObjectKey]:
    return [ObjectKey("", name) for name in NAMES]


POLICIES = Watch(group=GROUP, kind="SchedulingPolicy")


def _is_other_queue(change: Change) -> bool:
    """A queue's status changes all the time, and says nothing about policies."""
    old, new = change.old, change.new
    return (
        old is None
        or new is None
        or old is new
        or old.deleting != new.deleting
        or old.view(QueueView).spec != new.view(QueueView).spec
    )


QUEUES = Watch(group=GROUP, kind="Queue", view=QueueView, keys=_of_queue, matters=_is_other_queue)
START = Watch(group="", kind="Namespace", field_selector="metadata.name=default", keep="nothing", keys=_of_start)
"""Something that every store has: it brings up the keys of policies that are not there."""

LiveEngine = Callable[[], Engine | None]


class Policies(Controller):
    """Keys are SchedulingPolicies. `engine`: that of the scheduler that runs here; None while none does."""

    name = "policies"
    watches = (POLICIES, QUEUES, START)

    def __init__(self, engine: LiveEngine = lambda: None) -> None:
        self._engine = engine

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        found = caches[POLICIES].get(key)
        if found is not None and found.deleting:
            return Plan()
        actions: list[Action] = []
        queues = {queue.key.name: queue.view(QueueView).spec for queue in caches[QUEUES] if not queue.deleting}
        if key.name in NAMES:
            actions += installed(key.name, found.raw if found is not None else None)
        if key.name == DEFAULT:
            actions += default_queue(queues)
        if actions or found is None:
            return Plan(actions)
        users = [name for name, queue in queues.items() if queue.policy == key.name]
        counted = self._not_a_number(key.name)
        new = status_of(found.raw, users, counted or 0, now)
        changes = merge_patch(found.raw.get("status") or {}, old_status(found.raw), new)
        writes = [PatchStatus(target_of(found.raw), changes)] if changes else []
        return Plan(writes, LOOK_AGAIN_S if users and counted is not None else None)

    def _not_a_number(self, policy: str) -> int | None:
        """None where nobody counts."""
        engine = self._engine()
        order = engine.order.inner if engine is not None and engine.order is not None else None
        return order.not_a_number.get(policy, 0) if isinstance(order, CountsNumbers) else None
