"""What to do next for a KusciaJob: the state machine, as a pure function of the job, its KusciaTasks and a few facts.

    (new) -> initialized -> AwaitingApproval -> Pending -> Running -> Succeeded | Failed
                                     |                      ^  |
                                     v                      |  v
                               ApprovalReject             Suspended      Stop -> Failed, Cancel -> Cancelled

`plan` first follows a stage command, if a new one is there, then takes every step that needs nobody else. The picture and the
table of transitions are in docs/jobs.md.

What becomes of a task whose dependency failed: it is Skipped. A Strict job ends with the first failure of a task that is not
tolerable; a BestEffort job goes on with what does not depend on it. In the end a job has failed when a task that is not
tolerable failed or was skipped. So a job ends as soon as all its tasks have, and every task ends, is under way, or waits for
something that its reason names.

Invariants: the same arguments give the same plan; a plan carried out twice changes nothing the second time; from any state
that a crash can leave, plans lead on (see `kuscia_job_draft` for the order of the writes). Linear in the job's own tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from muster.controllers.kuscia_job_commands import after_restart, obey
from muster.controllers.kuscia_job_draft import SHOWN_MAX, Draft, Standing, counts
from muster.controllers.kuscia_job_graph import FAILED, SKIPPED, SUCCEEDED, WAITING, split
from muster.controllers.kuscia_job_member import take_part
from muster.controllers.kuscia_job_tasks import Facts, Hindrance, TaskView, hindrance, takes_part
from muster.controllers.runtime import Plan
from muster.objects.conditions import find_condition
from muster.objects.kinds.kuscia_jobs import FINAL_PHASES, KusciaJob
from muster.objects.labels import Muster
from muster.objects.reasons import Reason
from muster.objects.words import counted

_STEPS_MAX: Final = 6
"""Phases that one plan can pass through."""
_STOP_CODES: Final = {"Suspended": Reason.SUSPENDED, "Cancelled": Reason.CANCELLED, "Failed": Reason.STOPPED}
_STAGE_FAILURES: Final = ("JobCreateStageFailed", "JobStartStageFailed")


def plan(job: KusciaJob, live: Sequence[TaskView], facts: Facts, now: float) -> Plan:
    """What to do next. `live` are the KusciaTasks that the job owns."""
    restarted = after_restart(job)
    if restarted is not None:
        return Plan([restarted])
    draft = Draft(job, live, facts, now)
    if draft.newer is not None:
        return _out_of_date(draft, draft.newer)
    if takes_part(job, facts):
        take_part(draft)
        return draft.result()
    obey(draft)
    for _ in range(_STEPS_MAX):
        phase = draft.phase
        _advance(draft)
        if draft.phase == phase:
            break
    for standing in draft:
        draft.carry(standing.live)
    for orphan in draft.orphans:
        draft.stop(orphan, Reason.STOPPED)
    return draft.result()


def _out_of_date(draft: Draft, task: TaskView) -> Plan:
    """If the job that was read is old, this write is refused and the newer one is on its way; if not, somebody has to look."""
    draft.reason = Reason.MANIFEST_INVALID.value
    draft.message = (
        f"KusciaTask {task.metadata.name} has the annotation {Muster.RUN}={task.run}, but the job is at run "
        f"{draft.run}; correct the annotation, or delete the task"
    )
    return draft.result()


# -- phases -----------------------------------------------------------------------------------------------------------------


def _advance(draft: Draft) -> None:
    match draft.phase:
        case "" | "initialized":
            _prepare(draft)
        case "AwaitingApproval":
            _await_approval(draft)
        case "Pending":
            _start(draft)
        case "Running":
            _run(draft)
        case _:
            _settle(draft)


def _prepare(draft: Draft) -> None:
    problems = draft.problems()
    if problems:
        _fail_validation(draft, problems)
        return
    draft.set("JobValidated", "True", "Validated")
    missing = [party for party in draft.parties if party not in draft.facts.parties]
    if missing:
        shown = ", ".join(missing[:SHOWN_MAX]) + (", ..." if len(missing) > SHOWN_MAX else "")
        what = "there is no Domain" if len(missing) == 1 else "there are no Domains"
        draft.go("initialized", Reason.PARTY_UNKNOWN.value, f"{what} {shown}; the job goes on when there is")
        return
    draft.set("JobCreateInitialized", "True", "Initialized")
    if _asked(draft):
        for party in draft.own_parties:
            if party not in _asked(draft) and party != draft.job.spec.initiator:
                draft.approve.setdefault(party, "JobAccepted")
        draft.go("AwaitingApproval", Reason.AWAITING_APPROVAL.value, "the parties are asked")
    else:
        draft.go("Pending", "", "no party has to be asked")


def _fail_validation(draft: Draft, problems: str) -> None:
    draft.set("JobValidated", "False", Reason.VALIDATE_FAILED.value, problems)
    draft.go("Failed", Reason.VALIDATE_FAILED.value, problems)


def _asked(draft: Draft) -> list[str]:
    """The parties whose approval is needed: partners, and the own ones too where the operator wants that."""
    others = [party for party in draft.parties if party != draft.job.spec.initiator]
    return [party for party in others if draft.facts.parties.get(party) is not False or draft.facts.workload_approval]


def _await_approval(draft: Draft) -> None:
    asked = _asked(draft)
    rejected = [party for party in asked if draft.approve.get(party) == "JobRejected"]
    if rejected:
        draft.go("ApprovalReject", Reason.APPROVAL_REJECTED.value, f"rejected by {', '.join(rejected)}")
        return
    waiting = [party for party in asked if draft.approve.get(party) != "JobAccepted"]
    if waiting:
        draft.message = f"waits for the approval of {', '.join(waiting)}"
        return
    draft.go("Pending", "", "all parties agreed")


def _start(draft: Draft) -> None:
    failed = [party for party in draft.parties if draft.stage_status.get(party) in _STAGE_FAILURES]
    if failed:
        message = f"party {failed[0]} could not take the job up: {draft.stage_status[failed[0]]}"
        draft.go("Failed", Reason.PARTY_FAILED.value, message)
        return
    for party in draft.own_parties:
        draft.stage_status.setdefault(party, "JobCreateStageSucceeded")
    draft.set("JobCreateSucceeded", "True", "Created")
    draft.set("JobStartSucceeded", "True", "Started")
    draft.go("Running", Reason.STARTED.value, "")


# -- running ----------------------------------------------------------------------------------------------------------------


def _run(draft: Draft) -> None:
    if len(draft.graph.order) < len(draft.job.spec.tasks) or len(draft.standings) < len(draft.job.spec.tasks):
        # Changed under way, on a server that does not hold such changes off.
        _fail_validation(draft, draft.problems())
        return
    hindrances = _hindrances(draft)
    parts = split(draft.graph, draft.phases)
    for alias, culprit in parts.skipped.items():
        draft.standings[alias].say(SKIPPED, Reason.DEPENDENCY_FAILED.value, f"task {culprit} failed")
    failed = [s for s in draft if s.phase == FAILED and not s.task.tolerable]
    if failed and draft.job.spec.schedule_mode == "Strict":
        first = failed[0]
        draft.go("Failed", first.reason, f"task {first.alias} failed: {first.message or first.reason}")
        return
    for alias, dependency in parts.blocked.items():
        standing = draft.standings[alias]
        if standing.stale is None:
            standing.say(WAITING, Reason.DEPENDENCY_PENDING.value, f"waits for task {dependency}")
        _clear(draft, standing)
    _start_ready(draft, parts.ready, hindrances)
    if all(standing.has_ended for standing in draft):
        _finish(draft)
    else:
        draft.reason, draft.message = _summary(draft)


def _hindrances(draft: Draft) -> dict[str, Hindrance]:
    """Of the tasks that are ready. Those that can't be made in this run fail here."""
    found: dict[str, Hindrance] = {}
    for alias in split(draft.graph, draft.phases).ready:
        standing = draft.standings[alias]
        problem = hindrance(standing.task, standing.name, draft.facts)
        if problem is not None and problem.is_final:
            standing.say(FAILED, problem.reason.value, problem.message)
        elif problem is not None:
            found[alias] = problem
    return found


def _start_ready(draft: Draft, ready: Sequence[str], hindrances: dict[str, Hindrance]) -> None:
    """As many as maxParallelism leaves room for, the most urgent first; those that were begun before anything new."""
    limit = draft.job.spec.max_parallelism
    room = limit - sum(1 for s in draft if s.phase in ("Pending", "Running") or s.lives)
    begun = [alias for alias in ready if draft.standings[alias].is_lost]
    for alias in (*begun, *(alias for alias in ready if not draft.standings[alias].is_lost)):
        standing = draft.standings[alias]
        if standing.stale is not None:
            _clear(draft, standing)
        elif alias in hindrances:
            standing.say(WAITING, hindrances[alias].reason.value, hindrances[alias].message)
        elif room <= 0:
            standing.say(
                WAITING,
                Reason.PARALLELISM_REACHED.value,
                f"{counted(limit, 'task')} of the job already under way",
            )
        else:
            room -= 1
            if standing.record.phase in ("Pending", "Running") and standing.record.run == standing.run:
                standing.say(standing.record.phase, standing.record.reason, standing.record.message)
            else:
                standing.say("Pending", Reason.QUEUED.value, "")
            draft.create(standing)


def _clear(draft: Draft, standing: Standing) -> None:
    """Away with what an earlier run left. It ends first: whether it has succeeded after all is not known before."""
    if standing.stale is None:
        return
    if standing.stale.has_ended:
        draft.delete(standing.stale)
    else:
        draft.stop(standing.stale, Reason.STOPPED)


def _finish(draft: Draft) -> None:
    bad = [s for s in draft if not s.task.tolerable and s.phase != SUCCEEDED]
    if not bad:
        found = counts(iter(draft))
        tolerated = found.get(FAILED, 0) + found.get(SKIPPED, 0)
        note = f"; {tolerated} that may fail did not succeed" if tolerated else ""
        draft.go("Succeeded", Reason.SUCCEEDED.value, f"{counted(found.get(SUCCEEDED, 0), 'task')} succeeded{note}")
        return
    first = next((s for s in bad if s.phase == FAILED), bad[0])
    verb = "failed" if first.phase == FAILED else "was skipped"
    draft.go("Failed", first.reason, f"task {first.alias} {verb}: {first.message or first.reason}")


def _summary(draft: Draft) -> tuple[str, str]:
    """Reason and message of a job that runs: what it does, or, when nothing runs, what it waits for."""
    found = counts(iter(draft))
    ended = sum(found.get(phase, 0) for phase in (SUCCEEDED, FAILED, SKIPPED))
    progress = f"{ended} of {counted(len(draft.standings), 'task')} {'has' if len(draft.standings) == 1 else 'have'} ended"
    if found.get("Running"):
        return Reason.STARTED.value, f"{progress}, {found['Running']} run"
    waits = [s for s in draft if s.phase == "Pending" and s.reason]
    waits = waits or [s for s in draft if s.phase == WAITING and s.reason != Reason.DEPENDENCY_PENDING.value]
    if not waits:
        return Reason.STARTED.value, progress
    first = waits[0]
    return first.reason, f"{progress}; task {first.alias} waits: {first.message or first.reason}"


# -- not running any more ---------------------------------------------------------------------------------------------------


def _settle(draft: Draft) -> None:
    """After the end, or while suspended: what is still under way is stopped, what was not begun is not going to be."""
    if draft.phase in FINAL_PHASES and not draft.completion_time:
        draft.go(draft.phase, draft.reason, draft.message)
    code = _STOP_CODES.get(draft.phase)
    if code is None:
        return
    for standing in draft:
        draft.stop(standing.live, code)
        draft.stop(standing.stale, code)
    is_held = draft.phase == "Suspended"
    culprits = split(draft.graph, draft.phases).skipped if draft.phase == "Failed" else {}
    for standing in draft:
        if standing.phase != WAITING:
            continue
        reason, message = code, "not started"
        if standing.is_rerun:
            reason = Reason.RERUNNING  # the next restart must not take what is left of it for a result
        elif standing.alias in culprits:
            reason, message = Reason.DEPENDENCY_FAILED, f"task {culprits[standing.alias]} failed"
        standing.say(WAITING if is_held else SKIPPED, reason.value, message)
    if find_condition(draft.conditions, "JobStopInitialized") is not None:
        under_way = [standing.alias for standing in draft if standing.lives]
        if under_way:
            draft.set("JobStopSucceeded", "False", "Stopping", f"waits for the end of {', '.join(under_way[:10])}")
        else:
            draft.set("JobStopSucceeded", "True", "Stopped")
