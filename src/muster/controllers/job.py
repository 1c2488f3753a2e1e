"""Job (muster.dev): carries one owner's work from its submission to its end. `job_plan` decides; here are watches and writes.

Watches Jobs, and the pods, PodGroups and Services that carry the label `muster.dev/job`, and PriorityClasses of its own. A
pod that a plan takes for lost is looked up in the store before anything follows from it.

What the server refuses to create is told in the job's status: for good when the object itself is wrong (Invalid), else the job
waits with `CreationRefused` and the server's words, and it is tried again, slower each time.

Concurrency: one worker per key, several keys at once; see `runtime`. Only this controller writes phase, attempts and counts.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from muster.controllers.actions import Executor, PatchStatus, target_of
from muster.controllers.job_plan import ACTIVE, ENDED, Present, Situation, plan
from muster.controllers.job_pod_facts import PodFacts, facts_of
from muster.controllers.job_status import conditions_for, end
from muster.controllers.pod_views import PodView
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch
from muster.objects.job_pods import priority_class_name
from muster.objects.kinds.muster_jobs import Job, JobStatus
from muster.objects.labels import Kubernetes, Muster
from muster.objects.meta import controller_of, generation_of, is_deleting, resource_version_of, uid_of
from muster.objects.reason_codes import Reason
from muster.objects.rules.muster_jobs import check_spec
from muster.objects.rules.report import Report
from muster.objects.status import ApiError, BadRequest, Conflict, Forbidden, Invalid, Raw
from muster.objects.view import view_of
from muster.store.cache import CONTROLLER_INDEX, Cached, ObjectKey
from muster.store.contract import Store

GROUP, KIND = "muster.dev", "Job"
_MADE = frozenset({"pod", "pods", "service", "services", "podgroup", "podgroups", "priorityclass", "priorityclasses"})
"""Kinds of what is made, as errors name them."""
_CAUSES_MAX = 5
_MESSAGE_LEN_MAX = 1_000


def _job_of(obj: Cached, _caches: Caches) -> Iterable[ObjectKey]:
    """By label, since pods are kept without their owners; who bears a foreign label wakes a job that has nothing to do."""
    return (ObjectKey(obj.key.namespace, obj.labels[Muster.JOB]),) if Muster.JOB in obj.labels else ()


JOBS = Watch(group=GROUP, kind=KIND)
PODS = Watch(group="", kind="Pod", view=PodView, keep="nothing", label_selector=Muster.JOB, keys=_job_of)
GROUPS = Watch(group="scheduling.sigs.k8s.io", kind="PodGroup", label_selector=Muster.JOB, keys=_job_of)
SERVICES = Watch(group="", kind="Service", label_selector=Muster.JOB, keys=_job_of)
PRIORITIES = Watch(
    group="scheduling.k8s.io",
    kind="PriorityClass",
    label_selector=f"{Kubernetes.MANAGED_BY}=muster",
    keep="nothing",
    keys=lambda _one, _caches: (),
)
"""So that a job does not have to try to make one that is there. One that is missed is made by the next job that needs it."""


class JobController(Controller):
    """Keys are Jobs."""

    name = "job"
    watches = (JOBS, PODS, GROUPS, SERVICES, PRIORITIES)
    # A worker mostly waits for the disk, and writes that wait together share a flush.
    workers = 32

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        raise NotImplementedError("a lost pod is looked up in the store before it is believed: see handle")

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        cached = context.caches[JOBS].get(key)
        if cached is None or cached.deleting:
            return None
        raw = cached.raw
        at = situation(raw, _pods(cached, context.caches), _present(cached, context.caches, raw), context.clock())
        found = plan(at)
        if found is None:
            fresh = await _read_pods(raw, context.store)
            found = plan(msgspec.structs.replace(at, pods=fresh, is_fresh=True))
            assert found is not None, f"{key}: pods from the store are fresh"
        try:
            await context.executor.apply(found.actions)
        except (Forbidden, Invalid, BadRequest, Conflict) as error:
            if not _is_about_creation(error):
                raise
            await _tell(at, error, context.executor, context.store)
            raise
        return found.requeue_after_s


def situation(raw: Raw, pods: list[PodFacts], present: Present, now: float) -> Situation:
    """What `plan` decides on. A spec that can't be read is one that is invalid."""
    try:
        job = view_of(Job, raw)
    except msgspec.ValidationError as error:
        return _unreadable(raw, pods, now, str(error))
    invalid = ""
    if job.status.phase not in (*ACTIVE, *ENDED) or job.status.reason == Reason.STOPPED.value:
        report = Report()
        check_spec(report, raw)
        invalid = "; ".join(f"{cause.field}: {cause.message}" for cause in report.causes[:_CAUSES_MAX])[:_MESSAGE_LEN_MAX]
    return Situation(raw=raw, job=job, pods=pods, present=present, now=now, invalid=invalid)


def _unreadable(raw: Raw, pods: list[PodFacts], now: float, error: str) -> Situation:
    """A stand-in with one role of one replica: such a job can only fail, which needs no more."""
    try:
        status = view_of(JobStatus, raw.get("status") or {})
    except msgspec.ValidationError:
        status = JobStatus()
    status = status if status.phase in ENDED else msgspec.structs.replace(status, phase="")
    head: Raw = {"apiVersion": f"{GROUP}/v1alpha1", "kind": KIND, "metadata": raw.get("metadata")}
    job = view_of(Job, {**head, "spec": {"roles": [{"name": "unreadable"}]}})
    job = msgspec.structs.replace(job, status=msgspec.structs.replace(status, attempts=0))
    return Situation(raw=raw, job=job, pods=pods, now=now, invalid=f"spec can't be read: {error}"[:_MESSAGE_LEN_MAX])


def _pods(job: Cached, caches: Caches) -> list[PodFacts]:
    return [facts_of(pod.view(PodView), pod.resource_version) for pod in caches[PODS].by_index(CONTROLLER_INDEX, job.uid)]


def _present(job: Cached, caches: Caches, raw: Raw) -> Present:
    priority = (raw.get("spec") or {}).get("priority")
    known = caches[PRIORITIES].get(ObjectKey("", priority_class_name(priority))) if isinstance(priority, int) else None
    groups = caches[GROUPS].by_index(CONTROLLER_INDEX, job.uid)
    services = caches[SERVICES].by_index(CONTROLLER_INDEX, job.uid)
    return Present(
        frozenset(group.key.name for group in groups if not group.deleting),
        any(service.key.name == job.key.name and not service.deleting for service in services),
        known is not None and not known.deleting,
    )


async def _read_pods(job: Raw, store: Store) -> list[PodFacts]:
    meta = job["metadata"]
    selector = f"{Muster.JOB}={meta['name']}"
    page = await store.list(await store.resource("", "Pod"), meta["namespace"], label_selector=selector)
    own = [pod for pod in page.items if (controller_of(pod) or {}).get("uid") == uid_of(job)]
    return [facts_of(view_of(PodView, pod), resource_version_of(pod)) for pod in own]


# -- what the server refuses --------------------------------------------------------------------------------------------------


def _is_about_creation(error: ApiError) -> bool:
    """Whether it is about an object of the job; a conflict about the job itself only means that the cache was behind.

    What can't be read at all, because of values of wrong types, is not the status that we write; kube-apiserver says no kind.
    """
    return error.kind.lower() in _MADE or isinstance(error, BadRequest)


async def _tell(at: Situation, error: ApiError, executor: Executor, store: Store) -> None:
    """Write into the status what the server said. The status may have been written in the same plan, so it is read again."""
    live = await store.get(await store.resource(GROUP, KIND), at.raw["metadata"]["name"], at.raw["metadata"]["namespace"])
    status = live.get("status") or {}
    if uid_of(live) != uid_of(at.raw) or is_deleting(live) or status.get("phase") != "Queued":
        return
    message = str(error)[:_MESSAGE_LEN_MAX]
    if isinstance(error, Invalid | BadRequest):
        change = end(at.now, "Failed", Reason.MANIFEST_INVALID, message)
    else:
        change = {"phase": "Queued", "reason": Reason.CREATION_REFUSED.value, "message": message}
    if all(status.get(key) == change[key] for key in ("phase", "reason", "message")):
        return
    conditions = conditions_for(live, change["phase"], change["reason"], message, at.now)
    new = {**change, "conditions": conditions, "observedGeneration": generation_of(live)}
    await executor.apply([PatchStatus(target_of(live, at_version=True), new)])
