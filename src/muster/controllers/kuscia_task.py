"""KusciaTasks: one computation of several parties, started everywhere together or not at all.

The controller around `kuscia_task_plan`: it gathers what the caches have about a task and carries the plan out. Keys are
KusciaTasks of the namespace `cross-domain`.

It makes pods for own parties only. Parties whose Domain is a partner's belong to another control plane: how far those are
comes in through KusciaTaskSummaries of the same name in the partner's namespace (or that of its master), field
`status.partyTaskStatus`, and is put into the task's own status here, which nobody else writes.

Concurrency: several workers, one key at a time; `reconcile` does not suspend, so that port numbers are given out one task after
the other (`port_book`).

Work for one task does not depend on how many others there are: everything is found by key or by index.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final

import msgspec

from muster.controllers.actions import Target
from muster.controllers.kuscia_task_end import TaskPlan
from muster.controllers.kuscia_task_parts import TaskState
from muster.controllers.kuscia_task_plan import plan, refuse
from muster.controllers.kuscia_task_pods import TaskPod
from muster.controllers.parties import Bare, DomainView, Party, comes_or_goes, is_party, party_of
from muster.controllers.port_book import PORT_INDEX, PortBook, ports_of_deployment, ports_of_task
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch
from muster.controllers.task_ports import PortLedger
from muster.objects.kinds.kuscia_base import GROUP, TASK_ENDED
from muster.objects.kinds.kuscia_tasks import KusciaTask, PartyTaskStatus, TaskResourceGroup
from muster.objects.labels import KusciaLabel
from muster.objects.meta import labels_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import BadRequest, Conflict, Forbidden, Invalid, NotFound, Raw
from muster.objects.view import View
from muster.store.cache import CONTROLLER_INDEX, Cached, ObjectKey, by_label

_BY_UID: Final = "kuscia-task-by-uid"
_BY_WAIT: Final = "kuscia-task-by-wait"
_BY_TASK: Final = "kuscia-task-uid"
_PAGE_LEN: Final = 500
_LOOKS_MAX: Final = 20
_MAKING_S: Final = 2.0
_LAG_S: Final = 1.0
"""When to look again if a cache lags; what it lacks also tells when it comes."""
_MADE: Final = ("pods", "services", "configmaps", "taskresourcegroups")
"""What a task makes. A conflict about one of these means that somebody else has an object of the name."""


class SummaryStatus(View):
    party_task_status: list[PartyTaskStatus] = msgspec.field(default_factory=list)


class SummaryView(View):
    """Of a KusciaTaskSummary, what a partner says about its own part."""

    status: SummaryStatus = msgspec.field(default_factory=SummaryStatus)


def _task_uid(task: Cached) -> Iterable[str]:
    return (task.uid,)


def _task_waits(task: Cached) -> Iterable[str]:
    """What a task that has not begun looks at: its AppImages and parties. Partners matter as long as it runs."""
    view = task.view(KusciaTask)
    if view.status.phase in TASK_ENDED:
        return ()
    names = {f"image/{party.app_image_ref}" for party in view.spec.parties}
    return sorted(names | {f"domain/{party.domain_id}" for party in view.spec.parties})


def _by_task_label(obj: Cached, caches: Caches) -> list[ObjectKey]:
    uid = obj.labels.get(KusciaLabel.TASK_UID, "")
    return [task.key for task in caches[TASKS].by_index(_BY_UID, uid)] if uid else []


def _by_name(obj: Cached, _caches: Caches) -> tuple[ObjectKey]:
    return (ObjectKey(NAMESPACE_CROSS_DOMAIN, obj.key.name),)


def _waiting_for(prefix: str) -> Callable[[Cached, Caches], list[ObjectKey]]:
    def keys(obj: Cached, caches: Caches) -> list[ObjectKey]:
        return [task.key for task in caches[TASKS].by_index(_BY_WAIT, f"{prefix}/{obj.key.name}")]

    return keys


TASKS = Watch(
    group=GROUP,
    kind="KusciaTask",
    namespace=NAMESPACE_CROSS_DOMAIN,
    view=KusciaTask,
    indexes={_BY_UID: _task_uid, PORT_INDEX: ports_of_task, _BY_WAIT: _task_waits},
)
GROUPS = Watch(group=GROUP, kind="TaskResourceGroup", view=TaskResourceGroup, keys=_by_name)
RESOURCES = Watch(group=GROUP, kind="TaskResource", view=Bare, keep="nothing", keys=_by_task_label)
PODS = Watch(
    group="",
    kind="Pod",
    label_selector=KusciaLabel.TASK_UID,
    view=TaskPod,
    keep="nothing",
    indexes={_BY_TASK: by_label(KusciaLabel.TASK_UID)},
    keys=_by_task_label,
)
OTHERS = tuple(
    Watch(
        group="",
        kind=kind,
        label_selector=KusciaLabel.TASK_UID,
        view=Bare,
        keep="nothing",
        indexes={_BY_TASK: by_label(KusciaLabel.TASK_UID)},
        keys=_by_task_label,
    )
    for kind in ("Service", "ConfigMap")
)
IMAGES = Watch(group=GROUP, kind="AppImage", keys=_waiting_for("image"))
DOMAINS = Watch(group=GROUP, kind="Domain", view=DomainView, keep="nothing", keys=_waiting_for("domain"), matters=comes_or_goes)
NAMESPACES = Watch(group="", kind="Namespace", view=Bare, keep="nothing", keys=_waiting_for("domain"), matters=comes_or_goes)
SUMMARIES = Watch(group=GROUP, kind="KusciaTaskSummary", view=SummaryView, keep="nothing", keys=_by_name)
DEPLOYMENTS = Watch(
    group=GROUP,
    kind="KusciaDeployment",
    namespace=NAMESPACE_CROSS_DOMAIN,
    indexes={PORT_INDEX: ports_of_deployment},
    keys=lambda _deployment, _caches: (),
)


class KusciaTasks(Controller):
    """Keys are KusciaTasks. `ledger` is shared with whoever else gives out ports in this process."""

    name = "kuscia-task"
    watches = (TASKS, GROUPS, RESOURCES, PODS, *OTHERS, IMAGES, DOMAINS, NAMESPACES, SUMMARIES, DEPLOYMENTS)
    workers: ClassVar[int] = 4

    def __init__(self, ledger: PortLedger | None = None) -> None:
        self._ports = PortBook(ledger if ledger is not None else PortLedger(), TASKS, DEPLOYMENTS)
        self._made: dict[ObjectKey, float] = {}
        """Tasks whose objects have all just been made, and until when the caches are given time to show them."""

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        decided = self._decide(key, caches, now)
        return Plan(decided.actions, decided.requeue_after_s)

    def _decide(self, key: ObjectKey, caches: Caches, now: float) -> TaskPlan:
        task = caches[TASKS].get(key)
        if task is None:
            self._ports.forget(key)
            return TaskPlan()
        decided = plan(self._state(task, caches, now))
        status = task.view(KusciaTask).status
        is_shown = bool(status.allocated_ports) or status.phase in TASK_ENDED
        self._ports.note(task, decided.allocated, is_shown=is_shown)
        return decided

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        await self._ports.begin(context)
        result = self._decide(key, context.caches, context.clock())
        if await _is_there(result.absent[:_LOOKS_MAX], context):
            return _LAG_S
        if result.is_making and (left_s := self._made.get(key, 0.0) - context.clock()) > 0:
            return left_s
        self._made.pop(key, None)
        try:
            await context.executor.apply(result.actions)
        except (Invalid, BadRequest, Forbidden, Conflict) as error:
            task = context.caches[TASKS].get(key)
            if task is None or task.deleting or task.view(KusciaTask).status.phase in TASK_ENDED:
                raise
            if isinstance(error, Conflict) and error.kind not in _MADE:
                raise  # the cache of tasks lags: it is tried again from the new state
            refused = refuse(
                self._state(task, context.caches, context.clock()), str(error), is_final=isinstance(error, Invalid | BadRequest)
            )
            await context.executor.apply(refused.actions)
            return refused.requeue_after_s
        if result.is_making:
            self._made[key] = context.clock() + _MAKING_S
        return result.requeue_after_s

    def _state(self, task: Cached, caches: Caches, now: float) -> TaskState:
        group = caches[GROUPS].get(ObjectKey("", task.key.name))
        resources = caches[RESOURCES].by_index(CONTROLLER_INDEX, group.uid) if group is not None else []
        view = task.view(KusciaTask)
        return TaskState(
            task=task.raw,
            view=view,
            group=group.raw if group is not None else None,
            group_view=group.view(TaskResourceGroup) if group is not None else None,
            resources={(one.key.namespace, one.key.name): one.uid for one in resources if not one.deleting},
            pods=[pod.view(TaskPod) for pod in caches[PODS].by_index(_BY_TASK, task.uid)],
            others=[
                Target("", watch.kind, one.key.name, one.key.namespace, one.uid)
                for watch in OTHERS
                for one in caches[watch].by_index(_BY_TASK, task.uid)
            ],
            find_image=lambda name: _raw(caches[IMAGES].get(ObjectKey("", name))),
            find_party=lambda name: _party(name, caches),
            partners=_partners(task.key.name, view, group, caches),
            is_taken=lambda domain, number: self._ports.is_taken(domain, number, task.uid, caches),
            now=now,
        )


async def _is_there(targets: Sequence[Target], context: Context) -> bool:
    """Whether any of these exists in the store, though the caches do not show it."""
    for target in targets:
        resource = await context.store.resource(target.group, target.kind)
        with contextlib.suppress(NotFound):
            live = await context.store.get(resource, target.name, target.namespace or None)
            if KusciaLabel.TASK_UID in labels_of(live):  # without it, it is no task's, and never shown
                return True
    return False


def _raw(cached: Cached | None) -> Raw | None:
    return cached.raw if cached is not None else None


def _party(name: str, caches: Caches) -> Party | None:
    domain = caches[DOMAINS].get(ObjectKey("", name))
    return party_of(domain, caches[NAMESPACES]) if domain is not None and is_party(domain) else None


def _partners(name: str, task: KusciaTask, group: Cached | None, caches: Caches) -> dict[tuple[str, str], PartyTaskStatus]:
    """What partners say of their parts of this attempt; the summary of the last one may still be there, and does not count."""
    found: dict[tuple[str, str], PartyTaskStatus] = {}
    if group is None:
        return found
    for party in task.spec.parties:
        domain = caches[DOMAINS].get(ObjectKey("", party.domain_id))
        if domain is None or not domain.view(DomainView).is_partner:
            continue
        for namespace in (party.domain_id, domain.view(DomainView).spec.master):
            summary = caches[SUMMARIES].get(ObjectKey(namespace, name)) if namespace else None
            if summary is None or summary.controller_uid != group.uid:
                continue
            for status in summary.view(SummaryView).status.party_task_status:
                if (status.domain_id, status.role) == (party.domain_id, party.role):
                    found.setdefault((party.domain_id, party.role), status)
    return found
