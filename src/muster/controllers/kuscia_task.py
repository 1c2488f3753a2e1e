"""KusciaTasks: one computation of several parties, started everywhere together or not at all.

The controller around `kuscia_task_plan`: it gathers what the caches have about a task and carries the plan out. Keys are
KusciaTasks of the namespace `cross-domain`.

It makes pods for own parties only. Parties whose Domain is a partner's belong to another control plane: how far those are
comes in through KusciaTaskSummaries of the same name in the partner's namespace (or that of its master), field
`status.partyTaskStatus`, and is put into the task's own status here, which nobody else writes.

Concurrency: several workers, one key at a time; `reconcile` does not suspend, so that port numbers are given out one task after
the other (`task_ports.PortLedger`). At the start of each term all tasks are read from the store once, because the caches of a
new leader may lag behind what the last one has given out.

Work for one task does not depend on how many others there are: everything is found by key or by index.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final

import msgspec

from muster.controllers.actions import Target
from muster.controllers.kuscia_task_end import FINISHED, RELEASED, TaskPlan
from muster.controllers.kuscia_task_parts import Party, TaskState
from muster.controllers.kuscia_task_plan import plan, refuse
from muster.controllers.kuscia_task_pods import TaskPod
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch
from muster.controllers.task_ports import PortLedger, deployment_ports, port_key, port_keys
from muster.objects.conditions import find_condition
from muster.objects.kinds.kuscia_base import GROUP
from muster.objects.kinds.kuscia_tasks import KusciaTask, KusciaTaskStatus, PartyTaskStatus, TaskResourceGroup
from muster.objects.labels import KusciaLabel
from muster.objects.meta import labels_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import Conflict, Forbidden, Invalid, NotFound, Raw
from muster.objects.view import View, to_raw, view_of
from muster.store.cache import CONTROLLER_INDEX, Cached, ObjectKey, by_label
from muster.store.informer import Change

_BY_UID: Final = "kuscia-task-by-uid"
_BY_PORT: Final = "kuscia-task-by-port"
_BY_WAIT: Final = "kuscia-task-by-wait"
_BY_TASK: Final = "kuscia-task-uid"
_PAGE_LEN: Final = 500
_LOOKS_MAX: Final = 20
_MAKING_S: Final = 2.0
_LAG_S: Final = 1.0
"""When to look again if a cache lags; what it lacks also tells when it comes."""
_MADE: Final = ("pods", "services", "configmaps", "taskresourcegroups")
"""What a task makes. A conflict about one of these means that somebody else has an object of the name."""


class DomainSpecView(View):
    role: str = ""
    master: str = ""


class DomainView(View):
    spec: DomainSpecView = msgspec.field(default_factory=DomainSpecView)


class SummaryStatus(View):
    party_task_status: list[PartyTaskStatus] = msgspec.field(default_factory=list)


class SummaryView(View):
    """Of a KusciaTaskSummary, what a partner says about its own part."""

    status: SummaryStatus = msgspec.field(default_factory=SummaryStatus)


class _Nothing(View):
    """For kinds of which only the metadata counts."""


def _holds_ports(status: KusciaTaskStatus) -> bool:
    """Until what still ran of a finished task is gone, too."""
    if status.phase not in FINISHED:
        return True
    created = find_condition([to_raw(condition) for condition in status.conditions], "ResourceCreated")
    return created is not None and created.get("reason") != RELEASED


def _task_uid(task: Cached) -> Iterable[str]:
    return (task.uid,)


def _task_ports(task: Cached) -> Iterable[str]:
    status = task.view(KusciaTask).status
    return tuple(port_keys(status.allocated_ports)) if _holds_ports(status) else ()


def _task_waits(task: Cached) -> Iterable[str]:
    """What a task that has not begun looks at: its AppImages and parties. Partners matter as long as it runs."""
    view = task.view(KusciaTask)
    if view.status.phase in FINISHED:
        return ()
    names = {f"image/{party.app_image_ref}" for party in view.spec.parties}
    return sorted(names | {f"domain/{party.domain_id}" for party in view.spec.parties})


def _deployment_ports(deployment: Cached) -> Iterable[str]:
    return tuple(port_keys(deployment_ports(deployment.raw)))


def _by_task_label(obj: Cached, caches: Caches) -> list[ObjectKey]:
    uid = obj.labels.get(KusciaLabel.TASK_UID, "")
    return [task.key for task in caches[TASKS].by_index(_BY_UID, uid)] if uid else []


def _by_name(obj: Cached, _caches: Caches) -> tuple[ObjectKey]:
    return (ObjectKey(NAMESPACE_CROSS_DOMAIN, obj.key.name),)


def _waiting_for(prefix: str) -> Callable[[Cached, Caches], list[ObjectKey]]:
    def keys(obj: Cached, caches: Caches) -> list[ObjectKey]:
        return [task.key for task in caches[TASKS].by_index(_BY_WAIT, f"{prefix}/{obj.key.name}")]

    return keys


def _comes_or_goes(change: Change) -> bool:
    """Whether a Domain or namespace is there, or means another thing, than before: their status changes all the time."""
    old, new = change.old, change.new
    if old is None or new is None or old.deleting != new.deleting:
        return True
    return old.kind == "Domain" and old.view(DomainView) != new.view(DomainView)


TASKS = Watch(
    group=GROUP,
    kind="KusciaTask",
    namespace=NAMESPACE_CROSS_DOMAIN,
    view=KusciaTask,
    indexes={_BY_UID: _task_uid, _BY_PORT: _task_ports, _BY_WAIT: _task_waits},
)
GROUPS = Watch(group=GROUP, kind="TaskResourceGroup", view=TaskResourceGroup, keys=_by_name)
RESOURCES = Watch(group=GROUP, kind="TaskResource", view=_Nothing, keep="nothing", keys=_by_task_label)
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
        view=_Nothing,
        keep="nothing",
        indexes={_BY_TASK: by_label(KusciaLabel.TASK_UID)},
        keys=_by_task_label,
    )
    for kind in ("Service", "ConfigMap")
)
IMAGES = Watch(group=GROUP, kind="AppImage", keys=_waiting_for("image"))
DOMAINS = Watch(
    group=GROUP, kind="Domain", view=DomainView, keep="nothing", keys=_waiting_for("domain"), matters=_comes_or_goes
)
NAMESPACES = Watch(
    group="", kind="Namespace", view=_Nothing, keep="nothing", keys=_waiting_for("domain"), matters=_comes_or_goes
)
SUMMARIES = Watch(group=GROUP, kind="KusciaTaskSummary", view=SummaryView, keep="nothing", keys=_by_name)
DEPLOYMENTS = Watch(
    group=GROUP,
    kind="KusciaDeployment",
    indexes={_BY_PORT: _deployment_ports},
    keys=lambda _deployment, _caches: (),
)


class KusciaTasks(Controller):
    """Keys are KusciaTasks. `ledger` is shared with whoever else gives out ports in this process."""

    name = "kuscia-task"
    watches = (TASKS, GROUPS, RESOURCES, PODS, *OTHERS, IMAGES, DOMAINS, NAMESPACES, SUMMARIES, DEPLOYMENTS)
    workers: ClassVar[int] = 4

    def __init__(self, ledger: PortLedger | None = None) -> None:
        self._ledger = ledger if ledger is not None else PortLedger()
        self._uids: dict[ObjectKey, str] = {}
        """Of tasks that have something in the ledger."""
        self._made: dict[ObjectKey, float] = {}
        """Tasks whose objects have all just been made, and until when the caches are given time to show them."""
        self._term: Context | None = None
        self._seeded: asyncio.Lock | None = None

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        decided = self._decide(key, caches, now)
        return Plan(decided.actions, decided.requeue_after_s)

    def _decide(self, key: ObjectKey, caches: Caches, now: float) -> TaskPlan:
        task = caches[TASKS].get(key)
        if task is None:
            uid = self._uids.get(key, "")
            if uid and self._ledger.drop_gone(uid):
                del self._uids[key]
            return TaskPlan()
        decided = plan(self._state(task, caches, now))
        self._note(task, decided)
        return decided

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        await self._seed(context)
        result = self._decide(key, context.caches, context.clock())
        if await _is_there(result.absent[:_LOOKS_MAX], context):
            return _LAG_S
        if result.is_making and (left_s := self._made.get(key, 0.0) - context.clock()) > 0:
            return left_s
        self._made.pop(key, None)
        try:
            await context.executor.apply(result.actions)
        except (Invalid, Forbidden, Conflict) as error:
            task = context.caches[TASKS].get(key)
            if task is None or task.deleting or task.view(KusciaTask).status.phase in FINISHED:
                raise
            if isinstance(error, Conflict) and error.kind not in _MADE:
                raise  # the cache of tasks lags: it is tried again from the new state
            refused = refuse(
                self._state(task, context.caches, context.clock()), str(error), is_final=isinstance(error, Invalid)
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
            partners=_partners(task.key.name, view, caches),
            is_taken=lambda domain, number: self._is_taken(domain, number, task.uid, caches),
            now=now,
        )

    # -- ports -------------------------------------------------------------------------------------------------------------

    def _is_taken(self, domain_id: str, number: int, by_others_than: str, caches: Caches) -> bool:
        key = port_key(domain_id, number)
        if self._ledger.is_taken(domain_id, number, by_others_than):
            return True
        if any(task.uid != by_others_than for task in caches[TASKS].by_index(_BY_PORT, key)):
            return True
        return bool(caches[DEPLOYMENTS].by_index(_BY_PORT, key))

    def _note(self, task: Cached, decided: TaskPlan) -> None:
        """Keep the ledger: what is about to be written goes in, what the cache shows goes out."""
        status = task.view(KusciaTask).status
        if decided.allocated is not None:
            self._ledger.give(task.uid, decided.allocated)
            self._uids[task.key] = task.uid
        elif status.allocated_ports or status.phase in FINISHED:
            self._ledger.drop(task.uid)
            self._uids.pop(task.key, None)
        else:
            self._ledger.see(task.uid)

    async def _seed(self, context: Context) -> None:
        """Once in a term: what the store knows to be given out, though the caches may not show it yet."""
        if self._term is context:
            return
        if self._seeded is None:
            self._seeded = asyncio.Lock()
        async with self._seeded:
            if self._term is context:
                return
            for uid in self._uids.values():
                self._ledger.drop(uid)
            self._uids.clear()
            resource = await context.store.resource(GROUP, "KusciaTask")
            token = ""
            while True:
                page = await context.store.list(resource, NAMESPACE_CROSS_DOMAIN, limit=_PAGE_LEN, continue_token=token)
                for raw in page.items:
                    self._seed_one(raw)
                token = page.continue_token
                if not token:
                    break
            self._term = context

    def _seed_one(self, raw: Raw) -> None:
        try:
            task = view_of(KusciaTask, raw)
        except msgspec.ValidationError:
            return  # the informer says so
        if task.status.allocated_ports and _holds_ports(task.status):
            self._ledger.give(task.metadata.uid, task.status.allocated_ports, is_seen=False)
            self._uids[ObjectKey(task.metadata.namespace, task.metadata.name)] = task.metadata.uid


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
    if domain is None or domain.deleting:
        return None
    namespace = caches[NAMESPACES].get(ObjectKey("", name))
    return Party(
        is_partner=domain.view(DomainView).spec.role == "partner",
        has_namespace=namespace is not None and not namespace.deleting,
    )


def _partners(name: str, task: KusciaTask, caches: Caches) -> dict[tuple[str, str], PartyTaskStatus]:
    """What partners say of their parts of this task."""
    found: dict[tuple[str, str], PartyTaskStatus] = {}
    for party in task.spec.parties:
        domain = caches[DOMAINS].get(ObjectKey("", party.domain_id))
        if domain is None or domain.view(DomainView).spec.role != "partner":
            continue
        for namespace in (party.domain_id, domain.view(DomainView).spec.master):
            summary = caches[SUMMARIES].get(ObjectKey(namespace, name)) if namespace else None
            for status in summary.view(SummaryView).status.party_task_status if summary is not None else ():
                if (status.domain_id, status.role) == (party.domain_id, party.role):
                    found.setdefault((party.domain_id, party.role), status)
    return found
