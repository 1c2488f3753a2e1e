"""The stage commands of a KusciaJob: every command in every phase, and what a stop, a suspension and a restart do to tasks."""

from __future__ import annotations

import pytest
from tests.controllers.kuscia_jobs import FACTS, PARTNER, JobStore, job, running, stage, task

from muster.controllers.kuscia_job_tasks import Facts
from muster.objects.job_stages import ALLOWED
from muster.objects.labels import KusciaLabel, Muster


def in_phase(phase: str) -> JobStore:
    """A job of two tasks, of which the first has succeeded if it ever ran."""
    facts = {"initialized": Facts(), "AwaitingApproval": PARTNER, "ApprovalReject": PARTNER}.get(phase, FACTS)
    store = JobStore(job(task("a", parties=["alice", "bob"]), task("b", "a")), facts)
    if phase == "":
        return store
    store.settle()
    if phase == "ApprovalReject":
        store.approve("bob", "JobRejected")
    elif phase not in ("initialized", "AwaitingApproval"):
        store.end("a")
        if phase in ("Succeeded", "Failed"):
            store.end("b", phase)
        elif phase in ("Suspended", "Cancelled"):
            store.command({"Suspended": "Suspend", "Cancelled": "Cancel"}[phase])
    store.settle()
    store.obey_stops()
    store.settle()
    assert store.phase == phase
    return store


OPEN = ["", "initialized", "AwaitingApproval", "Running"]
ALL = [*OPEN, "Suspended", "Succeeded", "Failed", "Cancelled", "ApprovalReject"]
TABLE: dict[str, dict[str, str]] = {
    "Create": {},
    "Start": {},
    "Stop": {**dict.fromkeys([*OPEN, "Suspended"], "Failed"), "Failed": "Failed"},
    "Cancel": {**dict.fromkeys([*OPEN, "Suspended", "Failed"], "Cancelled"), "Cancelled": "Cancelled"},
    "Suspend": {"Running": "Suspended", "Suspended": "Suspended"},
    "Restart": {"Failed": "Running", "Suspended": "Running"},
}
FOLLOWED = {"Create": OPEN, "Start": OPEN} | {word: list(table) for word, table in TABLE.items() if table}
_GOES_ON = {"": "Running"}
"""What becomes of a job that nobody commands."""


def test_the_table_has_every_command() -> None:
    assert set(TABLE) == set(ALLOWED)


@pytest.mark.parametrize("phase", ALL, ids=lambda phase: phase or "new")
@pytest.mark.parametrize("word", list(TABLE))
def test_every_command_in_every_phase(word: str, phase: str) -> None:
    store = in_phase(phase)
    store.command(word)
    store.settle()
    is_followed = phase in FOLLOWED[word]
    assert store.phase == TABLE[word].get(phase, _GOES_ON.get(phase, phase))
    accepted = store.condition("JobStageAccepted")
    assert accepted["status"] == ("True" if is_followed else "False")
    refusals = [event for event in store.events if event.reason == "StageNotAllowed"]
    if is_followed:
        assert not refusals
    else:
        assert len(refusals) == 1
        assert refusals[0].type == "Warning"
        assert word in refusals[0].message
        assert accepted["reason"] == "StageNotAllowed"
    if word != "Restart" or not is_followed:
        assert store.status["stage"] == word
    before = store.writes
    store.settle()
    assert store.writes == before, "a command is answered once"


def test_a_stopped_job_is_failed_and_says_by_whom() -> None:
    store = in_phase("Running")
    store.command("Stop")
    store.settle()
    assert (store.phase, store.status["reason"], store.status["message"]) == ("Failed", "Stopped", "stopped by alice")
    assert store.status["stageStatus"]["alice"] == "JobStopStageSucceeded"
    assert store.condition("JobStopSucceeded")["status"] == "False"
    assert store.tasks[store.name_of("b")]["metadata"]["annotations"][Muster.STOP] == "Stopped"
    store.obey_stops()
    store.settle()
    assert store.condition("JobStopSucceeded")["status"] == "True"
    assert store.record("b")["reason"] == "KusciaJobStopped"


@pytest.mark.parametrize(("word", "code"), [("Cancel", "Cancelled"), ("Suspend", "Suspended")])
def test_the_code_with_which_tasks_are_stopped(word: str, code: str) -> None:
    store = in_phase("Running")
    store.command(word)
    store.settle()
    assert store.tasks[store.name_of("b")]["metadata"]["annotations"][Muster.STOP] == code


def test_resume_keeps_what_has_succeeded_and_makes_the_rest_anew() -> None:
    store = running(task("a"), task("b", "a"), task("c", "b"))
    store.end("a")
    store.command("Suspend")
    store.settle()
    assert store.phases() == {"a": "Succeeded", "b": "Pending", "c": "Waiting"}
    assert store.record("c")["reason"] == "Suspended"
    store.obey_stops()
    store.settle()
    assert store.phases() == {"a": "Succeeded", "b": "Failed", "c": "Waiting"}
    kept, old = (store.tasks[store.name_of(alias)]["metadata"]["uid"] for alias in "ab")
    store.command("Restart")
    store.settle()
    assert store.phase == "Running"
    assert store.phases() == {"a": "Succeeded", "b": "Pending", "c": "Waiting"}
    assert store.tasks[store.name_of("a")]["metadata"]["uid"] == kept
    assert store.tasks[store.name_of("b")]["metadata"]["uid"] != old
    assert store.status["run"] == store.record("b")["run"] == 1
    assert store.job["metadata"]["labels"][KusciaLabel.JOB_STAGE] == "Start", "as Kuscia puts it back"
    store.end("b")
    store.end("c")
    assert store.phase == "Succeeded"


def test_a_restart_waits_for_the_end_and_the_deletion_of_the_old_task() -> None:
    store = in_phase("Running")
    store.holds_deletes = True
    name = store.name_of("b")
    store.command("Suspend")
    store.settle()
    store.command("Restart")
    store.settle()
    assert store.phase == "Running"
    assert (store.record("b")["phase"], store.record("b")["reason"]) == ("Waiting", "Restarting")
    assert "deletionTimestamp" not in store.tasks[name]["metadata"], "it may yet succeed"
    store.obey_stops()
    store.settle()
    assert "deletionTimestamp" in store.tasks[name]["metadata"]
    assert store.created[-1] == (name, "0")
    store.finish_deletes()
    store.settle()
    assert store.created[-1] == (name, "1")


def test_a_task_that_succeeds_while_it_is_being_stopped_is_kept_by_a_restart() -> None:
    store = in_phase("Running")
    store.command("Suspend")
    store.settle()
    store.command("Restart")
    store.settle()
    store.move(store.name_of("b"), "Succeeded")
    store.settle()
    assert store.phase == "Succeeded"
    assert len(store.created) == 2


def test_rerun_from_a_task_runs_it_and_all_that_depends_on_it() -> None:
    store = running(task("a"), task("b", "a"), task("c", "b"), task("d", "a"), maxParallelism=4)
    for alias in "adbc":
        store.end(alias)
    assert store.phase == "Succeeded"
    store.command("Restart")
    store.settle()
    assert store.phase == "Succeeded", "without naming tasks there is nothing to restart"
    store.command("Restart", **{Muster.RERUN_FROM: "b"})
    store.settle()
    assert store.phases() == {"a": "Succeeded", "b": "Pending", "c": "Waiting", "d": "Succeeded"}
    assert Muster.RERUN_FROM not in store.job["metadata"].get("annotations", {})
    assert store.name_of("c") not in store.tasks, "its old result is gone"
    store.end("b")
    store.end("c")
    assert store.phase == "Succeeded"
    assert [name for name, run in store.created if run == "1"] == [store.name_of("b"), store.name_of("c")]


def test_a_rerun_that_was_interrupted_does_not_take_old_results_for_new_ones() -> None:
    store = running(task("a"), task("b", "a"))
    store.end("a")
    store.end("b")
    store.holds_deletes = True
    store.command("Restart", **{Muster.RERUN_FROM: "a"})
    store.apply(store.plan().actions, crash_after=1)
    assert store.phase == "Running"
    store.command("Stop")
    store.settle()
    store.command("Restart")
    store.settle()
    assert store.phases() == {"a": "Waiting", "b": "Waiting"}
    store.finish_deletes()
    store.settle()
    store.end("a")
    store.finish_deletes()
    store.settle()
    store.end("b")
    assert store.phase == "Succeeded"
    assert [run for _, run in store.created] == ["0", "0", "2", "2"]


def test_rerun_from_an_unknown_task_is_refused() -> None:
    store = in_phase("Failed")
    store.command("Restart", **{Muster.RERUN_FROM: "nobody"})
    store.settle()
    assert store.phase == "Failed"
    assert "nobody" in store.condition("JobStageAccepted")["message"]


@pytest.mark.parametrize(
    ("labels", "phase", "words"),
    [
        pytest.param(stage("Stop", 3), "Running", "", id="older than the last answer"),
        pytest.param(stage("Stop", 5), "Failed", "", id="the same version, another stage"),
        pytest.param(stage("Stop", 6), "Failed", "", id="newer"),
        pytest.param(stage("Stop", "x"), "Running", "'x' is not a whole number", id="a version that is no number"),
        pytest.param(stage("Dance", 9), "Running", "'Dance' is no stage", id="no such stage"),
    ],
)
def test_versions_of_commands(labels: dict[str, str], phase: str, words: str) -> None:
    store = JobStore(job(task("a"), labels=stage("Start", 5)))
    store.settle()
    assert (store.status["stage"], store.status["stageVersion"]) == ("Start", 5)
    store.job["metadata"]["labels"] = labels
    store.settle()
    assert store.phase == phase
    assert words in store.condition("JobStageAccepted")["message"]
    assert len([event for event in store.events if event.reason == "StageNotAllowed"]) == bool(words)


def test_a_stage_without_a_version_works() -> None:
    store = JobStore(job(task("a")))
    store.settle()
    for word, phase in (("Suspend", "Suspended"), ("Restart", "Running"), ("Stop", "Failed")):
        version = store.job["metadata"]["labels"].get(KusciaLabel.JOB_STAGE_VERSION)
        store.job["metadata"]["labels"] = stage(word, version)
        store.settle()
        store.obey_stops()
        assert store.phase == phase
