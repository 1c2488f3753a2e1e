"""Finished jobs go: by age, and the oldest first when there are too many or they take too much room.

KusciaJobs, and Jobs (muster.dev), which may have an age of their own (`ttlSecondsAfterFinished`). The limits are in the
ConfigMap `kube-system/muster-jobs` and take effect at once:

| key | default | meaning |
|---|---|---|
| `finishedHours` | 720 | how long a job is kept after its end |
| `finishedMax` | 10000 | how many finished jobs are kept |
| `finishedBytesMax` | 256Mi | the size of all finished jobs and their tasks together, as stored JSON |

A value that can't be read is reported (Event `ConfigurationInvalid` on the ConfigMap, log) and the one before stays in force.
A job that has not ended, that still has a task under way, or that carries the annotation `muster.dev/keep: "true"` is never
touched. A job is deleted only in the very state in which it was judged, so one that is being restarted stays.

`plan` and `read_limits` are pure. Concurrency: as every controller; there is one key. Jobs are looked at when one ends, at most
every `SCAN_S` seconds however many do, and when the next one will be too old.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from prometheus_client import Counter, Gauge

from muster.controllers.actions import Action, Delete, Emit, Target, Together
from muster.controllers.kuscia_job_tasks import TaskView
from muster.controllers.runtime import Caches, Context, Controller, Plan, Watch
from muster.objects.kinds.kuscia_base import GROUP
from muster.objects.kinds.kuscia_jobs import FINAL_PHASES
from muster.objects.labels import Muster
from muster.objects.names import NAMESPACE_CROSS_DOMAIN, NAMESPACE_SYSTEM
from muster.objects.quantity import Quantity
from muster.objects.reasons import Reason
from muster.objects.time import format_time, time_or
from muster.objects.view import View
from muster.store.cache import CONTROLLER_INDEX, Cached, ObjectKey
from muster.store.events import WARNING, reference_to

log = logging.getLogger(__name__)

KEPT = Gauge("muster_finished_jobs", "Finished jobs that are kept.")
KEPT_MAX = Gauge("muster_finished_jobs_max", "Finished jobs that may be kept.")
KEPT_BYTES = Gauge("muster_finished_jobs_bytes", "Size of the finished jobs and their tasks.")
KEPT_BYTES_MAX = Gauge("muster_finished_jobs_bytes_max", "Size that finished jobs and their tasks may have.")
CLEANED = Counter("muster_jobs_cleaned_up", "Finished jobs deleted, by what they were deleted for.", ["limit"])

CONFIG_NAME: Final = "muster-jobs"
SCAN_S: Final = 60.0
DELETES_MAX: Final = 500
"""Jobs deleted at one time; the rest follows a second later."""
FINISHED_INDEX: Final = "finished-jobs"
_HOURS_MAX: Final = 24 * 366 * 100
_COUNT_MAX: Final = 10_000_000
_KEYS: Final = ("finishedHours", "finishedMax", "finishedBytesMax")
_KEY: Final = ObjectKey("", "finished")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    age_s: float = 720 * 3600.0
    count_max: int = 10_000
    bytes_max: int = 256 * 1024 * 1024


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has ended. `ttl_s` is its own age limit."""

    ended_s: float
    target: Target
    size_bytes: int = 0
    ttl_s: float | None = None

    @property
    def order(self) -> tuple[float, str, str, str]:
        """Oldest first; among those of one second by kind and name, so that the choice is the same everywhere."""
        return self.ended_s, self.target.kind, self.target.namespace, self.target.name


class Verdicts(msgspec.Struct, frozen=True):
    """What is to go, oldest first, with the limit that each broke; and when the next one will be too old."""

    doomed: Sequence[tuple[Finished, str]]
    next_s: float | None


def plan(finished: Iterable[Finished], limits: Limits, now: float) -> Verdicts:
    """Age first; what is left goes from the oldest on until it is within the other two limits."""
    doomed: list[tuple[Finished, str]] = []
    kept: list[Finished] = []
    for job in sorted(finished, key=lambda job: job.order):
        if now - job.ended_s >= _age_s(job, limits):
            doomed.append((job, "age"))
        else:
            kept.append(job)
    count, size = len(kept), sum(job.size_bytes for job in kept)
    for job in kept:
        if count <= limits.count_max and size <= limits.bytes_max:
            break
        doomed.append((job, "count" if count > limits.count_max else "bytes"))
        count -= 1
        size -= job.size_bytes
    left = kept[len(kept) - count :]
    next_s = min((job.ended_s + _age_s(job, limits) - now for job in left), default=None)
    return Verdicts(doomed, next_s)


def _age_s(job: Finished, limits: Limits) -> float:
    return limits.age_s if job.ttl_s is None else job.ttl_s


def read_limits(data: Mapping[str, Any], before: Limits) -> tuple[Limits, list[str]]:
    """The limits of a ConfigMap, and what is wrong with it. A value that is wrong leaves the one before, none the default."""
    errors = [f"data.{key}: is not known; there are {', '.join(_KEYS)}" for key in data if key not in _KEYS]
    default = Limits()

    def read(key: str, old: float, fallback: float, scale: float, most: float) -> float:
        if key not in data:
            return fallback
        try:
            amount = Quantity.parse(str(data[key]).strip()).fraction()
        except ValueError:
            amount = None
        if amount is None or not 0 <= amount <= most:
            errors.append(f"data.{key}: {data[key]!r} is not a number from 0 to {most:g}; {old / scale:g} stays in force")
            return old
        return float(amount) * scale

    age_s = read("finishedHours", before.age_s, default.age_s, 3600.0, _HOURS_MAX)
    count = read("finishedMax", before.count_max, default.count_max, 1.0, _COUNT_MAX)
    size = read("finishedBytesMax", before.bytes_max, default.bytes_max, 1.0, 2**53)
    return Limits(age_s=age_s, count_max=math.floor(count), bytes_max=math.floor(size)), errors


# -- the controller ---------------------------------------------------------------------------------------------------------


class _Meta(View):
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class _Spec(View):
    ttl_seconds_after_finished: int | None = None


class _Status(View):
    phase: str = ""
    completion_time: str = ""


class EndView(View):
    """Of either kind of job, how it ended."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def ended_s(self) -> float | None:
        """None while it has not ended, or is to be kept."""
        if self.status.phase not in FINAL_PHASES or self.metadata.annotations.get(Muster.KEEP, "").lower() == "true":
            return None
        return time_or(self.status.completion_time, None)


def _by_finished(job: Cached) -> Iterable[str]:
    return ("yes",) if job.view(EndView).ended_s is not None else ()


def _job_keys(job: Cached, _caches: Caches) -> Iterable[ObjectKey]:
    return (_KEY,) if job.view(EndView).ended_s is not None else ()


# Those in the parties' own namespaces are copies for partners, and go with the job.
KUSCIA_JOBS = Watch(
    group=GROUP,
    kind="KusciaJob",
    view=EndView,
    namespace=NAMESPACE_CROSS_DOMAIN,
    keys=_job_keys,
    indexes={FINISHED_INDEX: _by_finished},
)
OWN_JOBS = Watch(group="muster.dev", kind="Job", view=EndView, keys=_job_keys, indexes={FINISHED_INDEX: _by_finished})
TASKS = Watch(group=GROUP, kind="KusciaTask", view=TaskView, namespace=NAMESPACE_CROSS_DOMAIN, keys=lambda _task, _caches: ())
CONFIG = Watch(
    group="",
    kind="ConfigMap",
    namespace=NAMESPACE_SYSTEM,
    field_selector=f"metadata.name={CONFIG_NAME}",
    keys=lambda _config, _caches: (_KEY,),
)


class JobCleanup(Controller):
    """One key stands for all finished jobs."""

    name = "job-cleanup"
    watches = (KUSCIA_JOBS, OWN_JOBS, TASKS, CONFIG)

    def __init__(self) -> None:
        self._limits = Limits()
        self._config_version = ""
        self._errors: list[str] = []
        self._scan_s = -math.inf
        """When the jobs are to be looked at next."""
        self._sizes: dict[str, tuple[str, int]] = {}
        """By uid: version and size of what was measured; an object is encoded once for each of its versions."""

    def reconcile(self, key: ObjectKey, caches: Caches, now: float) -> Plan:
        actions = self._read_config(caches)
        if now < self._scan_s:
            return Plan(actions, self._scan_s - now)
        finished, is_held = self._finished(caches)
        verdicts = plan(finished, self._limits, now)
        doomed = verdicts.doomed[:DELETES_MAX]
        if doomed:
            actions.append(Together(tuple(Delete(job.target) for job, _ in doomed)))
        waits_s = [verdicts.next_s] if verdicts.next_s is not None else []
        if len(doomed) < len(verdicts.doomed):
            waits_s.append(1.0)
        if is_held:
            waits_s.append(SCAN_S)
        wait_s = max(min(waits_s), 1.0) if waits_s else None
        self._scan_s = now + min(SCAN_S, wait_s or SCAN_S)
        KEPT.set(len(finished) - len(doomed))
        KEPT_MAX.set(self._limits.count_max)
        KEPT_BYTES.set(sum(job.size_bytes for job in finished) - sum(job.size_bytes for job, _ in doomed))
        KEPT_BYTES_MAX.set(self._limits.bytes_max)
        for job, limit in doomed:
            CLEANED.labels(limit).inc()
            log.info(
                "%s is deleted: it ended at %s, and is beyond the limit on %s", job.target, format_time(job.ended_s), limit
            )
        return Plan(actions, wait_s)

    async def handle(self, key: ObjectKey, context: Context) -> float | None:
        try:
            return await super().handle(key, context)
        except Exception:
            self._scan_s = -math.inf  # a job changed meanwhile, or the store did not answer: judge anew at the next try
            raise

    def _read_config(self, caches: Caches) -> list[Action]:
        config = caches[CONFIG].get(ObjectKey(NAMESPACE_SYSTEM, CONFIG_NAME))
        version = config.resource_version if config is not None else ""
        if version == self._config_version:
            return []
        self._config_version = version
        self._scan_s = -math.inf
        raw = config.raw if config is not None else {}
        before, said = self._limits, self._errors
        self._limits, self._errors = read_limits(raw.get("data") or {}, before)
        if self._limits != before:
            log.info("limits on finished jobs are now %s", self._limits)
        if not self._errors or self._errors == said:
            return []
        message = "; ".join(self._errors)
        log.warning("ConfigMap %s/%s: %s", NAMESPACE_SYSTEM, CONFIG_NAME, message)
        return [Emit(reference_to(raw), WARNING, Reason.CONFIGURATION_INVALID.value, message[:1000])]

    def _finished(self, caches: Caches) -> tuple[list[Finished], bool]:
        """And whether one is left out because a task of it is under way."""
        found: list[Finished] = []
        is_held = False
        sizes: dict[str, tuple[str, int]] = {}
        for watch in (KUSCIA_JOBS, OWN_JOBS):
            for job in caches[watch].by_index(FINISHED_INDEX, "yes"):
                view = job.view(EndView)
                tasks = caches[TASKS].by_index(CONTROLLER_INDEX, job.uid)
                if view.ended_s is None or job.deleting:
                    continue
                if not all(task.view(TaskView).has_ended for task in tasks):
                    is_held = True
                    continue
                target = Target(watch.group, watch.kind, job.key.name, job.key.namespace, job.uid, job.resource_version)
                size = sum(self._size(obj, sizes) for obj in (job, *tasks))
                ttl = view.spec.ttl_seconds_after_finished
                found.append(Finished(ended_s=view.ended_s, target=target, size_bytes=size, ttl_s=ttl))
        self._sizes = sizes
        return found, is_held

    def _size(self, obj: Cached, sizes: dict[str, tuple[str, int]]) -> int:
        known = self._sizes.get(obj.uid)
        if known is None or known[0] != obj.resource_version:
            known = obj.resource_version, len(msgspec.json.encode(obj.raw))
        sizes[obj.uid] = known
        return known[1]
