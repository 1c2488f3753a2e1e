"""Runs KusciaJobs: reads the caches, asks `kuscia_job_plan.plan` what to do, and does it.

Keys are KusciaJobs of the namespace `cross-domain`. A job is looked at when it, one of its KusciaTasks, a Domain or an
AppImage that it names changes. Its tasks are found by their owner, its Domains and AppImages by name: work per job does not
grow with the number of jobs.

Concurrency: as every controller; several jobs at once, each by one worker. This controller alone writes KusciaJob.status,
except for what partners say of themselves (`approveStatus`, `stageStatus` under their own ids) and approvals that people give.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from prometheus_client import Counter, Gauge

from muster.controllers.actions import Action, Create, PatchStatus
from muster.controllers.kuscia_job_plan import plan
from muster.controllers.kuscia_job_tasks import Facts, Taken, TaskView, task_name
from muster.controllers.parties import DomainView, comes_or_goes, is_party
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch, controller_key
from muster.objects.job_stages import BEFORE_RUNNING
from muster.objects.kinds.kuscia_base import GROUP
from muster.objects.kinds.kuscia_jobs import KusciaJob
from muster.objects.labels import KusciaAnnotation
from muster.objects.meta import annotations_of, controller_of
from muster.objects.names import NAMESPACE_CROSS_DOMAIN
from muster.objects.status import BadRequest, Invalid, Raw, RequestEntityTooLarge
from muster.store.cache import CONTROLLER_INDEX, Cached, ObjectKey
from muster.store.informer import Change

JOBS_BY_PHASE = Gauge("muster_kuscia_jobs", "KusciaJobs by phase.", ["phase"])
TRANSITIONS = Counter("muster_kuscia_job_transitions", "KusciaJobs that entered a phase.", ["phase"])

PARTY_INDEX: Final = "unfinished-jobs-by-party"
IMAGE_INDEX: Final = "unfinished-jobs-by-image"
_LARGE_TASKS: Final = 100
_TASKS_PER_S: Final = 4_000.0
"""A job with more than `_LARGE_TASKS` is written so often that this many entries of tasks go out in a second: with 2,000 tasks
every half second."""
_LAG_S: Final = 1.0
"""How long the cache is waited for after a write; its arrival wakes the job before that."""
_UNFINISHED: Final = (*BEFORE_RUNNING, "Running")


def _by_party(job: Cached) -> Iterable[str]:
    view = job.view(KusciaJob)
    if view.status.phase not in _UNFINISHED:
        return ()
    named = (party.domain_id for task in view.spec.tasks for party in task.parties)
    return tuple(dict.fromkeys((view.spec.initiator, *named)))


def _by_image(job: Cached) -> Iterable[str]:
    view = job.view(KusciaJob)
    return tuple(dict.fromkeys(task.app_image for task in view.spec.tasks)) if view.status.phase in _UNFINISHED else ()


def _image_matters(change: Change) -> bool:
    return change.old is None or change.new is None or change.old.resource_version != change.new.resource_version


# Those in the parties' own namespaces are copies for partners, and run elsewhere.
JOBS = Watch(
    group=GROUP,
    kind="KusciaJob",
    view=KusciaJob,
    namespace=NAMESPACE_CROSS_DOMAIN,
    indexes={PARTY_INDEX: _by_party, IMAGE_INDEX: _by_image},
)
TASKS = Watch(
    group=GROUP,
    kind="KusciaTask",
    view=TaskView,
    namespace=NAMESPACE_CROSS_DOMAIN,
    keys=controller_key(GROUP, "KusciaJob"),
)
DOMAINS = Watch(
    group=GROUP,
    kind="Domain",
    view=DomainView,
    keys=lambda domain, caches: [job.key for job in caches[JOBS].by_index(PARTY_INDEX, domain.key.name)],
    matters=comes_or_goes,
)
IMAGES = Watch(
    group=GROUP,
    kind="AppImage",
    keys=lambda image, caches: [job.key for job in caches[JOBS].by_index(IMAGE_INDEX, image.key.name)],
    matters=_image_matters,
)


class _Written(NamedTuple):
    """A status was written at this moment, from this version of the job."""

    version: str
    at_s: float


class KusciaJobs(Controller):
    """With `workload_approval`, own parties other than the initiator are asked too; a person answers for them."""

    name = "kuscia-job"
    watches = (JOBS, TASKS, DOMAINS, IMAGES)
    workers = 4

    def __init__(self, *, workload_approval: bool = False) -> None:
        self._workload_approval = workload_approval
        self._phases: dict[ObjectKey, str] = {}
        self._written: dict[ObjectKey, _Written] = {}
        """The last write of a status; of jobs that are there."""

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        return self._plan(key, caches, now, {})

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        wait_s = self._pause_s(key, context.caches, context.clock())
        if wait_s > 0:
            return wait_s
        job = context.caches[JOBS].get(key)
        version = job.resource_version if job is not None else ""
        decided = self.reconcile(key, context.caches, context.clock())
        refused = await _apply(decided.actions, context)
        if version and any(isinstance(action, PatchStatus) for action in decided.actions):
            self._written[key] = _Written(version, context.clock())
        self._count(key, context.caches, decided)
        if refused and not any(isinstance(action, PatchStatus) for action in decided.actions):
            # What the server will never take must not be tried for ever: the task has failed, and the plan goes on from there.
            # Where the status was just written, the cache does not have that yet; this comes with the next look at the job.
            decided = self._plan(key, context.caches, context.clock(), refused)
            await context.executor.apply(decided.actions)
        return decided.requeue_after_s

    def _pause_s(self, key: ObjectKey, caches: Caches, now: float) -> float:
        """How long to wait before looking at the job. What was written last comes into the cache first: a plan from the version
        before it would only be refused. And changes gather: each write of a large job is large, and many tasks may end at once.
        """
        job, written = caches[JOBS].get(key), self._written.get(key)
        if job is None:
            self._written.pop(key, None)
        if job is None or written is None:
            return 0.0
        count = len(job.view(KusciaJob).spec.tasks)
        gap_s = count / _TASKS_PER_S if count >= _LARGE_TASKS else 0.0
        if written.version == job.resource_version:
            gap_s = max(gap_s, _LAG_S)
        return gap_s - (now - written.at_s) if written.at_s <= now else 0.0

    def _plan(self, key: ObjectKey, caches: Caches, now: float, refused: dict[str, str]) -> Plan:
        job = caches[JOBS].get(key)
        if job is None or job.deleting:
            return Plan()
        if job.view(KusciaJob).metadata.annotations.get(KusciaAnnotation.PARTY_MASTER_DOMAIN) == job.key.namespace:
            return Plan()  # a copy for a partner's control plane, which looks after it
        live = [task.view(TaskView) for task in caches[TASKS].by_index(CONTROLLER_INDEX, job.uid)]
        return plan(job.view(KusciaJob), live, self._facts(job, caches, refused), now)

    def _facts(self, job: Cached, caches: Caches, refused: dict[str, str]) -> Facts:
        spec = job.view(KusciaJob).spec
        parties: dict[str, bool] = {}
        for party in dict.fromkeys((spec.initiator, *(p.domain_id for task in spec.tasks for p in task.parties))):
            domain = caches[DOMAINS].get(ObjectKey("", party))
            if domain is not None and is_party(domain):
                parties[party] = domain.view(DomainView).is_partner
        images: dict[str, Raw] = {}
        for name in dict.fromkeys(task.app_image for task in spec.tasks):
            image = caches[IMAGES].get(ObjectKey("", name))
            if image is not None and not image.deleting:
                images[name] = image.raw
        taken: dict[str, Taken] = {}
        for task in spec.tasks:
            name = task_name(job.key.name, job.uid, task)
            other = caches[TASKS].get(ObjectKey(job.key.namespace, name))
            if other is not None and other.controller_uid != job.uid:
                taken[name] = _taken(other, caches)
        return Facts(parties=parties, images=images, taken=taken, refused=refused, workload_approval=self._workload_approval)

    def _count(self, key: ObjectKey, caches: Caches, decided: Plan) -> None:
        before = self._phases.pop(key, None)
        if before is not None:
            JOBS_BY_PHASE.labels(before).dec()
        job = caches[JOBS].get(key)
        if job is None:
            return
        old: str = job.view(KusciaJob).status.phase
        written = (a.status.get("phase") for a in decided.actions if isinstance(a, PatchStatus))
        phase = next((str(phase) for phase in written if phase), old)
        if phase != old:
            TRANSITIONS.labels(phase).inc()
        self._phases[key] = phase
        JOBS_BY_PHASE.labels(phase).inc()


async def _apply(actions: Iterable[Action], context: Context) -> dict[str, str]:
    """Carry them out; by alias, what the server said to tasks that it refused for good."""
    refused: dict[str, str] = {}
    for action in actions:
        try:
            await context.executor.apply([action])
        except (Invalid, BadRequest, RequestEntityTooLarge) as error:
            if not isinstance(action, Create):
                raise
            refused[annotations_of(action.object)[KusciaAnnotation.TASK_ALIAS]] = str(error)
    return refused


def _taken(other: Cached, caches: Caches) -> Taken:
    owner = controller_of(other.raw)
    if owner is None:
        return Taken("nobody", is_leaving=other.deleting)
    kind, name = str(owner.get("kind", "")), str(owner.get("name", ""))
    is_job_gone = False
    if kind == "KusciaJob":
        live = caches[JOBS].get(ObjectKey(other.key.namespace, name))
        is_job_gone = live is None or live.uid != other.controller_uid
    return Taken(f"{kind} {name}", is_leaving=other.deleting or is_job_gone)
