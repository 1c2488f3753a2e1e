"""A job while it is being planned: where each task stands, the status to be, and the writes that follow from it. Pure.

A `Draft` belongs to one call of `plan` and is thrown away after it. `result` turns it into actions, in an order that makes a
crash between any two of them harmless:

1. the status, with the version of the job that was read. A task is recorded before it is created, so a plan made from an old
   copy of the job runs into the newer version here, before it has done anything;
2. the Event about a new phase;
3. stopping, deleting and creating tasks, each of which can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from muster.controllers.actions import Action, Create, Delete, Emit, Patch, PatchStatus, Target, Together
from muster.controllers.kuscia_job_graph import FAILED, SKIPPED, SUCCEEDED, WAITING, Graph
from muster.controllers.kuscia_job_tasks import Facts, TaskView, carried_anew, new_task, takes_part, task_name
from muster.controllers.runtime import Plan
from muster.objects.conditions import ConditionStatus, set_condition, without_condition
from muster.objects.kinds.kuscia_base import API_VERSION, GROUP
from muster.objects.kinds.kuscia_jobs import (
    FINAL_PHASES,
    JobTask,
    JobTaskStatus,
    KusciaJob,
    KusciaJobStatus,
    PartyTaskCreateStatus,
)
from muster.objects.kinds.shapes import PlainCondition
from muster.objects.labels import Muster
from muster.objects.reasons import Reason
from muster.objects.rules.kuscia_jobs import job_problems
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import to_raw
from muster.store.events import NORMAL, WARNING

_MESSAGES_LEN_MAX: Final = 128 * 1024
"""Of all tasks together: a job of 2,000 tasks must still fit into one object."""
_MESSAGE_LEN_MAX: Final = 1024
SHOWN_MAX: Final = 3
"""Problems, or names, that a message lists."""
_PENDING, _RUNNING = "Pending", "Running"
_SUCCEEDED: Final[Literal["Succeeded", "Failed"]] = "Succeeded"
_FAILED: Final[Literal["Succeeded", "Failed"]] = "Failed"
_NOT_MADE: Final = (Reason.TASK_REFUSED.value, Reason.TASK_NAME_TAKEN.value)
"""Reasons of a task that failed without ever having been made."""


class Standing(msgspec.Struct, kw_only=True):
    """One task of the job at this moment."""

    task: JobTask
    name: str
    record: JobTaskStatus
    run: int = 0
    live: TaskView | None = None
    """Its KusciaTask, when it is the one of this run."""
    stale: TaskView | None = None
    """A KusciaTask of an earlier run that has to go before it is made again."""
    phase: str = WAITING
    reason: str = ""
    message: str = ""
    is_lost: bool = False
    """It was recorded as created and is not to be seen: the cache lags, a crash came between, or somebody deleted it."""

    @property
    def alias(self) -> str:
        return self.task.alias

    @property
    def has_ended(self) -> bool:
        return self.phase in (SUCCEEDED, FAILED, SKIPPED)

    @property
    def lives(self) -> bool:
        """Whether a KusciaTask of it may still hold something."""
        return any(task is not None and not task.has_ended for task in (self.live, self.stale))

    @property
    def is_rerun(self) -> bool:
        """Whether it is to run again although what is left of it may have succeeded."""
        return self.stale is not None and self.record.reason == Reason.RERUNNING.value

    def say(self, phase: str, reason: str, message: str = "") -> None:
        self.phase, self.reason, self.message = phase, reason, message


def standing_of(job: KusciaJob, task: JobTask, record: JobTaskStatus, found: TaskView | None) -> Standing:
    """From the record and from what is there. What has ended stays ended, also when somebody deletes its KusciaTask."""
    name = found.metadata.name if found is not None else task_name(job.metadata.name, job.metadata.uid, task)
    standing = Standing(task=task, name=name, record=record, run=record.run)
    if found is None:
        if record.phase in (SUCCEEDED, FAILED, SKIPPED):
            standing.say(record.phase, record.reason, record.message)
        standing.is_lost = record.phase in (_PENDING, _RUNNING)
        return standing
    # One that succeeded after all, while the restart was being prepared, is kept unless it is to run again anyway.
    is_kept = found.status.phase == SUCCEEDED and record.reason != Reason.RERUNNING.value
    if found.run < record.run and not is_kept:
        standing.stale = found
        standing.reason = (Reason.RERUNNING if standing.is_rerun else Reason.RESTARTING).value
        standing.message = f"waits until KusciaTask {name} of run {found.run} is gone"
        return standing
    standing.live, standing.run = found, found.run
    if found.is_deleting and not found.has_ended:
        standing.say(_PENDING, Reason.RESTARTING.value, f"KusciaTask {name} is being deleted; it is made again after that")
    else:
        standing.say(found.status.phase or _PENDING, found.status.reason or _default_reason(found), found.status.message)
    return standing


def _default_reason(found: TaskView) -> str:
    reasons = {SUCCEEDED: Reason.SUCCEEDED, _RUNNING: Reason.STARTED, FAILED: Reason.PARTY_FAILED}
    return reasons.get(found.status.phase, Reason.QUEUED).value


class Draft:
    """See the module."""

    def __init__(self, job: KusciaJob, live: Sequence[TaskView], facts: Facts, now: float) -> None:
        self.job, self.facts, self.now = job, facts, now
        self.graph = Graph.of(job.spec.tasks)
        status = self.before = job.status
        self.phase: str = status.phase
        self.reason, self.message = status.reason, status.message
        self.approve: dict[str, Any] = dict(status.approve_status)
        self.stage_status: dict[str, Any] = dict(status.stage_status)
        self.conditions: list[Raw] = [to_raw(condition) for condition in status.conditions]
        self.stage, self.stage_version, self.run = status.stage, status.stage_version, status.run
        self.start_time, self.completion_time = status.start_time, status.completion_time
        self.events: list[Action] = []
        records = {record.alias: record for record in status.tasks}
        # Where a partner is the initiator its names are taken over, and the alias tells which task it is.
        is_member = takes_part(job, facts)
        found = {task.alias if is_member else task.metadata.name: task for task in live}
        self.standings: dict[str, Standing] = {}
        for task in job.spec.tasks:
            record = records.get(task.alias) or JobTaskStatus(alias=task.alias)
            key = task.alias if is_member else task_name(job.metadata.name, job.metadata.uid, task)
            self.standings.setdefault(task.alias, standing_of(job, task, record, found.pop(key, None)))
        self.orphans: list[TaskView] = list(found.values())
        """KusciaTasks of this job that its spec does not know."""
        self._patches: list[Patch] = []
        self._deletes: list[Delete] = []
        self._creates: list[Create] = []

    # -- reading -----------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Standing]:
        return iter(self.standings.values())

    @property
    def newer(self) -> TaskView | None:
        """A KusciaTask of a later run than the job knows of: then the job that was read is out of date."""
        return next((s.live for s in self if s.live is not None and s.live.run > self.job.status.run), None)

    @property
    def phases(self) -> dict[str, str]:
        return {standing.alias: standing.phase for standing in self}

    @property
    def parties(self) -> list[str]:
        """The initiator first, then in the order in which tasks name them."""
        named = (party.domain_id for task in self.job.spec.tasks for party in task.parties)
        return list(dict.fromkeys((self.job.spec.initiator, *named)))

    @property
    def own_parties(self) -> list[str]:
        return [party for party in self.parties if self.facts.parties.get(party) is False]

    def problems(self) -> str:
        """What is wrong with the job as it was stored; empty when nothing is."""
        found = job_problems(to_raw(self.job))
        shown = [f"{cause.field}: {cause.message}" for cause in found[:SHOWN_MAX]]
        more = [f"and {len(found) - len(shown)} more"] if len(found) > len(shown) else []
        return "; ".join([*shown, *more])

    # -- writing -----------------------------------------------------------------------------------------------------------

    def go(self, phase: str, reason: str, message: str) -> None:
        """To another phase; the times follow from it."""
        self.phase, self.reason, self.message = phase, reason, message
        is_over = phase in FINAL_PHASES
        if phase == _RUNNING and not self.start_time:
            self.start_time = format_time(self.now)
        self.completion_time = (self.completion_time or format_time(self.now)) if is_over else ""

    def set(self, type_: str, status: ConditionStatus, reason: str, message: str = "") -> None:
        self.conditions = set_condition(
            self.conditions, type_=type_, status=status, now=self.now, reason=reason, message=message
        )

    def unset(self, *types: str) -> None:
        for type_ in types:
            self.conditions = without_condition(self.conditions, type_)

    def answer(self, stage: str) -> None:
        """Every own party has followed the command. Those of partners are written by whoever talks to them."""
        for party in self.own_parties:
            self.stage_status[party] = f"Job{stage}StageSucceeded"

    def warn(self, reason: str, message: str) -> None:
        self.events.append(Emit(self._reference(), WARNING, reason, message))

    def stop(self, task: TaskView | None, code: Reason) -> None:
        if task is None or task.has_ended or task.is_told_to_stop or task.is_deleting:
            return
        self._patches.append(Patch(self._target(task), {"metadata": {"annotations": {Muster.STOP: code.value}}}))

    def carry(self, task: TaskView | None) -> None:
        """Have the task say what the job says by now: a hold, another queue, another estimate."""
        if task is None or task.has_ended or task.is_deleting:
            return
        if other := carried_anew(self.job, task):
            self._patches.append(Patch(self._target(task), {"metadata": other}))

    def delete(self, task: TaskView) -> None:
        if not task.is_deleting:
            self._deletes.append(Delete(self._target(task)))

    def create(self, standing: Standing) -> None:
        self._creates.append(Create(new_task(self.job, standing.task, standing.name, standing.run, self.facts)))

    def result(self) -> Plan:
        after = self._status()
        actions: list[Action] = []
        if after != self.before:
            after = msgspec.structs.replace(after, last_reconcile_time=format_time(self.now))
            patch = _difference(to_raw(self.before), to_raw(after))
            actions.append(PatchStatus(target_of_job(self.job), patch))
        if self.phase != self.before.phase:
            is_bad = self.phase in ("Failed", "ApprovalReject")
            reason = Reason.STARTED.value if self.phase == _RUNNING else self.reason or self.phase
            actions.append(Emit(self._reference(), WARNING if is_bad else NORMAL, reason, self.message or self.phase))
        actions += self.events
        writes: tuple[Patch | Delete, ...] = (*self._patches, *self._deletes)
        if writes:
            actions.append(Together(writes))
        actions += self._creates
        return Plan(actions)

    # -- helpers -----------------------------------------------------------------------------------------------------------

    def _target(self, task: TaskView) -> Target:
        return Target(GROUP, "KusciaTask", task.metadata.name, self.job.metadata.namespace, task.metadata.uid)

    def _reference(self) -> Raw:
        meta = self.job.metadata
        return {
            "apiVersion": API_VERSION,
            "kind": "KusciaJob",
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
        }

    def _status(self) -> KusciaJobStatus:
        len_max = min(_MESSAGE_LEN_MAX, max(_MESSAGES_LEN_MAX // max(len(self.standings), 1), 64))
        records = [_record(standing, len_max) for standing in self] if self.phase not in ("", "initialized") else []
        created = ("", WAITING, SKIPPED)
        return msgspec.structs.replace(
            self.before,
            phase=self.phase,
            reason=self.reason,
            message=_cut(self.message, _MESSAGE_LEN_MAX),
            approve_status=self.approve,
            stage_status=self.stage_status,
            conditions=[msgspec.convert(condition, PlainCondition) for condition in self.conditions],
            party_task_create_status=self._made(records),
            task_status={record.task_id: record.phase for record in records if record.phase not in created},
            tasks=records,
            stage=self.stage,
            stage_version=self.stage_version,
            run=self.run,
            start_time=self.start_time,
            completion_time=self.completion_time,
        )

    def _made(self, records: Sequence[JobTaskStatus]) -> dict[str, list[PartyTaskCreateStatus]]:
        """By task id: whether it could be made at each own party. Entries of partners are theirs to write."""
        made = dict(self.before.party_task_create_status)
        own = set(self.own_parties)
        for standing, record in zip(self, records, strict=False):
            if record.phase in ("", WAITING, SKIPPED):
                continue
            phase, message = _SUCCEEDED, ""
            if standing.live is None and record.reason in _NOT_MADE:
                phase, message = _FAILED, record.message
            entries = [
                PartyTaskCreateStatus(domain_id=party.domain_id, role=party.role, phase=phase, message=message)
                for party in standing.task.parties
                if party.domain_id in own
            ]
            theirs = [one for one in made.get(record.task_id, ()) if one.domain_id not in own]
            if entries or theirs:
                made[record.task_id] = [*entries, *theirs]
        return made


def target_of_job(job: KusciaJob) -> Target:
    """The job in the very version that was read."""
    meta = job.metadata
    return Target(GROUP, "KusciaJob", meta.name, meta.namespace, meta.uid, meta.resource_version)


def _difference(before: Raw, after: Raw) -> Raw:
    """The merge patch from one to the other. Maps are compared member by member: a partner's entries are not ours to write."""
    patch: Raw = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            inner = _difference(old, value)
            if inner:
                patch[key] = inner
        elif value != old:
            patch[key] = value
    return patch


def _record(standing: Standing, len_max: int) -> JobTaskStatus:
    record = JobTaskStatus(
        alias=standing.alias,
        task_id=standing.name,
        phase=standing.phase,
        reason=standing.reason,
        message=_cut(standing.message, len_max),
        run=standing.run,
    )
    if standing.live is not None:
        status = standing.live.status
        return msgspec.structs.replace(
            record,
            progress=round(min(max(status.progress, 0.0), 1.0), 2),
            attempts=status.attempts,
            preemptions=status.preemptions,
            start_time=status.start_time,
            completion_time=status.completion_time,
        )
    if standing.phase in (SUCCEEDED, FAILED):
        old = standing.record
        return msgspec.structs.replace(
            record,
            progress=old.progress,
            attempts=old.attempts,
            preemptions=old.preemptions,
            start_time=old.start_time,
            completion_time=old.completion_time,
        )
    return record


def _cut(text: str, len_max: int) -> str:
    return text if len(text) <= len_max else f"{text[: len_max - 3]}..."


def counts(standings: Iterator[Standing]) -> Mapping[str, int]:
    """How many tasks are in each phase."""
    found: dict[str, int] = {}
    for standing in standings:
        found[standing.phase] = found.get(standing.phase, 0) + 1
    return found
