"""The KusciaTasks of a job: what they are called, how they are made, and what is read of them. Pure.

A task's name follows from the job alone, so that a controller that crashed and begins again finds what it made. Each carries
the run of the job that it was made for (`muster.dev/run`): after a restart that tells the old one from the new one, though
both have the same name.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from muster.controllers.job_work import CARRIED_NOTES
from muster.controllers.kuscia_job_shares import PartyTotal, pod_shares, totals_text
from muster.objects.bandwidth_demands import PODS_MAX, deploy_template
from muster.objects.kinds.kuscia_base import API_VERSION, TASK_ENDED
from muster.objects.kinds.kuscia_jobs import JobParty, JobTask, KusciaJob
from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.names import LABEL_LEN_MAX
from muster.objects.reasons import Reason
from muster.objects.status import Raw
from muster.objects.view import View, to_raw
from muster.objects.words import whole_number

CONTROLLER_VALUE: Final = "kuscia-job"
_HASH_LEN: Final = 12
_FOLLOWED: Final[tuple[str, ...]] = (Muster.QUEUE, *CARRIED_NOTES)
"""Of the labels and annotations that are carried, those that tasks take over as the job changes: the job decides for all."""
_CARRIED: Final[tuple[str, ...]] = (Muster.PRIORITY_CLASS, Muster.PREEMPTIBLE, Muster.USER, Muster.GROUP, *_FOLLOWED)
"""Labels and annotations of the job that its tasks have too."""


class TaskMeta(View):
    name: str = ""
    uid: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class TaskStatus(View):
    phase: str = ""
    reason: str = ""
    message: str = ""
    progress: float = 0
    attempts: int = 0
    preemptions: int = 0
    start_time: str = ""
    completion_time: str = ""


class TaskView(View):
    """A KusciaTask, as far as its job is concerned."""

    metadata: TaskMeta = msgspec.field(default_factory=TaskMeta)
    status: TaskStatus = msgspec.field(default_factory=TaskStatus)

    @property
    def alias(self) -> str:
        return self.metadata.annotations.get(KusciaAnnotation.TASK_ALIAS, "")

    @property
    def run(self) -> int:
        return whole_number(self.metadata.annotations.get(Muster.RUN, ""))

    @property
    def has_ended(self) -> bool:
        return self.status.phase in TASK_ENDED

    @property
    def is_deleting(self) -> bool:
        return bool(self.metadata.deletion_timestamp)

    @property
    def is_told_to_stop(self) -> bool:
        return Muster.STOP in self.metadata.annotations


class Taken(msgspec.Struct, frozen=True):
    """Somebody else's KusciaTask that has the name of one of ours."""

    owner: str
    """For messages: `KusciaJob other`."""
    is_leaving: bool
    """It is on its way out: it is being deleted, or its job is gone."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan needs to know beside the job and its tasks; only what concerns this job."""

    parties: Mapping[str, bool] = {}
    """Domain to whether it is a partner, one with a control plane of its own. What is not here is no Domain."""
    images: Mapping[str, Raw] = {}
    """AppImage by name."""
    taken: Mapping[str, Taken] = {}
    """By task name."""
    refused: Mapping[str, str] = {}
    """By alias: what the API server said when it refused the KusciaTask for good."""
    workload_approval: bool = False
    """Own parties are asked too."""


class Hindrance(msgspec.Struct, frozen=True):
    """Why a task that is ready is not made. `is_final`: it never will be, in this run of the job."""

    reason: Reason
    message: str
    is_final: bool = False


def takes_part(job: KusciaJob, facts: Facts) -> bool:
    """Whether another control plane decides about the job: it came from there, or its initiator has one of its own."""
    is_copy = job.metadata.annotations.get(KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR) == "false"
    return is_copy or facts.parties.get(job.spec.initiator) is True


def task_name(job_name: str, job_uid: str, task: JobTask) -> str:
    """The name of the KusciaTask: as the job says, else made of the job's name and a hash, at most a DNS label long."""
    return task.task_id or _made_up_name(job_name, job_uid, task.alias)


@functools.lru_cache(maxsize=65_536)
def _made_up_name(job_name: str, job_uid: str, alias: str) -> str:
    digest = hashlib.sha256(f"{job_uid}\0{alias}".encode()).hexdigest()[:_HASH_LEN]
    prefix = re.sub(r"[^a-z0-9-]", "-", job_name.lower())[: LABEL_LEN_MAX - _HASH_LEN - 1].strip("-")
    return f"{prefix}-{digest}" if prefix else digest


def hindrance(task: JobTask, name: str, facts: Facts) -> Hindrance | None:
    """What stands in the way of making the task now; None when nothing does."""
    if task.alias in facts.refused:
        return Hindrance(Reason.TASK_REFUSED, facts.refused[task.alias], is_final=True)
    taken = facts.taken.get(name)
    if taken is not None:
        if taken.is_leaving:
            return Hindrance(
                Reason.RESTARTING, f"KusciaTask {name} of {taken.owner} is being deleted; this one is made after it"
            )
        message = f"KusciaTask {name} exists and belongs to {taken.owner}; give the task another taskID, or none"
        return Hindrance(Reason.TASK_NAME_TAKEN, message, is_final=True)
    for party in task.parties:
        if party.domain_id not in facts.parties:
            return Hindrance(Reason.PARTY_UNKNOWN, f"there is no Domain {party.domain_id}; create it")
    own = [party for party in task.parties if not facts.parties[party.domain_id]]
    image = facts.images.get(task.app_image)
    if own and image is None:
        return Hindrance(Reason.APP_IMAGE_NOT_FOUND, f"there is no AppImage {task.app_image}; create it")
    for party in own:
        if not _containers(deploy_template(image or {}, party.role)):
            role = f"the role {party.role!r}" if party.role else "a party without a role"
            message = f"AppImage {task.app_image} has no deploy template with containers for {role} (party {party.domain_id})"
            return Hindrance(Reason.DEPLOY_TEMPLATE_NOT_FOUND, message)
    return None


def new_task(job: KusciaJob, task: JobTask, name: str, run: int, facts: Facts) -> Raw:
    """The KusciaTask to create."""
    meta = job.metadata
    annotations = {k: meta.annotations[k] for k in _CARRIED if k in meta.annotations}
    annotations |= {KusciaAnnotation.JOB_ID: meta.name, KusciaAnnotation.TASK_ALIAS: task.alias, Muster.RUN: str(run)}
    totals = [
        PartyTotal(domain_id=party.domain_id, role=party.role, resources=to_raw(party.resources))
        for party in task.parties
        if party.resources is not None
    ]
    if totals:
        annotations[Muster.PARTY_RESOURCES] = totals_text(totals)
    labels = {k: meta.labels[k] for k in _CARRIED if k in meta.labels}
    labels |= {KusciaLabel.CONTROLLER: CONTROLLER_VALUE, KusciaLabel.JOB_UID: meta.uid}
    owner = {"apiVersion": API_VERSION, "kind": "KusciaJob", "name": meta.name, "uid": meta.uid}
    spec: Raw = {
        "initiator": job.spec.initiator,
        "taskInputConfig": task.task_input_config,
        "scheduleConfig": to_raw(task.schedule_config) if task.schedule_config is not None else {},
        "parties": [_party(party, task, facts.images.get(task.app_image)) for party in task.parties],
    }
    if task.retry is not None:
        spec["retry"] = to_raw(task.retry)
    if task.active_deadline_seconds:
        spec["activeDeadlineSeconds"] = task.active_deadline_seconds
    return {
        "apiVersion": API_VERSION,
        "kind": "KusciaTask",
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": spec,
    }


def carried_anew(job: KusciaJob, task: TaskView) -> Raw:
    """The labels and annotations of the task that are not as the job has them by now, as a merge patch of its metadata."""
    found: Raw = {}
    for word in ("labels", "annotations"):
        wanted, known = getattr(job.metadata, word), getattr(task.metadata, word)
        other = {key: wanted.get(key) for key in _FOLLOWED if wanted.get(key) != known.get(key)}
        if other:
            found[word] = other
    return found


def _party(party: JobParty, task: JobTask, image: Raw | None) -> Raw:
    raw: Raw = {"domainID": party.domain_id, "appImageRef": task.app_image}
    if party.role:
        raw["role"] = party.role
    if party.bandwidth_limits:
        raw["bandwidthLimits"] = [to_raw(limit) for limit in party.bandwidth_limits]
    template = deploy_template(image or {}, party.role)
    names = _containers(template)
    resources = to_raw(party.resources) if party.resources is not None else {}
    if resources and names:
        replicas = _replicas(template)
        shares = pod_shares(resources, replicas=replicas, containers=len(names), pod=0)
        containers = [{"name": name, "resources": share} for name, share in zip(names, shares, strict=True)]
        # The shares hold for this number of pods, whatever becomes of the AppImage.
        raw["template"] = {"replicas": replicas, "spec": {"containers": containers}}
    return raw


def _containers(template: Mapping[str, Any]) -> list[str]:
    containers = (template.get("spec") or {}).get("containers") or ()
    return [str(container.get("name", "")) for container in containers if isinstance(container, dict)]


def _replicas(template: Mapping[str, Any]) -> int:
    replicas = template.get("replicas")
    return replicas if isinstance(replicas, int) and not isinstance(replicas, bool) and 1 <= replicas <= PODS_MAX else 1
