"""The member's side of tasks whose initiator has another control plane (Kuscia's protocol).

Follows, in the *host*'s store, what stands in the namespace of this side's master domain (`interconn_host` says what), and
keeps its own store in step:

| in the host's store | here |
|---|---|
| KusciaJob (mirror) | KusciaJob in `cross-domain`; the job controller answers for the own parties and starts nothing |
| KusciaJobSummary: stage, phase | labels of that job; its approvals and stages go back |
| KusciaTaskSummary appears | KusciaTask of the same name, with the initiator's age (`muster.dev/origin-*`) |
| its resourceStatus: Reserving, Schedulable, Failed | the phase of the own TaskResources |
| resourceStatus: Reserved, Withdraw; partyTaskStatus | written from the own TaskResources and the KusciaTask |
| phase Failed | the KusciaTask is stopped |
| goes, or is replaced (another attempt) | the KusciaTask is deleted; it is made anew when it is gone |

Two stores can't be written in one step. Each write is safe to repeat, moves forward only and is made with the version that was
read (`interconn_parts`), so that both sides may crash, lag or lose each other at any point. While the host can't be reached,
what is promised stays promised, what runs goes on.

How the host is reached is not the concern of this file: its Store is handed in. `plan_task` and `plan_job` are pure.
Concurrency: as every controller, on one event loop; keys are ("tasks", name) and ("jobs", name).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from muster.controllers.actions import Action, Create, Delete, Executor, Patch, target_of
from muster.controllers.interconn_host import PROTOCOL, Partner, is_other_partner
from muster.controllers.interconn_parts import entries_of, entry_of, member_step, with_entries
from muster.controllers.kuscia_job_tasks import Facts, hindrance, new_task
from muster.controllers.runtime import Caches, Context, Controller, Plan, Runner, Running, Watch
from muster.controllers.task_reservation_parts import API_VERSION, GROUP_KIND, is_member
from muster.objects.kinds.kuscia_base import GROUP
from muster.objects.kinds.kuscia_jobs import KusciaJob
from muster.objects.kinds.kuscia_tasks import (
    KusciaTask,
    KusciaTaskSummary,
    TaskResource,
    TaskResourceGroup,
    TaskResourceGroupParty,
)
from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.meta import annotations_of, labels_of, name_of, namespace_of, uid_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import Raw
from muster.objects.time import Clock
from muster.objects.view import copy_json, view_of
from muster.store.cache import CONTROLLER_INDEX, Cached, ObjectKey
from muster.store.contract import Store
from muster.store.events import EventRecorder
from muster.store.hub import InformerHub
from muster.store.informer import Informer
from muster.store.leases import Fence

_OVER = ("Succeeded", "Failed")


class Both(msgspec.Struct, frozen=True):
    """What to do in each of the two stores."""

    here: Sequence[Action] = ()
    host: Sequence[Action] = ()


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
            return Both([Delete(target_of(task))])
    if summary is None or (sides.group is not None and not is_member(view_of(TaskResourceGroup, sides.group))):
        return Both()
    here: list[Action] = []
    news: Raw = {}
    status = summary.get("status") or {}
    if task is None and sides.group is None:
        if status.get("phase") in _OVER:
            return Both()
        made, why = _new_task(summary, sides)
        if made is not None:
            return Both([made])
        news = _said(summary, _hindered(summary, why))
    if task is not None:
        view = view_of(KusciaTask, task)
        is_stopped = Muster.STOP in view.metadata.annotations
        if status.get("phase") == "Failed" and view.status.phase not in _OVER and not is_stopped:
            here.append(Patch(target_of(task), {"metadata": {"annotations": {Muster.STOP: "Stopped"}}}))
    if sides.group is not None:
        parties = view_of(TaskResourceGroup, sides.group).spec.parties
        own = {party.domain_id for party in parties}
        listed = ((task or {}).get("status") or {}).get("partyTaskStatus") or ()
        news |= _said(summary, [party for party in listed if party.get("domainID") in own])
        patches, changed = _votes(summary, parties, sides)
        here += patches
        if changed:
            news["resourceStatus"] = changed
    return Both(here, [Patch(target_of(summary, at_version=True), {"status": news})] if news else [])


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
    # Whether to try again is for the initiator to decide: it starts an attempt at all parties.
    made["spec"].pop("retry", None)
    return Create(made), ""


def _hindered(summary: Raw, why: str) -> list[Raw]:
    """Why the own parties have not begun, for the people at the host."""
    entries = (summary.get("status") or {}).get("resourceStatus") or {}
    return [
        {"domainID": domain, "role": entry.get("role", ""), "phase": "Pending", "message": why}
        for domain in entries
        for entry in entries_of(summary.get("status") or {}, domain)
    ]


# -- jobs ----------------------------------------------------------------------------------------------------------------------


def plan_job(mirror: Raw | None, summary: Raw | None, job: Raw | None, domains: Mapping[str, Partner]) -> Both:
    """What to do next for a job: `mirror` and `summary` are in the host's store, `job` is here. Pure."""
    if job is not None and annotations_of(job).get(KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR) != "false":
        return Both()  # it was made here
    if mirror is None:
        return Both([Delete(target_of(job))] if job is not None else [])
    if job is None:
        initiator = domains.get(view_of(KusciaJob, mirror).spec.initiator)
        # Nobody starts a job in the name of a party that is ours, or that nobody here knows.
        return Both([Create(_local_job(mirror))] if initiator is not None and initiator.is_partner else [])
    if annotations_of(job).get(Muster.ORIGIN_UID) != annotations_of(mirror).get(Muster.ORIGIN_UID):
        return Both([Delete(target_of(job))])
    if summary is None:
        return Both()
    here: list[Action] = []
    spec = summary.get("spec") or {}
    wanted = {KusciaLabel.JOB_STAGE: spec.get("stage", "Create"), KusciaLabel.JOB_STAGE_TRIGGER: spec.get("stageTrigger", "")}
    news = {key: value for key, value in wanted.items() if value and labels_of(job).get(key, "") != value}
    if news:
        # For people to see; what follows from it comes task by task.
        here.append(Patch(target_of(job), {"metadata": {"labels": news}}))
    own = [party for party in _parties(job) if (found := domains.get(party)) is not None and not found.is_partner]
    known, said = summary.get("status") or {}, job.get("status") or {}
    answer: Raw = {}
    approvals = {party: said["approveStatus"][party] for party in own if (said.get("approveStatus") or {}).get(party)}
    if any((known.get("approveStatus") or {}).get(party) != value for party, value in approvals.items()):
        answer["approveStatus"] = approvals
    stages = {party: stage for party in own if (stage := _stage_of(job, spec.get("stage", "Create"), approvals.get(party)))}
    if any((known.get("stageStatus") or {}).get(party) != value for party, value in stages.items()):
        answer["stageStatus"] = stages
    return Both(here, [Patch(target_of(summary, at_version=True), {"status": answer})] if answer else [])


def _stage_of(job: Raw, stage: str, approval: str | None) -> str:
    """How the command went here. Tasks follow the initiator's one by one, so there is nothing to fail but the job itself."""
    phase = (job.get("status") or {}).get("phase", "")
    if stage == "Create" and approval is None:
        return ""
    return f"Job{stage}Stage{'Failed' if phase == 'Failed' and stage in ('Create', 'Start') else 'Succeeded'}"


def _parties(job: Raw) -> list[str]:
    view = view_of(KusciaJob, job)
    return list(dict.fromkeys(party.domain_id for task in view.spec.tasks for party in task.parties))


def _local_job(mirror: Raw) -> Raw:
    notes = annotations_of(mirror)
    kept = {key: notes[key] for key in (Muster.ORIGIN_CREATED, Muster.ORIGIN_UID, KusciaAnnotation.INITIATOR) if key in notes}
    labels = {key: value for key, value in labels_of(mirror).items() if key.startswith(KusciaLabel.JOB_CUSTOM_FIELD_PREFIX)}
    return {
        "apiVersion": API_VERSION,
        "kind": "KusciaJob",
        "metadata": {
            "name": name_of(mirror),
            "namespace": NAMESPACE_CROSS_DOMAIN,
            "labels": {**labels, KusciaLabel.INTERCONN_PROTOCOL_TYPE: PROTOCOL},
            "annotations": {**kept, KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR: "false"},
        },
        "spec": copy_json(mirror.get("spec") or {}),
    }


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
        await context.executor.apply(both.here)
        await Executor(self.host, self.name).apply(both.host)
        return None

    def both(self, key: ObjectKey, caches: Caches, now: float) -> Both:
        if key.namespace == _JOBS:
            mirror = caches[self.mirrors].get(self._at_host(key.name))
            summary = caches[self.job_summaries].get(self._at_host(key.name))
            job = caches[self.jobs].get(ObjectKey(NAMESPACE_CROSS_DOMAIN, key.name))
            domains = {one.key.name: one.view(Partner) for one in caches[self.domains]}
            return plan_job(_raw(mirror), _raw(summary), _raw(job), domains)
        summary = caches[self.task_summaries].get(self._at_host(key.name))
        group = caches[self.groups].get(ObjectKey("", key.name))
        task = caches[self.tasks].get(ObjectKey(NAMESPACE_CROSS_DOMAIN, key.name))
        if task is not None and task.deleting:
            return Both()
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
        parties = {one.key.name: one.view(Partner).is_partner for one in caches[self.domains] if not one.deleting}
        return Facts(parties=parties, images={one.key.name: one.raw for one in caches[self.images] if not one.deleting})


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
