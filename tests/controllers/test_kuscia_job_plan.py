"""The state machine of a KusciaJob: every transition, every command, and what becomes of tasks."""

from __future__ import annotations

import pytest
from tests.controllers.kuscia_jobs import FACTS, PARTNER, JobStore, Stale, image, job, running, stage, task

from muster.controllers.actions import Create, Emit, PatchStatus
from muster.controllers.kuscia_job_tasks import Facts, Taken
from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.status import Raw

# -- the way to Running -----------------------------------------------------------------------------------------------------


def test_a_local_job_runs_at_once_and_its_first_task_is_made() -> None:
    store = JobStore(job(task("a"), task("b", "a")))
    first = store.plan().actions
    assert isinstance(first[0], PatchStatus), "recorded before anything is made"
    assert [type(action) for action in first] == [PatchStatus, Emit, Create]
    store.settle()
    assert (store.phase, store.phases()) == ("Running", {"a": "Pending", "b": "Waiting"})
    assert store.record("b")["reason"] == "DependencyPending"
    assert store.status["startTime"] == "2026-01-05T08:00:00Z"
    assert "completionTime" not in store.status
    assert store.condition("JobValidated")["status"] == store.condition("JobStartSucceeded")["status"] == "True"
    assert store.status["stageStatus"] == {"alice": "JobCreateStageSucceeded"}
    assert store.status["taskStatus"] == {store.name_of("a"): "Pending"}


def test_what_a_task_is_made_of() -> None:
    raw = job(
        task(
            "a",
            parties=["alice", "bob"],
            scheduleConfig={"minReservedMembers": 2, "lifecycleSeconds": 60},
            retry={"limit": 3, "backoffSeconds": 5},
            activeDeadlineSeconds=90,
        ),
        labels={Muster.QUEUE: "night", "team": "x"},
    )
    raw["metadata"]["annotations"] = {Muster.PRIORITY_CLASS: "high", Muster.PREEMPTIBLE: "true", "note": "y"}
    raw["spec"]["tasks"][0]["parties"][0] |= {"role": "host", "bandwidthLimits": [{"destinationID": "bob", "limitKBps": 5}]}
    store = running(*raw["spec"]["tasks"])
    store.job["metadata"] |= {k: raw["metadata"][k] for k in ("labels", "annotations")}
    store.tasks.clear()
    store.settle()
    (made,) = store.tasks.values()
    meta = made["metadata"]
    assert meta["labels"] == {
        KusciaLabel.CONTROLLER: "kuscia-job",
        KusciaLabel.JOB_UID: "job-uid",
        Muster.QUEUE: "night",
    }
    assert meta["annotations"] == {
        KusciaAnnotation.JOB_ID: "job",
        KusciaAnnotation.TASK_ALIAS: "a",
        Muster.PRIORITY_CLASS: "high",
        Muster.PREEMPTIBLE: "true",
        Muster.RUN: "0",
    }
    assert meta["ownerReferences"][0]["uid"] == "job-uid"
    assert made["spec"] == {
        "initiator": "alice",
        "taskInputConfig": "{}",
        "scheduleConfig": {"minReservedMembers": 2, "lifecycleSeconds": 60},
        "retry": {"limit": 3, "backoffSeconds": 5},
        "activeDeadlineSeconds": 90,
        "parties": [
            {
                "domainID": "alice",
                "appImageRef": "app",
                "role": "host",
                "bandwidthLimits": [{"destinationID": "bob", "limitKBps": 5}],
            },
            {"domainID": "bob", "appImageRef": "app"},
        ],
    }


@pytest.mark.parametrize(
    ("name", "task_id", "expected"),
    [
        pytest.param("job", "mine", "mine", id="as the job says"),
        pytest.param("job", "", "job-", id="made up"),
        pytest.param("a" * 200, "", "a" * 50 + "-", id="cut to a label"),
        pytest.param("my.job", "", "my-job-", id="no dots"),
    ],
)
def test_task_names(name: str, task_id: str, expected: str) -> None:
    store = JobStore(job(task("a", **({"taskID": task_id} if task_id else {})), name=name))
    store.settle()
    (made,) = store.tasks
    assert made.startswith(expected)
    assert len(made) <= 63
    again = JobStore(job(task("a", **({"taskID": task_id} if task_id else {})), name=name))
    again.settle()
    assert list(again.tasks) == [made], "a controller that begins again finds what it made"


@pytest.mark.parametrize(
    ("facts", "tasks", "phase", "reason", "words"),
    [
        pytest.param(Facts(), [task("a")], "initialized", "PartyUnknown", "Domain alice", id="no initiator"),
        pytest.param(
            Facts(parties={"alice": False}), [task("a", parties=["bob"])], "initialized", "PartyUnknown", "bob", id="no party"
        ),
        pytest.param(
            Facts(parties={"alice": False}), [task("a")], "Running", "AppImageNotFound", "AppImage app", id="no image"
        ),
        pytest.param(
            Facts(parties={"alice": False}, images={"app": image(role="guest")}),
            [task("a", parties=[]) | {"parties": [{"domainID": "alice", "role": "host"}]}],
            "Running",
            "DeployTemplateNotFound",
            "'host'",
            id="no template",
        ),
        pytest.param(
            Facts(parties={"alice": False}, images={"app": image(containers=[])}),
            [task("a")],
            "Running",
            "DeployTemplateNotFound",
            "containers",
            id="a template without containers",
        ),
    ],
)
def test_what_is_missing_is_waited_for(facts: Facts, tasks: list[Raw], phase: str, reason: str, words: str) -> None:
    store = JobStore(job(*tasks), facts)
    store.settle()
    assert (store.phase, store.status["reason"]) == (phase, reason)
    assert words in store.status["message"]
    assert not store.tasks
    store.facts = FACTS
    store.settle()
    assert store.phase == "Running"
    assert len(store.tasks) == 1, "it goes on when it is there"


def test_a_task_that_waits_for_something_leaves_its_place_to_others() -> None:
    store = running(task("a", appImage="absent", priority=9), task("b"))
    assert store.phases() == {"a": "Waiting", "b": "Pending"}
    assert store.record("a")["reason"] == "AppImageNotFound"


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        pytest.param([task("a", "b"), task("b", "a")], "DependencyCycle", id="a cycle"),
        pytest.param([task("a", "x")], "DependencyUnknown", id="an unknown alias"),
        pytest.param([task("a"), task("a")], "DuplicateName", id="a name twice"),
        pytest.param([task("a", parties=[])], "spec.tasks[0].parties", id="no parties"),
    ],
)
def test_a_job_that_no_rule_has_seen_fails_when_it_is_invalid(tasks: list[Raw], words: str) -> None:
    store = JobStore(job(*tasks))
    store.settle()
    assert (store.phase, store.status["reason"]) == ("Failed", "ValidateFailed")
    assert words in store.condition("JobValidated")["message"]
    assert store.condition("JobValidated")["status"] == "False"
    assert store.status["completionTime"]
    assert not store.tasks
    store.command("Restart")
    store.settle()
    assert store.phase == "Failed", "still invalid"
    assert store.condition("JobStageAccepted")["status"] == "False"
    store.job["spec"]["tasks"] = [task("a")]
    store.command("Restart")
    store.settle()
    assert store.phase == "Running", "corrected"


def test_a_graph_that_becomes_invalid_under_way_fails_the_job_and_stops_its_tasks() -> None:
    store = running(task("a"), task("b", "a"))
    store.job["spec"]["tasks"] = [task("a", "b"), task("b", "a")]
    store.settle()
    assert (store.phase, store.status["reason"]) == ("Failed", "ValidateFailed")
    assert all(Muster.STOP in raw["metadata"]["annotations"] for raw in store.tasks.values())


def test_a_task_that_the_spec_no_longer_has_is_stopped() -> None:
    store = running(task("a"), task("b"))
    gone = store.name_of("a")
    store.job["spec"]["tasks"] = [task("b")]
    store.settle()
    assert store.tasks[gone]["metadata"]["annotations"][Muster.STOP] == "Stopped"


# -- approval ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "parties", "asked"),
    [
        pytest.param(FACTS, ["alice", "bob"], [], id="own parties are not asked"),
        pytest.param(PARTNER, ["alice"], [], id="no partner takes part"),
        pytest.param(PARTNER, ["alice", "bob"], ["bob"], id="a partner is asked"),
        pytest.param(
            Facts(parties=FACTS.parties, images=FACTS.images, workload_approval=True),
            ["alice", "bob", "carol"],
            ["bob", "carol"],
            id="all but the initiator are asked",
        ),
    ],
)
def test_who_is_asked(facts: Facts, parties: list[str], asked: list[str]) -> None:
    store = JobStore(job(task("a", parties=parties)), facts)
    store.settle()
    for party in asked:
        assert (store.phase, store.status["reason"]) == ("AwaitingApproval", "AwaitingApproval")
        assert party in store.status["message"]
        assert not store.tasks
        store.approve(party, "JobAccepted")
        store.settle()
    assert store.phase == "Running"


def test_own_parties_accept_by_themselves_where_a_partner_is_asked() -> None:
    facts = Facts(parties={"alice": False, "bob": True, "carol": False}, images=FACTS.images)
    store = JobStore(job(task("a", parties=["alice", "bob", "carol"])), facts)
    store.settle()
    assert store.status["approveStatus"] == {"carol": "JobAccepted"}
    assert "bob" in store.status["message"]
    assert "carol" not in store.status["message"]


def test_a_rejected_job_is_over() -> None:
    store = JobStore(job(task("a", parties=["alice", "bob"])), PARTNER)
    store.settle()
    store.approve("bob", "JobRejected")
    store.settle()
    assert (store.phase, store.status["reason"]) == ("ApprovalReject", "ApprovalRejected")
    assert store.status["completionTime"]
    for word in ("Restart", "Start", "Stop", "Cancel"):
        store.command(word)
        store.settle()
        assert store.phase == "ApprovalReject", word
        assert store.condition("JobStageAccepted")["status"] == "False"


def test_a_restart_does_not_go_around_approval() -> None:
    store = JobStore(job(task("a", parties=["alice", "bob"])), PARTNER)
    store.settle()
    store.command("Stop")
    store.settle()
    assert store.phase == "Failed"
    store.command("Restart")
    store.settle()
    assert store.phase == "AwaitingApproval"
    assert not store.tasks


def test_a_partner_that_could_not_take_the_job_up_fails_it() -> None:
    store = JobStore(job(task("a", parties=["alice", "bob"])), PARTNER)
    store.settle()
    store.approve("bob", "JobAccepted")
    store.job["status"]["stageStatus"] = {"bob": "JobCreateStageFailed"}
    store.settle()
    assert (store.phase, store.status["reason"]) == ("Failed", "PartyFailed")
    assert "bob" in store.status["message"]


@pytest.mark.parametrize("asks", [False, True], ids=["by itself", "asked"])
def test_where_a_partner_is_the_initiator_only_the_own_parties_answer(asks: bool) -> None:
    facts = Facts(parties={"alice": True, "bob": False}, images=FACTS.images, workload_approval=asks)
    store = JobStore(job(task("a", parties=["alice", "bob"])), facts)
    store.settle()
    if asks:
        assert store.phase == "AwaitingApproval"
        store.approve("bob", "JobAccepted")
        store.settle()
    assert store.status["approveStatus"] == {"bob": "JobAccepted"}
    assert store.phase == "Pending"
    assert not store.tasks, "the initiator's control plane decides"
    store.tasks["theirs"] = {
        "metadata": {"name": "theirs", "uid": "u", "annotations": {KusciaAnnotation.TASK_ALIAS: "a"}},
        "status": {"phase": "Running"},
    }
    store.settle()
    assert (store.record("a")["taskID"], store.record("a")["phase"]) == ("theirs", "Running"), "shown as it comes"


@pytest.mark.parametrize(
    ("said", "approval", "phase"),
    [
        pytest.param("", "JobAccepted", "Pending", id="nothing is known yet"),
        pytest.param("AwaitingApproval", "JobAccepted", "Pending", id="others are asked"),
        pytest.param("Running", "JobAccepted", "Running", id="runs"),
        pytest.param("Suspended", "JobAccepted", "Suspended", id="is suspended"),
        pytest.param("Failed", "JobAccepted", "Failed", id="failed"),
        pytest.param("Running", None, "AwaitingApproval", id="not before it was accepted here"),
        pytest.param("Cancelled", None, "Cancelled", id="nobody need answer any more"),
        pytest.param("Running", "JobRejected", "ApprovalReject", id="rejected here"),
    ],
)
def test_where_a_partner_is_the_initiator_its_phase_is_followed(said: str, approval: str | None, phase: str) -> None:
    made = job(task("a", parties=["alice", "bob"]))
    made["metadata"]["annotations"] = {
        KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR: "false",
        Muster.HOST_PHASE: said,
        Muster.HOST_REASON: "Because",
    }
    store = JobStore(made, Facts(parties={"alice": True, "bob": False}, images=FACTS.images, workload_approval=True))
    if approval is not None:
        store.approve("bob", approval)
    store.settle()
    assert store.phase == phase
    assert not store.tasks
    if phase == said:
        assert store.status["reason"] == "Because"
    store.job["metadata"]["annotations"][Muster.HOST_PHASE] = "Running"
    store.settle()
    assert store.phase == {"JobAccepted": "Running", "JobRejected": "ApprovalReject", None: "AwaitingApproval"}[approval]


@pytest.mark.parametrize("parties", [{"bob": False}, {"alice": False, "bob": False}], ids=["gone", "no partner any more"])
def test_a_job_whose_initiator_is_gone_ends_and_starts_nothing(parties: dict[str, bool]) -> None:
    made = job(task("a", parties=["alice", "bob"]))
    made["metadata"]["annotations"] = {KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR: "false"}
    store = JobStore(made, Facts(parties=parties, images=FACTS.images))
    store.tasks["theirs"] = {
        "metadata": {"name": "theirs", "uid": "u", "annotations": {KusciaAnnotation.TASK_ALIAS: "a"}},
        "status": {"phase": "Running"},
    }
    store.settle()
    assert (store.phase, store.status["reason"]) == ("Failed", "PartyUnknown")
    assert "alice" in store.status["message"]
    assert list(store.tasks) == ["theirs"]
    assert store.tasks["theirs"]["metadata"]["annotations"][Muster.STOP] == "Stopped"


# -- running ----------------------------------------------------------------------------------------------------------------


def test_tasks_follow_each_other_and_the_job_succeeds() -> None:
    store = running(task("a"), task("b", "a"))
    store.end("a", progress=1, attempts=2, startTime="2026-01-05T08:00:01Z", completionTime="2026-01-05T08:00:09Z")
    assert store.phases() == {"a": "Succeeded", "b": "Pending"}
    assert store.record("a") | {"message": ""} == {
        "alias": "a",
        "taskID": store.name_of("a"),
        "phase": "Succeeded",
        "reason": "Succeeded",
        "message": "",
        "progress": 1.0,
        "attempts": 2,
        "startTime": "2026-01-05T08:00:01Z",
        "completionTime": "2026-01-05T08:00:09Z",
    }
    store.now += 60
    store.end("b")
    assert (store.phase, store.status["reason"]) == ("Succeeded", "Succeeded")
    assert store.status["completionTime"] == "2026-01-05T08:01:00Z"
    assert [e.reason for e in store.events] == ["Started", "Succeeded"]


@pytest.mark.parametrize(
    ("limit", "begun"),
    [pytest.param(1, ["c"], id="one"), pytest.param(3, ["a", "c", "d"], id="three"), pytest.param(9, list("abcd"), id="all")],
)
def test_the_most_urgent_start_first_as_many_as_may(limit: int, begun: list[str]) -> None:
    tasks = [task("a", priority=1), task("b"), task("c", priority=5), task("d", priority=1)]
    store = running(*tasks, maxParallelism=limit)
    assert [alias for alias, phase in store.phases().items() if phase == "Pending"] == begun
    waiting = [record["reason"] for record in store.status["tasks"] if record["phase"] == "Waiting"]
    assert waiting == ["ParallelismReached"] * (4 - len(begun))


def test_more_tasks_start_when_the_limit_is_raised() -> None:
    store = running(*(task(alias) for alias in "abc"))
    store.job["spec"]["maxParallelism"] = 2
    store.settle()
    assert sorted(store.phases().values()) == ["Pending", "Pending", "Waiting"]


A, B, C = "a", "b", "c"


@pytest.mark.parametrize(
    ("mode", "tasks", "outcomes", "phase", "ends"),
    [
        pytest.param(
            "Strict",
            [task(A), task(B)],
            {A: "Failed"},
            "Failed",
            {A: "Failed", B: "Skipped"},
            id="strict: the first failure ends it",
        ),
        pytest.param(
            "BestEffort",
            [task(A), task(B), task(C, A)],
            {A: "Failed", B: "Succeeded"},
            "Failed",
            {A: "Failed", B: "Succeeded", C: "Skipped"},
            id="best effort: what does not depend on it goes on",
        ),
        pytest.param(
            "Strict",
            [task(A, tolerable=True), task(B)],
            {A: "Failed", B: "Succeeded"},
            "Succeeded",
            {A: "Failed", B: "Succeeded"},
            id="strict: a tolerable failure is tolerated",
        ),
        pytest.param(
            "BestEffort",
            [task(A, tolerable=True), task(B, A, tolerable=True)],
            {A: "Failed"},
            "Succeeded",
            {A: "Failed", B: "Skipped"},
            id="tolerable tasks that were skipped are tolerated",
        ),
        pytest.param(
            "Strict",
            [task(A, tolerable=True), task(B, A), task(C)],
            {A: "Failed", C: "Succeeded"},
            "Failed",
            {A: "Failed", B: "Skipped", C: "Succeeded"},
            id="strict: one skipped that is not tolerable fails it in the end",
        ),
        pytest.param(
            "BestEffort",
            [task(A, tolerable=True), task(B, A)],
            {A: "Failed"},
            "Failed",
            {A: "Failed", B: "Skipped"},
            id="best effort: the same",
        ),
        pytest.param(
            "BestEffort",
            [task(A), task(B, A), task(C, B)],
            {A: "Failed"},
            "Failed",
            {A: "Failed", B: "Skipped", C: "Skipped"},
            id="skipping goes all the way down",
        ),
    ],
)
def test_how_jobs_end(mode: str, tasks: list[Raw], outcomes: dict[str, str], phase: str, ends: dict[str, str]) -> None:
    store = running(*tasks, scheduleMode=mode)
    for alias, outcome in outcomes.items():
        store.end(alias, outcome, reason="ContainerFailed" if outcome == "Failed" else "")
    assert store.phase == phase
    assert store.phases() == ends
    assert store.status["completionTime"]
    for alias, end in ends.items():
        if end == "Skipped" and mode == "BestEffort":
            assert store.record(alias)["reason"] == "DependencyFailed"
            assert store.record(alias)["message"] == "task a failed"


def test_strict_stops_what_runs_when_a_task_fails() -> None:
    store = running(task("a"), task("b"), task("c", "b"), maxParallelism=2)
    store.move(store.name_of("b"), "Running")
    store.end("a", "Failed", reason="OOMKilled", message="exit 137")
    assert (store.phase, store.status["reason"]) == ("Failed", "OOMKilled")
    assert store.status["message"] == "task a failed: exit 137"
    assert store.tasks[store.name_of("b")]["metadata"]["annotations"][Muster.STOP] == "Stopped"
    store.obey_stops()
    store.settle()
    assert store.phases() == {"a": "Failed", "b": "Failed", "c": "Skipped"}
    assert not store.under_way()


def test_a_job_says_what_it_waits_for() -> None:
    store = running(task("a"), task("b"))
    store.move(store.name_of("a"), "Pending", reason="BandwidthInsufficient", message="100 Mbps short at bob")
    store.settle()
    assert store.status["reason"] == "BandwidthInsufficient"
    assert store.status["message"] == "0 of 2 tasks have ended; task a waits: 100 Mbps short at bob"
    store.move(store.name_of("a"), "Running")
    store.settle()
    assert (store.status["reason"], store.status["message"]) == ("Started", "0 of 2 tasks have ended, 1 run")


@pytest.mark.parametrize(
    ("is_leaving", "phase", "reason"),
    [pytest.param(False, "Failed", "TaskNameTaken", id="fails"), pytest.param(True, "Waiting", "Restarting", id="waits")],
)
def test_a_task_name_that_another_job_has(is_leaving: bool, phase: str, reason: str) -> None:
    facts = Facts(parties=FACTS.parties, images=FACTS.images, taken={"mine": Taken("KusciaJob other", is_leaving)})
    store = JobStore(job(task("a", taskID="mine"), task("b"), scheduleMode="BestEffort"), facts)
    store.settle()
    assert (store.phases()["a"], store.record("a")["reason"]) == (phase, reason)
    assert "KusciaJob other" in store.record("a")["message"]
    assert store.phases()["b"] == "Pending", "the rest goes on"
    store.facts = FACTS
    store.settle()
    assert store.phases()["a"] == ("Failed" if not is_leaving else "Waiting"), "what has failed stays failed in this run"
    store.end("b")
    assert store.phase == ("Failed" if not is_leaving else "Running")
    if not is_leaving:
        store.command("Restart")
        store.settle()
        assert list(store.phases().values()) == ["Pending", "Succeeded"]


def test_a_task_that_the_server_refuses_has_failed() -> None:
    store = JobStore(job(task("a"), task("b", "a"), scheduleMode="BestEffort"))
    store.facts = Facts(parties=FACTS.parties, images=FACTS.images, refused={"a": "spec.parties: too many"})
    store.settle()
    assert (store.phase, store.status["reason"]) == ("Failed", "CreateTaskFailed")
    assert store.status["message"] == "task a failed: spec.parties: too many"


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_a_task_that_somebody_deleted_while_it_was_under_way_is_made_again(phase: str) -> None:
    store = running(task("a"))
    name = store.name_of("a")
    store.move(name, phase)
    store.settle()
    store.tasks[name]["metadata"]["deletionTimestamp"] = "2026-01-05T08:00:00Z"
    store.settle()
    assert (store.record("a")["phase"], store.record("a")["reason"]) == ("Pending", "Restarting")
    store.finish_deletes()
    store.settle()
    assert list(store.tasks) == [name]


@pytest.mark.parametrize("outcome", ["Succeeded", "Failed"])
def test_a_task_that_has_ended_stays_so_when_somebody_deletes_it(outcome: str) -> None:
    store = running(task("a"), task("b"), scheduleMode="BestEffort")
    store.end("a", outcome)
    del store.tasks[store.name_of("a")]
    store.settle()
    assert store.phases()["a"] == outcome
    assert len(store.created) == 2


# -- caches that lag ----------------------------------------------------------------------------------------------------------


def test_a_plan_from_an_old_copy_of_the_job_does_nothing() -> None:
    store = running(task("a"), task("b"), maxParallelism=2)
    old = store.snapshot()
    old[0]["metadata"]["labels"] = stage("Stop", 1)
    store.job["metadata"]["labels"] = stage("Stop", 1)
    store.settle()
    store.obey_stops()
    store.command("Restart")
    store.settle()
    assert store.phase == "Running"
    after = store.snapshot()
    with pytest.raises(Stale):
        store.apply(store.plan(old).actions)
    with pytest.raises(Stale):
        store.apply(store.plan((old[0], after[1])).actions)
    assert store.snapshot() == after, "the new tasks were not stopped"


def test_a_run_that_the_job_does_not_know_is_named() -> None:
    store = running(task("a"))
    store.tasks[store.name_of("a")]["metadata"]["annotations"][Muster.RUN] = "7"
    store.settle()
    assert "muster.dev/run=7" in store.status["message"]


def test_a_long_message_is_cut() -> None:
    store = running(*(task(f"t{n}") for n in range(2000)), scheduleMode="BestEffort")
    store.end("t0", "Failed", message="x" * 5000)
    assert len(store.record("t0")["message"]) == 65
    store = running(task("a"))
    store.end("a", "Failed", message="x" * 5000)
    assert len(store.record("a")["message"]) == len(store.status["message"]) == 1024


# -- the place in the queue ---------------------------------------------------------------------------------------------------


def test_tasks_follow_their_job_to_another_queue_into_a_hold_and_out_of_it() -> None:
    store = running(task("a"), task("b", "a"))
    store.settle()
    (made,) = store.tasks.values()
    store.job["metadata"]["labels"] = {Muster.QUEUE: "night"}
    store.job["metadata"]["annotations"] = {Muster.HOLD: "later", Muster.ESTIMATE_SECONDS: "60", "note": "mine"}
    store.settle()
    (made,) = store.tasks.values()
    assert made["metadata"]["labels"][Muster.QUEUE] == "night"
    assert made["metadata"]["annotations"][Muster.HOLD] == "later"
    assert made["metadata"]["annotations"][Muster.ESTIMATE_SECONDS] == "60"
    assert "note" not in made["metadata"]["annotations"]
    del store.job["metadata"]["annotations"][Muster.HOLD]
    store.settle()
    (made,) = store.tasks.values()
    assert Muster.HOLD not in made["metadata"]["annotations"]
    assert made["metadata"]["annotations"][KusciaAnnotation.TASK_ALIAS] == "a", "what is the task's own stays"
    assert not store.plan().actions
