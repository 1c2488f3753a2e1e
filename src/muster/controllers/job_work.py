"""What pods say about the work that they are part of (`muster.engine.work`), as their jobs say it: Job and KusciaTask. Pure.

A Job says it in its spec and status. A KusciaJob says it in labels and annotations (`muster.dev/queue`, `muster.dev/user` and
so on), which its tasks carry on. What an administrator does to its place (`muster.dev/hold`, `muster.dev/pin`) is an annotation
of both.

What is kept of an attempt that gave way: as many whole checkpoint intervals as it ran, from when all its replicas were up. What
came after the last one is lost, and without an interval everything is. An attempt that failed by itself keeps nothing: what it
saved may be what it failed of.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from muster.controllers.actions import Action, Emit, Patch, Target, Together
from muster.engine.work import PIN_MAX, Work, decode_work, encode_work
from muster.objects.acts import Standing, acts_between, acts_of
from muster.objects.amounts import limit_amounts
from muster.objects.kinds.kuscia_tasks import KusciaTask
from muster.objects.kinds.muster_jobs import Job, JobStatus
from muster.objects.labels import KusciaAnnotation, Muster
from muster.objects.meta import annotations_of, labels_of, metadata_of, name_of, namespace_of
from muster.objects.status import Raw
from muster.objects.time import time_or
from muster.store.events import NORMAL

SAID_MAX: Final = 512
"""Pods that are told of a change in one go; the rest follow when these are seen."""
CARRIED_NOTES: Final = (
    Muster.ESTIMATE_SECONDS,
    Muster.TYPE,
    Muster.DEADLINE,
    Muster.CHECKPOINT_SECONDS,
    Muster.HOLD,
    Muster.PIN,
)
"""Annotations that go from a KusciaJob to its tasks, besides the labels that all carry, and follow it as they change."""
HOLD_LEN_MAX: Final = 500
_ATTRIBUTES_MAX: Final = 64
_NUMBERED = re.compile(r"([-_.]\d+)+$")


def job_work(raw: Raw, job: Job) -> Work:
    """Of a Job."""
    spec, status = job.spec, job.status
    notes = annotations_of(raw)
    created = time_or(str(metadata_of(raw).get("creationTimestamp") or ""), 0.0)
    return Work(
        job=f"Job/{namespace_of(raw)}/{name_of(raw)}",
        queue=spec.queue,
        user=spec.user,
        type=spec.type,
        name=common_name(raw),
        level=spec.priority,
        attributes=dict(sorted(spec.attributes.items())[:_ATTRIBUTES_MAX]),
        estimate_s=float(spec.estimate.run_seconds) if spec.estimate is not None and spec.estimate.run_seconds else None,
        estimate_use=_amounts(spec.estimate.resources) if spec.estimate is not None else {},
        deadline=time_or(spec.deadline, None),
        preemptible=spec.preemptible,
        checkpoint_s=float(spec.checkpoint_interval_seconds) if spec.checkpoint_interval_seconds else None,
        submitted=time_or(status.submitted_time, created),
        attained_s=status.attained_seconds,
        preemptions=status.preemptions,
        hold=hold_of(notes),
        pin=pin_of(notes),
    )


def task_work(task: Raw, view: KusciaTask) -> Work:
    """Of a KusciaTask, which is what waits in a queue. Its level is the priority of its pods."""
    notes = annotations_of(task)
    said = {**notes, **labels_of(task)}
    job, alias = notes.get(KusciaAnnotation.JOB_ID, ""), notes.get(KusciaAnnotation.TASK_ALIAS, "")
    return Work(
        job=f"KusciaTask/{namespace_of(task)}/{name_of(task)}",
        queue=said.get(Muster.QUEUE, ""),
        user=said.get(Muster.USER, ""),
        group=said.get(Muster.GROUP, ""),
        type=said.get(Muster.TYPE, ""),
        name=f"{_NUMBERED.sub('', job)}/{alias}" if job and alias else common_name(task),
        estimate_s=_positive(said.get(Muster.ESTIMATE_SECONDS)),
        deadline=time_or(said.get(Muster.DEADLINE, ""), None),
        preemptible=said.get(Muster.PREEMPTIBLE) == "true",
        checkpoint_s=_positive(said.get(Muster.CHECKPOINT_SECONDS)),
        submitted=time_or(view.metadata.creation_timestamp, 0.0),
        attained_s=view.status.attained_seconds,
        preemptions=view.status.preemptions,
        hold=hold_of(notes),
        pin=pin_of(notes),
    )


def work_notes(work: Work) -> dict[str, str]:
    """The annotation of the pods."""
    return {Muster.WORK: encode_work(work)}


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has not ended, and what it says of its work."""

    namespace: str
    name: str
    uid: str
    work: str
    is_bound: bool
    version: str = ""


def said_anew(raw: Raw, work: Work, pods: Sequence[Said]) -> list[Action]:
    """Say on pods that were made earlier what has changed since: a hold, a pin, another queue, another estimate. And, when an
    administrator did it, as an event of the job.

    An attempt that has begun to be placed stays whose it is and in its queue: there it was found to be within the limits, and
    there its use counts. A job that is moved at that very moment goes to the other queue with its next attempt."""
    begun = next((found for pod in pods if pod.is_bound and (found := decode_work(pod.work)).job), None)
    if begun is not None:
        work = msgspec.structs.replace(work, queue=begun.queue, user=begun.user, group=begun.group)
    text = encode_work(work)
    old = sorted((pod for pod in pods if pod.work != text), key=lambda pod: (pod.namespace, len(pod.name), pod.name))
    if not old:
        return []
    before = decode_work(old[0].work)
    acts = acts_between(_standing(before), _standing(work)) if before.job else []
    notes: Raw = {Muster.WORK: text}
    meta: Raw = {"annotations": notes}
    is_moved = before.queue != work.queue
    if is_moved:
        notes[Muster.QUEUE] = None  # some pods have it as an annotation as well
        meta["labels"] = {Muster.QUEUE: work.queue or None}
    # A pod that was bound meanwhile must not be moved: it is seen again first.
    versions = {pod.uid: pod.version if is_moved else "" for pod in old}
    patches = [
        Patch(Target("", "Pod", pod.name, pod.namespace, pod.uid, versions[pod.uid]), {"metadata": meta})
        for pod in old[:SAID_MAX]
    ]
    who = {act.act: act for act in acts_of(annotations_of(raw))}
    return [Together(tuple(patches)), *(Emit(raw, NORMAL, act.act, str(who.get(act.act, act))) for act in acts)]


def _standing(work: Work) -> Standing:
    return Standing(work.hold or None, None if work.pin is None else str(work.pin), work.queue)


def attained_s(job: Job, now: float) -> float:
    """What is kept if the present attempt gives way now, with what was kept before."""
    return job.status.attained_seconds + saved_s(job.status, job.spec.checkpoint_interval_seconds, now)


def saved_s(status: JobStatus, interval_s: float | None, now: float) -> float:
    """Of the present attempt: whole intervals since all of it was up."""
    began = time_or(status.running_time, None) if status.phase == "Running" else None
    return _whole_intervals_s(began, interval_s, now)


def task_attained_s(task: Raw, view: KusciaTask, now: float) -> float:
    """The same of a KusciaTask, whose parties all run since its condition `Running` is true."""
    running = next((one for one in view.status.conditions if one.type == "Running" and one.status == "True"), None)
    began = time_or(running.last_transition_time, None) if running is not None else None
    interval_s = _positive({**annotations_of(task), **labels_of(task)}.get(Muster.CHECKPOINT_SECONDS))
    return view.status.attained_seconds + _whole_intervals_s(began, interval_s, now)


def _whole_intervals_s(began: float | None, interval_s: float | None, now: float) -> float:
    if began is None or not interval_s:
        return 0.0
    return math.floor(max(now - began, 0.0) / interval_s) * float(interval_s)


def common_name(raw: Raw) -> str:
    """What runs of the same work have in common: the name before a generated tail or a number."""
    prefix = str(metadata_of(raw).get("generateName") or "").rstrip("-_.")
    return prefix or _NUMBERED.sub("", name_of(raw)) or name_of(raw)


def hold_of(notes: Mapping[str, Any]) -> str:
    """Why it is held; empty when it is not. An empty annotation holds too: it is there on purpose."""
    if Muster.HOLD not in notes:
        return ""
    return str(notes[Muster.HOLD]).strip()[:HOLD_LEN_MAX] or "held by an administrator"


def pin_of(notes: Mapping[str, Any]) -> int | None:
    """Its place before all others; None where it has none, or none that can be read."""
    text = str(notes.get(Muster.PIN, "")).strip()
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > len(str(PIN_MAX)):
        return None
    return max(min(int(text), PIN_MAX), -PIN_MAX)


def _amounts(resources: Mapping[str, Any]) -> dict[str, float]:
    """In the engine's units; what can't be read is left out (rules refuse it earlier)."""
    found: dict[str, float] = {}
    for name, value in sorted(resources.items())[:_ATTRIBUTES_MAX]:
        try:
            found |= limit_amounts(name, value)
        except ValueError:
            continue
    return found


def _positive(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None
