"""The initiator's side of tasks with partners that have their own control plane (Kuscia's protocol).

For each partner control plane there is, in the namespace of its master domain, what concerns it:

| object | written here | written by the member |
|---|---|---|
| KusciaJob (mirror) | the job as the initiator has it, without task ids | |
| KusciaJobSummary | stage, trigger, phase, reason | approvals and stages of its own parties, commands (`interconn_stages`) |
| KusciaTaskSummary | the initiator's decisions for each of its TaskResources | its votes, and how its part of the task stands |

The member's words go from there to where this control plane reads them: votes onto the TaskResources that stand for the
partner's (`interconn_parts`), approvals and stages into the job's status. How a task stands at a partner is read by the task
controller from the summary itself.

A KusciaTaskSummary belongs to the TaskResourceGroup, and goes with it: another attempt has another summary. The copies of
a job belong to nobody (owners can't be in another namespace), and go when their job is gone.

`plan_task` and `plan_job` are pure. Concurrency: as every controller; keys are groups ("tasks") and jobs ("jobs").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from muster.controllers.actions import Action, Create, Delete, Patch, PatchStatus, target_of
from muster.controllers.interconn_parts import entry_of, host_step, with_entries
from muster.controllers.interconn_stages import command_in, command_on, is_taken, stage_labels, stage_patch
from muster.controllers.runtime import ByName, Caches, Controller, Plan, Watch
from muster.controllers.task_reservation_parts import GROUP_KIND, is_member
from muster.objects.conditions import is_true
from muster.objects.kinds.kuscia_base import API_VERSION, GROUP
from muster.objects.kinds.kuscia_jobs import KusciaJob
from muster.objects.kinds.kuscia_tasks import KusciaTask, TaskResource, TaskResourceGroup, TaskResourceGroupParty
from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.meta import annotations_of, labels_of, name_of, namespace_of, owner_reference
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.reason_codes import Reason
from muster.objects.status import Raw
from muster.objects.view import View, copy_json, view_of
from muster.store.cache import CONTROLLER_INDEX, Cached, ObjectKey
from muster.store.informer import Change

PROTOCOL = "kuscia"
_CARRIED = (
    KusciaAnnotation.INITIATOR,
    KusciaAnnotation.JOB_ID,
    KusciaAnnotation.TASK_ALIAS,
    Muster.ORIGIN_CREATED,
    Muster.ORIGIN_UID,
    Muster.ATTEMPT,
)


class PartnerSpec(View):
    role: str = ""
    master: str = ""
    inter_conn_protocols: list[str] = msgspec.field(default_factory=list)


class Partner(View):
    """Of a Domain, who looks after it."""

    spec: PartnerSpec = msgspec.field(default_factory=PartnerSpec)

    @property
    def is_partner(self) -> bool:
        return self.spec.role == "partner" and (
            not self.spec.inter_conn_protocols or self.spec.inter_conn_protocols[0] == PROTOCOL
        )


def master_of(domain_id: str, domains: Mapping[str, Partner]) -> str:
    """The domain in whose namespace a partner's control plane looks for its objects; empty when it is no partner of ours."""
    found = domains.get(domain_id)
    return (found.spec.master or domain_id) if found is not None and found.is_partner else ""


# -- tasks ---------------------------------------------------------------------------------------------------------------------


def plan_task(
    group: Raw,
    resources: Sequence[Raw],
    summaries: Mapping[str, Raw],
    domains: Mapping[str, Partner],
    *,
    phase: str,
    now: float,
) -> Plan:
    """What to do for the partners of a task: `resources` are those that the group owns, `summaries` its own by namespace,
    `phase` that of the KusciaTask. Pure."""
    view = view_of(TaskResourceGroup, group)
    if view.metadata.deletion_timestamp or is_member(view) or view.status.phase in ("", "Pending", "Creating"):
        return Plan()
    by_name = {(namespace_of(raw), name_of(raw)): raw for raw in resources}
    by_master: dict[str, list[TaskResourceGroupParty]] = {}
    for party in view.spec.out_of_controlled_parties:
        if master := master_of(party.domain_id, domains):
            by_master.setdefault(master, []).append(party)
    actions: list[Action] = []
    for master, parties in by_master.items():
        summary = summaries.get(master)
        lost: list[Raw] = []
        status = (summary.get("status") or {}) if summary is not None else {}
        changed: list[tuple[TaskResourceGroupParty, Raw]] = []
        for party in parties:
            raw = by_name.get((party.domain_id, party.task_resource_name))
            if raw is None:
                continue
            if summary is None and is_true((raw.get("status") or {}).get("conditions"), "Reserved"):
                lost.append(_lost_party(view, party, master))
            step = host_step(raw, entry_of(status, party), party.role, now=now)
            changed += [(party, step.entry)] if step.entry is not None else []
            actions += [step.patch] if step.patch is not None else []
        fields: Raw = {"phase": phase} if phase and status.get("phase") != phase else {}
        if summary is None:
            status = {"phase": phase or "Pending", "resourceStatus": with_entries({}, changed)}
            if lost:
                status["partyTaskStatus"] = lost
            actions.append(Create(_summary(group, master, status)))
        elif changed or fields:
            if changed:
                fields["resourceStatus"] = with_entries(status, changed)
            actions.append(Patch(target_of(summary, at_version=True), {"status": fields}))
    return Plan(actions)


def _lost_party(group: TaskResourceGroup, party: TaskResourceGroupParty, master: str) -> Raw:
    """It had promised, and the summary that says so was deleted: the member ends what it has, so this attempt is over."""
    message = f"KusciaTaskSummary {master}/{group.metadata.name} was deleted"
    status = {"domainID": party.domain_id, "phase": "Failed", "reason": Reason.EVICTED_BY_ADMIN.value, "message": message}
    return {**status, **({"role": party.role} if party.role else {})}


def _summary(group: Raw, namespace: str, status: Raw) -> Raw:
    notes = annotations_of(group)
    labels = {KusciaLabel.INTERCONN_PROTOCOL_TYPE: PROTOCOL}
    if task_uid := labels_of(group).get(KusciaLabel.TASK_UID):
        labels[KusciaLabel.TASK_UID] = task_uid
    return {
        "apiVersion": API_VERSION,
        "kind": "KusciaTaskSummary",
        "metadata": {
            "name": name_of(group),
            "namespace": namespace,
            "labels": labels,
            "annotations": {name: notes[name] for name in _CARRIED if name in notes},
            "ownerReferences": [owner_reference(group)],
        },
        "spec": {
            "alias": notes.get(KusciaAnnotation.TASK_ALIAS) or name_of(group),
            "jobID": notes.get(KusciaAnnotation.JOB_ID) or name_of(group),
        },
        "status": status,
    }


# -- jobs ----------------------------------------------------------------------------------------------------------------------


def plan_job(
    name: str, job: Raw | None, mirrors: Sequence[Raw], summaries: Sequence[Raw], domains: Mapping[str, Partner]
) -> Plan:
    """What to do for the partners of a job; `mirrors` and `summaries` are its copies in their namespaces. Pure."""
    ours = [raw for raw in (*mirrors, *summaries) if labels_of(raw).get(KusciaLabel.INTERCONN_PROTOCOL_TYPE) == PROTOCOL]
    if job is None:
        return Plan([Delete(target_of(raw)) for raw in ours])
    view = view_of(KusciaJob, job)
    uid = view.metadata.uid
    stale = [raw for raw in ours if labels_of(raw).get(KusciaLabel.JOB_UID) != uid]
    if stale:
        return Plan([Delete(target_of(raw)) for raw in stale])
    if view.metadata.deletion_timestamp or master_of(view.spec.initiator, domains) or view.spec.initiator not in domains:
        return Plan()
    parties = dict.fromkeys(party.domain_id for task in view.spec.tasks for party in task.parties)
    by_master: dict[str, list[str]] = {}
    for party in parties:
        if master := master_of(party, domains):
            by_master.setdefault(master, []).append(party)
    there = {(str(raw.get("kind")), namespace_of(raw)): raw for raw in ours}
    actions: list[Action] = []
    for master, partners in by_master.items():
        if ("KusciaJob", master) not in there:
            actions.append(Create(_mirror(job, view, master)))
        summary = there.get(("KusciaJobSummary", master))
        if summary is None:
            actions.append(Create(_job_summary(job, view, master, partners)))
        else:
            actions += _exchange(job, view, summary, partners)
    return Plan(actions)


def _exchange(job: Raw, view: KusciaJob, summary: Raw, partners: Sequence[str]) -> list[Action]:
    """The stage and phase to the member, its approvals, stages and commands from it."""
    actions: list[Action] = []
    ours, theirs = command_on(job, view.spec.initiator), command_in(summary)
    if is_taken(theirs, ours, partners):
        return [Patch(target_of(job, at_version=True), {"metadata": {"labels": stage_labels(theirs)}})]
    status = summary.get("status") or {}
    patch: Raw = {}
    if theirs.version <= ours.version and not ours.problem and stage_labels(theirs) != stage_labels(ours):
        patch |= stage_patch(ours)
    said_here = {"phase": view.status.phase or None, "reason": view.status.reason or None}
    if news_here := {key: value for key, value in said_here.items() if status.get(key) != value}:
        patch["status"] = news_here
    if patch:
        actions.append(Patch(target_of(summary, at_version=True), patch))
    known = job.get("status") or {}
    said: Raw = {}
    for field in ("approveStatus", "stageStatus"):
        told = status.get(field) or {}
        news = {
            party: told[party] for party in partners if told.get(party) and (known.get(field) or {}).get(party) != told[party]
        }
        if news:
            said[field] = news
    if said:
        actions.append(PatchStatus(target_of(job, at_version=True), said))
    return actions


def _copy_meta(job: Raw, view: KusciaJob, namespace: str, partners: Sequence[str]) -> Raw:
    return {
        "name": name_of(job),
        "namespace": namespace,
        "labels": {
            **{key: value for key, value in labels_of(job).items() if key.startswith(KusciaLabel.JOB_CUSTOM_FIELD_PREFIX)},
            KusciaLabel.INTERCONN_PROTOCOL_TYPE: PROTOCOL,
            KusciaLabel.JOB_UID: view.metadata.uid,
        },
        "annotations": {
            KusciaAnnotation.INITIATOR: view.spec.initiator,
            KusciaAnnotation.PARTY_MASTER_DOMAIN: namespace,
            **({KusciaAnnotation.INTERCONN_KUSCIA_PARTIES: "_".join(partners)} if partners else {}),
            Muster.ORIGIN_CREATED: view.metadata.creation_timestamp,
            Muster.ORIGIN_UID: view.metadata.uid,
            # That its work may be interrupted is the initiator's to say; how urgent it is at a partner is not.
            **(
                {Muster.PREEMPTIBLE: value}
                if (value := {**annotations_of(job), **labels_of(job)}.get(Muster.PREEMPTIBLE))
                else {}
            ),
        },
    }


def _mirror(job: Raw, view: KusciaJob, namespace: str) -> Raw:
    spec = copy_json(job.get("spec") or {})
    for task in spec.get("tasks", ()):
        task.pop("taskID", None)
    return {"apiVersion": API_VERSION, "kind": "KusciaJob", "metadata": _copy_meta(job, view, namespace, ()), "spec": spec}


def _job_summary(job: Raw, view: KusciaJob, namespace: str, partners: Sequence[str]) -> Raw:
    stage = stage_patch(command_on(job, view.spec.initiator))
    meta = _copy_meta(job, view, namespace, partners)
    meta["labels"] |= stage.get("metadata", {}).get("labels", {})
    return {
        "apiVersion": API_VERSION,
        "kind": "KusciaJobSummary",
        "metadata": meta,
        "status": {"phase": view.status.phase} if view.status.phase else {},
        "spec": stage["spec"],
    }


# -- the controller ------------------------------------------------------------------------------------------------------------

_TASKS, _JOBS = "tasks", "jobs"


def _own_task(obj: Cached, caches: Caches) -> Iterable[ObjectKey]:
    return _task(obj.key.name, caches)


def _task_of_resource(obj: Cached, caches: Caches) -> Iterable[ObjectKey]:
    name = obj.view(TaskResource).metadata.annotations.get(KusciaAnnotation.TASK_RESOURCE_GROUP)
    return _task(name, caches) if name else ()


def _task(name: str, caches: Caches) -> Iterable[ObjectKey]:
    """Most tasks have no partners, and nothing is to be done for them."""
    group = caches[GROUPS].get(ObjectKey("", name))
    is_alone = group is not None and not group.view(TaskResourceGroup).spec.out_of_controlled_parties
    return () if is_alone else (ObjectKey(_TASKS, name),)


def _own_job(obj: Cached, _caches: Caches) -> Iterable[ObjectKey]:
    return (ObjectKey(_JOBS, obj.key.name),)


def _all_open(_obj: Cached, caches: Caches) -> Iterable[ObjectKey]:
    """A Domain has changed: whatever has partners may have others now."""
    tasks = [
        ObjectKey(_TASKS, one.key.name)
        for one in caches[GROUPS].select()
        if one.view(TaskResourceGroup).spec.out_of_controlled_parties
    ]
    return [*tasks, *(ObjectKey(_JOBS, one.key.name) for one in caches[JOBS].select(NAMESPACE_CROSS_DOMAIN))]


def is_other_partner(change: Change) -> bool:
    """Nodes report often and change a Domain's status; here it matters who looks after it."""
    return change.old is None or change.new is None or change.old.view(Partner) != change.new.view(Partner)


GROUPS = Watch(group=GROUP, kind=GROUP_KIND, view=TaskResourceGroup, keys=_own_task)
RESOURCES = Watch(group=GROUP, kind="TaskResource", view=TaskResource, keys=_task_of_resource)
TASKS = Watch(group=GROUP, kind="KusciaTask", view=KusciaTask, keys=_own_task)
TASK_SUMMARIES = Watch(group=GROUP, kind="KusciaTaskSummary", keys=_own_task)
JOBS = Watch(group=GROUP, kind="KusciaJob", view=KusciaJob, keys=_own_job, indexes={"name": lambda one: (one.key.name,)})
JOB_SUMMARIES = Watch(group=GROUP, kind="KusciaJobSummary", keys=_own_job, indexes={"name": lambda one: (one.key.name,)})
DOMAINS = Watch(
    group=GROUP,
    kind="Domain",
    view=Partner,
    keys=_all_open,
    matters=is_other_partner,
)


class InterconnHost(Controller):
    """Keys are ("tasks", group) and ("jobs", job)."""

    name = "interconn-host"
    watches = (GROUPS, RESOURCES, TASKS, TASK_SUMMARIES, JOBS, JOB_SUMMARIES, DOMAINS)
    workers = 2

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        domains = ByName(caches[DOMAINS], lambda one: one.view(Partner), is_leaving_shown=True)
        if key.namespace == _JOBS:
            job = caches[JOBS].get(ObjectKey(NAMESPACE_CROSS_DOMAIN, key.name))
            copies = [one.raw for one in caches[JOBS].by_index("name", key.name) if one.key.namespace != NAMESPACE_CROSS_DOMAIN]
            summaries = [one.raw for one in caches[JOB_SUMMARIES].by_index("name", key.name)]
            return plan_job(key.name, job.raw if job is not None else None, copies, summaries, domains)
        group = caches[GROUPS].get(ObjectKey("", key.name))
        if group is None or group.deleting:
            return Plan()
        resources = [one.raw for one in caches[RESOURCES].by_index(CONTROLLER_INDEX, group.uid)]
        own = caches[TASK_SUMMARIES].by_index(CONTROLLER_INDEX, group.uid)
        task = caches[TASKS].get(ObjectKey(NAMESPACE_CROSS_DOMAIN, key.name))
        phase = task.view(KusciaTask).status.phase if task is not None else ""
        return plan_task(group.raw, resources, {one.key.namespace: one.raw for one in own}, domains, phase=phase, now=now)
