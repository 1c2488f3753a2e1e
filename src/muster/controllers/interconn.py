"""The member's side of tasks whose initiator has another control plane (Kuscia's protocol).

Follows, in the *host*'s store, what stands in the namespace of this side's master domain (`interconn_host` says what), and
keeps its own store in step:

| in the host's store | here |
|---|---|
| KusciaJob (mirror), KusciaJobSummary | KusciaJob in `cross-domain` (`interconn_jobs`) |
| KusciaTaskSummary appears | KusciaTask of the same name, with the initiator's age (`muster.dev/origin-*`) |
| its resourceStatus: Reserving, Schedulable, Failed | the phase of the own TaskResources |
| resourceStatus: Reserved, Withdraw; partyTaskStatus | written from the own TaskResources and the KusciaTask |
| phase Failed, Succeeded | the KusciaTask ends |
| goes, or is replaced (another attempt) | the KusciaTask is deleted; it is made anew when it is gone |

For one summary a KusciaTask is made once. When it has ended, or is gone after it had voted, its parties have failed in this
attempt, whatever becomes of the objects here; another attempt is the initiator's to begin.

Two stores can't be written in one step. Each write is safe to repeat, moves forward only and is made with the version that was
read (`interconn_parts`), so that both sides may crash, lag or lose each other at any point. While the host can't be reached,
what is promised stays promised, what runs goes on.

How the host is reached is not the concern of this file: its Store is handed in. `plan_task` is pure.
Concurrency: as every controller, on one event loop; keys are ("tasks", name) and ("jobs", name).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import msgspec

from muster.controllers.actions import Action, Create, Delete, Executor, Patch, Target, target_of
from muster.controllers.interconn_host import Partner, is_other_partner
from muster.controllers.interconn_jobs import plan_job
from muster.controllers.interconn_parts import Both, entries_of, entry_of, has_voted, member_step, with_entries
from muster.controllers.kuscia_job_tasks import Facts, hindrance, new_task
from muster.controllers.runtime import ByName, Caches, Context, Controller, Plan, Runner, Running, Watch
from muster.controllers.task_reservation_parts import GROUP_KIND, is_member
from muster.objects.kinds.kuscia_base import GROUP, TASK_ENDED
from muster.objects.kinds.kuscia_jobs import KusciaJob
from muster.objects.kinds.kuscia_tasks import (
    KusciaTask,
    KusciaTaskSummary,
    TaskResource,
    TaskResourceGroup,
    TaskResourceGroupParty,
)
from muster.objects.labels import KusciaAnnotation, Muster
from muster.objects.meta import annotations_of, is_deleting, name_of, namespace_of, uid_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.reason_codes import Reason
from muster.objects.status import NotFound, Raw
from muster.objects.time import Clock
from muster.objects.view import view_of
from muster.store.cache import CONTROLLER_INDEX, Cached, ObjectKey
from muster.store.contract import Store
from muster.store.events import EventRecorder
from muster.store.hub import InformerHub
from muster.store.informer import Informer
from muster.store.leases import Fence

_LAG_S = 1.0
"""When to look again if a cache lags."""


class TaskSides(msgspec.Struct, frozen=True, kw_only=True):
    """A task as both stores have it."""

    summary: Raw | None
    """In the host's store."""
    job: Raw | None = None
    task: Raw | None = None
    group: Raw | None = None
    resources: Sequence[Raw] = ()
    facts: Facts = Facts()
    now: float = 0.0


# -- tasks ---------------------------------------------------------------------------------------------------------------------


def plan_task(sides: TaskSides) -> Both:
    """What to do next for a task. Pure; converges from any state."""
    summary, task = sides.summary, sides.task
    if task is not None:
        made_for = annotations_of(task).get(Muster.SUMMARY_UID)
        if made_for is None:
            return Both()  # an own task that happens to have this name is none of the host's business
        if summary is None or uid_of(summary) != made_for:
            told = _tell(summary, _said(summary, _waits(summary, "the last attempt ends"))) if summary is not None else []
            return Both([] if is_deleting(task) else [Delete(target_of(task))], told)
        if is_deleting(task):
            return Both()
    if summary is None or (sides.group is not None and not is_member(view_of(TaskResourceGroup, sides.group))):
        return Both()
    if task is None and sides.group is None:
        return _begin(summary, sides)
    here: list[Action] = []
    news: Raw = {}
    if task is not None:
        here += _end_with_host(summary, task)
        news |= _said(summary, _parts(summary, task))
    # What a group of the last attempt had reserved counts for nothing now.
    group = sides.group
    if group is not None and annotations_of(group).get(Muster.SUMMARY_UID, uid_of(summary)) == uid_of(summary):
        patches, changed = _votes(summary, view_of(TaskResourceGroup, group).spec.parties, sides)
        here += patches
        if changed:
            news["resourceStatus"] = changed
    return Both(here, _tell(summary, news))


def _begin(summary: Raw, sides: TaskSides) -> Both:
    """There is no KusciaTask for a summary: make it, if it is the first time, or say why not."""
    status = summary.get("status") or {}
    known = [party.get("phase") for party in status.get("partyTaskStatus") or ()]
    if status.get("phase") in TASK_ENDED or any(phase in TASK_ENDED for phase in known):
        return Both()
    if any(has_voted(entry) for domain in status.get("resourceStatus") or {} for entry in entries_of(status, domain)):
        name = name_of(summary)
        lost = _waits(summary, f"KusciaTask {name} was deleted", phase="Failed", reason=Reason.EVICTED_BY_ADMIN.value)
        absent = [Target(GROUP, "KusciaTask", name, NAMESPACE_CROSS_DOMAIN)]
        return Both([], _tell(summary, _said(summary, lost)), absent)
    made, why = _new_task(summary, sides)
    if made is not None:
        return Both([made])
    return Both([], _tell(summary, _said(summary, _waits(summary, why))))


def _end_with_host(summary: Raw, task: Raw) -> list[Action]:
    """The initiator has ended the task: so does this side."""
    phase, view = (summary.get("status") or {}).get("phase"), view_of(KusciaTask, task)
    if phase not in TASK_ENDED or view.status.phase in TASK_ENDED or Muster.STOP in view.metadata.annotations:
        return []
    code = Reason.SUCCEEDED if phase == "Succeeded" else Reason.STOPPED
    return [Patch(target_of(task), {"metadata": {"annotations": {Muster.STOP: code.value}}})]


def _parts(summary: Raw, task: Raw) -> list[Raw]:
    """How the own parties stand, for the host."""
    status = task.get("status") or {}
    own = (summary.get("status") or {}).get("resourceStatus") or {}
    found = [party for party in status.get("partyTaskStatus") or () if party.get("domainID") in own]
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    if not found and message and reason not in ("", Reason.QUEUED):
        return _waits(summary, message, reason=reason)  # nothing was made yet
    return found


def _tell(summary: Raw, news: Raw) -> list[Action]:
    return [Patch(target_of(summary, at_version=True), {"status": news})] if news else []


def _votes(summary: Raw, parties: Sequence[TaskResourceGroupParty], sides: TaskSides) -> tuple[list[Action], Raw]:
    """What follows for the own TaskResources, and for their entries in the summary."""
    status = summary.get("status") or {}
    by_name = {(namespace_of(raw), name_of(raw)): raw for raw in sides.resources}
    here: list[Action] = []
    changed: list[tuple[TaskResourceGroupParty, Raw]] = []
    for party in parties:
        raw, entry = by_name.get((party.domain_id, party.task_resource_name)), entry_of(status, party)
        if raw is None or entry is None:
            continue
        step = member_step(raw, entry, now=sides.now)
        here += [step.patch] if step.patch is not None else []
        changed += [(party, step.entry)] if step.entry is not None else []
    return here, with_entries(status, changed)


def _said(summary: Raw, parties: Sequence[Raw]) -> Raw:
    """How the own parties stand, where the host does not know it yet."""
    wanted = [{key: value for key, value in party.items() if value} for party in parties]
    known = (summary.get("status") or {}).get("partyTaskStatus") or []
    return {"partyTaskStatus": wanted} if wanted and wanted != known else {}


def _new_task(summary: Raw, sides: TaskSides) -> tuple[Create | None, str]:
    """The KusciaTask to make, or why it can't be made yet."""
    spec = view_of(KusciaTaskSummary, summary).spec
    if sides.job is None:
        return None, f"KusciaJob {spec.job_id or '(none)'} has not arrived yet"
    job = view_of(KusciaJob, sides.job)
    if job.status.phase not in ("Pending", "Running"):
        return None, f"KusciaJob {spec.job_id} is {job.status.phase or 'new'} here"
    found = next((task for task in job.spec.tasks if task.alias == spec.alias), None)
    if found is None:
        return None, f"KusciaJob {spec.job_id} has no task {spec.alias!r}"
    name = name_of(summary)
    hindered = hindrance(found, name, sides.facts)
    if hindered is not None:
        return None, hindered.message
    made = new_task(job, found, name, 0, sides.facts)
    notes = annotations_of(summary)
    kept: dict[str, str] = {key: notes[key] for key in (Muster.ORIGIN_CREATED, Muster.ORIGIN_UID) if key in notes}
    annotations: dict[str, str] = {
        **annotations_of(made),
        **kept,
        KusciaAnnotation.INITIATOR: job.spec.initiator,
        KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR: "false",
        Muster.SUMMARY_UID: uid_of(summary),
    }
    made["metadata"]["annotations"] = annotations
    # How long it may run and whether to try again is for the initiator to decide: it starts an attempt at all parties.
    made["spec"].pop("retry", None)
    made["spec"].pop("activeDeadlineSeconds", None)
    return Create(made), ""


def _waits(summary: Raw, why: str, *, phase: str = "Pending", reason: str = "") -> list[Raw]:
    """The same for all own parties: why they have not begun, for the people at the host."""
    status = summary.get("status") or {}
    return [
        {"domainID": domain, "role": entry.get("role", ""), "phase": phase, "reason": reason, "message": why}
        for domain in status.get("resourceStatus") or {}
        for entry in entries_of(status, domain)
    ]


# -- the controller ------------------------------------------------------------------------------------------------------------

_TASKS, _JOBS = "tasks", "jobs"


def _task(obj: Cached, _caches: Caches) -> Iterable[ObjectKey]:
    return (ObjectKey(_TASKS, obj.key.name),)


def _task_of_resource(obj: Cached, _caches: Caches) -> Iterable[ObjectKey]:
    name = obj.view(TaskResource).metadata.annotations.get(KusciaAnnotation.TASK_RESOURCE_GROUP)
    return (ObjectKey(_TASKS, name),) if name else ()


class Interconn(Controller):
    """One per host. `domain_id` is the master domain of this side; `host` the Store that its initiators write."""

    workers = 2

    def __init__(self, host: Store, domain_id: str, *, name: str = "interconn") -> None:
        self.name = name
        self.host = host
        self.groups = Watch(group=GROUP, kind=GROUP_KIND, view=TaskResourceGroup, keys=_task)
        self.resources = Watch(group=GROUP, kind="TaskResource", view=TaskResource, keys=_task_of_resource)
        self.tasks = Watch(group=GROUP, kind="KusciaTask", view=KusciaTask, keys=_task, namespace=NAMESPACE_CROSS_DOMAIN)
        self.jobs = Watch(group=GROUP, kind="KusciaJob", view=KusciaJob, keys=self._job, namespace=NAMESPACE_CROSS_DOMAIN)
        self.images = Watch(group=GROUP, kind="AppImage", keys=self._waiting)
        self.domains = Watch(group=GROUP, kind="Domain", view=Partner, keys=self._waiting_all, matters=is_other_partner)
        self.task_summaries = Watch(
            group=GROUP,
            kind="KusciaTaskSummary",
            view=KusciaTaskSummary,
            keys=_task,
            namespace=domain_id,
            indexes={"job": lambda one: (one.view(KusciaTaskSummary).spec.job_id,)},
        )
        self.mirrors = Watch(group=GROUP, kind="KusciaJob", view=KusciaJob, keys=self._job, namespace=domain_id)
        self.job_summaries = Watch(group=GROUP, kind="KusciaJobSummary", keys=self._job, namespace=domain_id)
        self.host_watches = (self.task_summaries, self.mirrors, self.job_summaries)
        own = (self.groups, self.resources, self.tasks, self.jobs, self.images, self.domains)
        self.watches = (*own, *self.host_watches)

    def _job(self, obj: Cached, caches: Caches) -> Iterable[ObjectKey]:
        """The job, and its tasks: they wait for it."""
        name = obj.key.name
        tasks = [ObjectKey(_TASKS, one.key.name) for one in caches[self.task_summaries].by_index("job", name)]
        return [ObjectKey(_JOBS, name), *tasks]

    def _waiting(self, _obj: Cached, caches: Caches) -> Iterable[ObjectKey]:
        """Tasks that are not made yet may wait for an AppImage or a Domain."""
        made = caches[self.tasks]
        return [
            ObjectKey(_TASKS, one.key.name)
            for one in caches[self.task_summaries]
            if ObjectKey(NAMESPACE_CROSS_DOMAIN, one.key.name) not in made
        ]

    def _waiting_all(self, obj: Cached, caches: Caches) -> Iterable[ObjectKey]:
        """And so may jobs, for a Domain."""
        made = caches[self.jobs]
        jobs = [one.key.name for one in caches[self.mirrors] if ObjectKey(NAMESPACE_CROSS_DOMAIN, one.key.name) not in made]
        return [*(ObjectKey(_JOBS, name) for name in jobs), *self._waiting(obj, caches)]

    def runner(self, hub: InformerHub, *, clock: Clock, recorder: EventRecorder | None = None) -> Running:
        return InterconnRunner(self, hub, clock=clock, recorder=recorder)

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        """What to do here; `both` says also what to do at the host."""
        return Plan(self.both(key, caches, now).here)

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        both = self.both(key, context.caches, context.clock())
        if await _is_there(both.absent, context):
            return _LAG_S
        await context.executor.apply(both.here)
        await Executor(self.host, self.name).apply(both.host)
        return None

    def both(self, key: ObjectKey, caches: Caches, now: float) -> Both:
        if key.namespace == _JOBS:
            mirror = caches[self.mirrors].get(self._at_host(key.name))
            summary = caches[self.job_summaries].get(self._at_host(key.name))
            job = caches[self.jobs].get(ObjectKey(NAMESPACE_CROSS_DOMAIN, key.name))
            domains = ByName(caches[self.domains], lambda one: one.view(Partner), is_leaving_shown=True)
            return plan_job(_raw(mirror), _raw(summary), _raw(job), domains)
        summary = caches[self.task_summaries].get(self._at_host(key.name))
        group = caches[self.groups].get(ObjectKey("", key.name))
        task = caches[self.tasks].get(ObjectKey(NAMESPACE_CROSS_DOMAIN, key.name))
        raw = _raw(summary)
        job = None
        if raw is not None:
            job = caches[self.jobs].get(ObjectKey(NAMESPACE_CROSS_DOMAIN, str((raw.get("spec") or {}).get("jobID", ""))))
        resources = caches[self.resources].by_index(CONTROLLER_INDEX, group.uid) if group is not None else ()
        return plan_task(
            TaskSides(
                summary=raw,
                job=_raw(job),
                task=_raw(task),
                group=_raw(group) if group is not None and not group.deleting else None,
                resources=[one.raw for one in resources],
                facts=self._facts(caches) if task is None and raw is not None else Facts(),
                now=now,
            )
        )

    def _at_host(self, name: str) -> ObjectKey:
        return ObjectKey(self.task_summaries.namespace or "", name)

    def _facts(self, caches: Caches) -> Facts:
        return Facts(
            parties=ByName(caches[self.domains], lambda one: one.view(Partner).is_partner),
            images=ByName(caches[self.images], lambda one: one.raw),
        )


async def _is_there(targets: Sequence[Target], context: Context) -> bool:
    """Whether any of these exists in the store, though the caches do not show it."""
    for target in targets:
        resource = await context.store.resource(target.group, target.kind)
        with contextlib.suppress(NotFound):
            await context.store.get(resource, target.name, target.namespace or None)
            return True
    return False


def _raw(cached: Cached | None) -> Raw | None:
    return cached.raw if cached is not None else None


class InterconnRunner(Runner):
    """A runner with informers on two stores."""

    def __init__(self, controller: Interconn, hub: InformerHub, *, clock: Clock, recorder: EventRecorder | None = None) -> None:
        super().__init__(controller, hub, clock=clock, recorder=recorder)
        self._host_watches = controller.host_watches
        self._host_hub = InformerHub(controller.host, resync_s=300.0)

    async def _informer(self, watch: Watch) -> Informer:
        if watch not in self._host_watches:
            return await super()._informer(watch)
        return await self._host_hub.informer(
            watch.group, watch.kind, namespace=watch.namespace, view=watch.view, indexes=watch.indexes
        )

    async def run(self, store: Store, fence: Fence | None = None) -> None:
        self._host_hub.start()
        try:
            await super().run(store, fence)
        finally:
            await self._host_hub.stop()
