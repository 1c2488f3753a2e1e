"""Two ends of one agreement: whatever either side sees late, twice or out of step, nothing that was decided is taken back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.controllers.tasks import group, party
from tests.counts import examples

from muster.controllers.actions import Create, Delete, Patch
from muster.controllers.interconn import TaskSides, plan_task
from muster.controllers.interconn_host import Partner, PartnerSpec, master_of
from muster.controllers.interconn_host import plan_job as plan_host_job
from muster.controllers.interconn_host import plan_task as plan_host_task
from muster.controllers.interconn_jobs import plan_job
from muster.controllers.interconn_parts import asked_back, entry_of, host_step, member_step
from muster.controllers.kuscia_job_tasks import Facts
from muster.controllers.task_reservation_parts import advance, new_resource
from muster.objects.kinds.kuscia_tasks import TaskResourceGroup, TaskResourcePhase
from muster.objects.labels import KusciaAnnotation, KusciaLabel, Muster
from muster.objects.meta import annotations_of, labels_of, name_of, namespace_of
from muster.objects.patch.merge import apply_merge_patch
from muster.objects.status import Raw
from muster.objects.view import copy_json, view_of
from muster.sim.workloads import app_image, job_task, kuscia_job

NOW = 1e9
RANK = {"": 0, "Pending": 0, "Reserving": 1, "Reserved": 2, "Schedulable": 3, "Failed": 4}
OWN, PARTNER = Partner(), Partner(spec=PartnerSpec(role="partner"))


def host_group() -> Raw:
    made = group("t", [party("alice", "t")], [party("bob", "t")])
    made["metadata"] |= {"uid": "g1", "resourceVersion": "1"}
    made["metadata"]["annotations"] |= {KusciaAnnotation.JOB_ID: "j", KusciaAnnotation.TASK_ALIAS: "first"}
    made["status"] = {"phase": "Reserving"}
    return made


def member_group() -> Raw:
    made = group("t", [party("bob", "t")], [party("alice", "t")], is_member=True)
    made["metadata"] |= {"uid": "g2", "resourceVersion": "1"}
    return made


def resource(of: Raw, domain: str, phase: TaskResourcePhase = "Pending", tried: int = 0) -> Raw:
    view = view_of(TaskResourceGroup, of)
    [found] = [one for one in (*view.spec.parties, *view.spec.out_of_controlled_parties) if one.domain_id == domain]
    raw = new_resource(of, found, now=NOW)
    raw["metadata"] |= {"uid": f"u-{domain}", "resourceVersion": "1"}
    raw["status"] |= {"phase": phase, "retryCount": tried}
    return raw


def standing(status: Raw) -> tuple[int, int]:
    return status.get("retryCount", 0), RANK[status.get("phase", "")]


class Wire:
    """The host's TaskResource, the entry, the member's TaskResource; each with a version, so that a stale write is refused."""

    def __init__(self) -> None:
        self.host = resource(host_group(), "bob")
        self.entry: Raw | None = None
        self.member = resource(member_group(), "bob")
        self.version = 1
        self.entry_version = 0
        self.past: list[tuple[Raw, Raw | None, Raw, int]] = []
        self.remember()

    def remember(self) -> None:
        self.past.append((copy_json(self.host), copy_json(self.entry), copy_json(self.member), self.entry_version))

    def step(self, who: str, lag: tuple[int, int]) -> None:
        """One side acts on what it sees: its own TaskResource and the entry, each as old as `lag` says."""
        own = self.past[max(len(self.past) - 1 - lag[0], 0)]
        other = self.past[max(len(self.past) - 1 - lag[1], 0)]
        entry, seen_version = other[1], other[3]
        if who == "host":
            done = host_step(own[0], entry, "", now=NOW)
        elif entry is None:
            return
        else:
            done = member_step(own[2], entry, now=NOW)
        if done.entry is not None and seen_version == self.entry_version:
            assert standing(done.entry) >= standing(self.entry or {}), "the entry went back"
            self.entry_version += 1
            self.entry = done.entry
        if done.patch is not None:
            self.patch(who, done.patch)
        self.remember()

    def patch(self, who: str, patch: Patch) -> None:
        live = self.host if who == "host" else self.member
        if patch.target.resource_version != live["metadata"]["resourceVersion"]:
            return
        self.version += 1
        after = apply_merge_patch(live, patch.patch)
        after["metadata"]["resourceVersion"] = str(self.version)
        assert standing(after["status"]) >= standing(live["status"]), f"the {who}'s TaskResource went back"
        if who == "host":
            if after["status"]["phase"] == "Reserved" and live["status"]["phase"] != "Reserved":
                assert standing(self.member["status"]) >= (after["status"]["retryCount"], 2), "a vote that nobody gave"
            self.host = after
        else:
            if after["status"]["phase"] == "Schedulable":
                assert self.host["status"]["phase"] == "Schedulable", "permitted by nobody"
            self.member = after

    def decide(self, phase: TaskResourcePhase) -> None:
        """The initiator's controller."""
        tried = self.host["status"].get("retryCount", 0) + (phase == "Reserving" and self.host["status"]["phase"] == "Failed")
        if phase == "Schedulable" and self.host["status"]["phase"] != "Reserved":
            return
        if (self.host["status"]["phase"], phase) in (("Schedulable", "Failed"), ("Schedulable", "Reserving")):
            return
        if patch := advance(self.host, phase, tried, now=NOW, reason="Test"):
            self.patch("host", patch)
            self.remember()

    def vote(self) -> None:
        """The member's scheduler."""
        if self.member["status"]["phase"] == "Reserving":
            patch = advance(self.member, "Reserved", self.member["status"]["retryCount"], now=NOW, reason="Test")
            assert patch is not None
            self.patch("member", patch)
            self.remember()

    def withdraw(self) -> None:
        if self.member["status"]["phase"] in ("Reserving", "Reserved"):
            self.version += 1
            self.member = copy_json(self.member)
            self.member["metadata"]["annotations"][Muster.WITHDRAW] = "needed"
            self.member["metadata"]["resourceVersion"] = str(self.version)
            self.remember()

    def settle(self) -> None:
        for _ in range(8):
            for who in ("host", "member"):
                self.step(who, (0, 0))


LAGS = st.tuples(st.integers(0, 4), st.integers(0, 4))
MOVES = st.one_of(
    st.tuples(st.sampled_from(["host", "member"]), LAGS),
    st.tuples(st.sampled_from(["Reserving", "Schedulable", "Failed", "vote", "withdraw"]), st.just((0, 0))),
)


@settings(max_examples=examples(100))
@given(st.lists(MOVES, max_size=60))
def test_whatever_the_order_nothing_goes_back_and_both_agree_in_the_end(moves: list[tuple[Any, tuple[int, int]]]) -> None:
    wire = Wire()
    wire.decide("Reserving")
    for move, lag in moves:
        if move in ("host", "member"):
            wire.step(move, lag)
        elif move == "vote":
            wire.vote()
        elif move == "withdraw":
            wire.withdraw()
        else:
            wire.decide(move)
    wire.settle()
    assert wire.entry is not None
    if wire.host["status"]["phase"] in ("Schedulable", "Failed"):
        assert standing(wire.host["status"]) == standing(wire.entry) == standing(wire.member["status"])
        return
    wire.vote()
    wire.settle()
    assert standing(wire.host["status"]) == standing(wire.entry) == standing(wire.member["status"])
    assert wire.host["status"]["phase"] == "Reserved"
    if Muster.WITHDRAW in annotations_of(wire.member):
        assert annotations_of(wire.host)[Muster.WITHDRAW] == asked_back(wire.entry) == "needed"
    else:
        assert Muster.WITHDRAW not in annotations_of(wire.host)


# -- tasks at the host ---------------------------------------------------------------------------------------------------------


def test_the_host_makes_one_summary_for_each_partner_control_plane() -> None:
    made = host_group()
    made["spec"]["outOfControlledParties"].append(party("carol", "t"))
    found = [resource(made, "bob", "Reserving"), resource(made, "carol", "Reserving")]
    domains = {"alice": OWN, "bob": PARTNER, "carol": Partner(spec=PartnerSpec(role="partner", master="bob"))}
    [action] = plan_host_task(made, found, {}, domains, phase="Pending", now=NOW).actions
    assert isinstance(action, Create)
    summary = action.object
    assert (namespace_of(summary), name_of(summary), summary["spec"]) == ("bob", "t", {"alias": "first", "jobID": "j"})
    assert sorted(summary["status"]["resourceStatus"]) == ["bob", "carol"]
    assert annotations_of(summary)[Muster.ORIGIN_UID] == "uid-of-t"
    summary["metadata"] |= {"uid": "s", "resourceVersion": "5"}
    assert not plan_host_task(made, found, {"bob": summary}, domains, phase="Pending", now=NOW).actions
    [patch] = plan_host_task(made, found, {"bob": summary}, domains, phase="Running", now=NOW).actions
    assert isinstance(patch, Patch)
    assert (patch.target.resource_version, patch.patch) == ("5", {"status": {"phase": "Running"}})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"annotations": {KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR: "false"}}, id="a member tells nobody"),
        pytest.param({"deletionTimestamp": "2026-01-01T00:00:00Z"}, id="on its way out"),
    ],
)
def test_the_host_tells_only_what_it_decides(change: Raw) -> None:
    made = host_group()
    made["metadata"] |= change
    assert not plan_host_task(made, [resource(made, "bob")], {}, {"bob": PARTNER}, phase="", now=NOW).actions


def test_who_speaks_another_protocol_is_not_told() -> None:
    assert master_of("bob", {"bob": PARTNER}) == "bob"
    assert not master_of("bob", {"bob": Partner(spec=PartnerSpec(role="partner", inter_conn_protocols=["bfia"]))})
    assert not master_of("bob", {"bob": OWN})
    assert not master_of("bob", {})


# -- tasks at the member -------------------------------------------------------------------------------------------------------


def summary_of(phase: TaskResourcePhase = "Reserving") -> Raw:
    made = host_group()
    plan = plan_host_task(made, [resource(made, "bob", phase)], {}, {"bob": PARTNER}, phase="Pending", now=NOW)
    [action] = plan.actions
    assert isinstance(action, Create)
    summary: Raw = copy_json(action.object)
    summary["metadata"] |= {"uid": "s", "resourceVersion": "5"}
    return summary


def local_job(phase: str = "Pending") -> Raw:
    made = kuscia_job("j", [job_task("first", ["alice", "bob"])])
    made["metadata"] |= {"uid": "job", "annotations": {KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR: "false"}}
    return {**made, "status": {"phase": phase}}


FACTS = Facts(parties={"alice": True, "bob": False}, images={"app": app_image()})


def test_the_member_makes_its_task_with_the_age_of_the_initiators() -> None:
    both = plan_task(TaskSides(summary=summary_of(), job=local_job(), facts=FACTS))
    [action] = both.here
    assert isinstance(action, Create)
    notes = annotations_of(action.object)
    assert notes[KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR] == "false"
    assert (notes[Muster.ORIGIN_UID], notes[Muster.SUMMARY_UID]) == ("uid-of-t", "s")
    assert [one["domainID"] for one in action.object["spec"]["parties"]] == ["alice", "bob"]
    assert not both.host


@pytest.mark.parametrize(
    ("job", "facts", "says"),
    [
        pytest.param(None, FACTS, "has not arrived yet", id="the job is not there"),
        pytest.param(local_job("AwaitingApproval"), FACTS, "is AwaitingApproval here", id="not approved"),
        pytest.param(local_job(), Facts(parties=FACTS.parties), "no AppImage app", id="no image"),
    ],
)
def test_why_the_member_does_not_begin_is_told_to_the_host(job: Raw | None, facts: Facts, says: str) -> None:
    both = plan_task(TaskSides(summary=summary_of(), job=job, facts=facts))
    assert not both.here
    [patch] = both.host
    assert isinstance(patch, Patch)
    assert patch.target.resource_version == "5"
    [status] = patch.patch["status"]["partyTaskStatus"]
    assert (status["domainID"], status["phase"]) == ("bob", "Pending")
    assert says in status["message"]


def task(**status: Any) -> Raw:
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaTask",
        "metadata": {"name": "t", "namespace": "cross-domain", "uid": "task", "annotations": {Muster.SUMMARY_UID: "s"}},
        "spec": {"initiator": "alice", "taskInputConfig": "", "parties": []},
        "status": status,
    }


def test_the_member_follows_the_host_and_tells_how_its_part_stands() -> None:
    made = member_group()
    said = [{"domainID": "alice", "phase": "Pending"}, {"domainID": "bob", "phase": "Running", "message": ""}]
    sides = TaskSides(
        summary=summary_of(), task=task(phase="Running", partyTaskStatus=said), group=made, resources=[resource(made, "bob")]
    )
    both = plan_task(sides)
    [local] = both.here
    assert isinstance(local, Patch)
    assert (local.target.kind, local.patch["status"]["phase"]) == ("TaskResource", "Reserving")
    [remote] = both.host
    assert isinstance(remote, Patch)
    assert remote.patch == {"status": {"partyTaskStatus": [{"domainID": "bob", "phase": "Running"}]}}


def test_the_member_votes() -> None:
    made = member_group()
    both = plan_task(TaskSides(summary=summary_of(), task=task(), group=made, resources=[resource(made, "bob", "Reserved")]))
    [remote] = both.host
    assert isinstance(remote, Patch)
    [entry] = remote.patch["status"]["resourceStatus"]["bob"]
    assert (entry["phase"], entry["memberTaskResourceVersion"]) == ("Reserved", "1")
    party_view = view_of(TaskResourceGroup, made).spec.parties[0]
    assert entry_of(remote.patch["status"], party_view) == entry


@pytest.mark.parametrize(("phase", "code"), [("Failed", "Stopped"), ("Succeeded", "Succeeded")])
def test_what_ended_at_the_host_ends_here(phase: str, code: str) -> None:
    summary = summary_of()
    summary["status"]["phase"] = phase
    [action] = plan_task(TaskSides(summary=summary, task=task(phase="Running"))).here
    assert isinstance(action, Patch)
    assert action.patch == {"metadata": {"annotations": {Muster.STOP: code}}}
    assert not plan_task(TaskSides(summary=summary, task=task(phase="Failed"))).here


def test_why_a_part_failed_is_told_even_if_nothing_of_it_is_left() -> None:
    said = {"domainID": "bob", "phase": "Failed", "reason": "Preempted", "message": "for more important work"}
    both = plan_task(TaskSides(summary=summary_of(), task=task(phase="Failed", partyTaskStatus=[said])))
    [remote] = both.host
    assert isinstance(remote, Patch)
    assert remote.patch == {"status": {"partyTaskStatus": [said]}}


def test_what_a_part_waits_for_before_anything_is_made_is_told() -> None:
    waits = task(phase="Pending", reason="AppImageNotFound", message="there is no AppImage app")
    [remote] = plan_task(TaskSides(summary=summary_of(), task=waits)).host
    assert isinstance(remote, Patch)
    [said] = remote.patch["status"]["partyTaskStatus"]
    assert (said["domainID"], said["phase"], said["reason"]) == ("bob", "Pending", "AppImageNotFound")


def voted() -> Raw:
    """A summary in which the initiator counts on the member."""
    summary = summary_of("Schedulable")
    summary["status"]["resourceStatus"]["bob"][0]["memberTaskResourceName"] = "tr-1"
    return summary


def test_a_task_is_made_once_for_an_attempt() -> None:
    both = plan_task(TaskSides(summary=voted(), job=local_job(), facts=FACTS))
    assert not both.here, "the initiator's pods may run by now: beginning again is for it to decide"
    [remote] = both.host
    assert isinstance(remote, Patch)
    [said] = remote.patch["status"]["partyTaskStatus"]
    assert (said["domainID"], said["phase"], said["reason"]) == ("bob", "Failed", "EvictedByAdmin")
    assert [(target.kind, target.name) for target in both.absent] == [("KusciaTask", "t")], "the store is asked first"
    summary = voted()
    summary["status"]["partyTaskStatus"] = [said]
    after = plan_task(TaskSides(summary=summary, job=local_job(), facts=FACTS))
    assert not after.here
    assert not after.host


def test_a_member_that_joins_late_had_promised_nothing() -> None:
    """Its party is not needed: the others have begun."""
    [action] = plan_task(TaskSides(summary=summary_of("Schedulable"), job=local_job(), facts=FACTS)).here
    assert isinstance(action, Create)


def test_what_was_reserved_for_the_last_attempt_is_no_vote_for_this_one() -> None:
    made = member_group()
    made["metadata"]["annotations"][Muster.SUMMARY_UID] = "another"
    both = plan_task(TaskSides(summary=summary_of(), group=made, resources=[resource(made, "bob", "Reserved")]))
    assert not both.here
    assert not both.host


def test_while_the_last_attempt_ends_the_host_is_told() -> None:
    old = task(phase="Failed")
    old["metadata"] |= {"annotations": {Muster.SUMMARY_UID: "another"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    both = plan_task(TaskSides(summary=summary_of(), task=old))
    assert not both.here, "it is on its way"
    [remote] = both.host
    assert isinstance(remote, Patch)
    [said] = remote.patch["status"]["partyTaskStatus"]
    assert (said["phase"], said["message"]) == ("Pending", "the last attempt ends")


@pytest.mark.parametrize("has_voted", [True, False], ids=["after its vote", "before"])
def test_a_summary_that_was_deleted_is_made_again_and_says_what_that_means(has_voted: bool) -> None:
    made = host_group()
    theirs = resource(made, "bob", "Schedulable")
    if has_voted:
        theirs["status"]["conditions"].append({"type": "Reserved", "status": "True"})
    [action] = plan_host_task(made, [theirs], {}, {"bob": PARTNER}, phase="Running", now=NOW).actions
    assert isinstance(action, Create)
    said = [(one["domainID"], one["phase"], one["reason"]) for one in action.object["status"].get("partyTaskStatus", [])]
    assert said == ([("bob", "Failed", "EvictedByAdmin")] if has_voted else [])


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced by another attempt", "gone"])
def test_a_task_goes_with_its_summary(replaced: bool) -> None:
    summary = summary_of() if replaced else None
    if summary is not None:
        summary["metadata"]["uid"] = "another"
    [action] = plan_task(TaskSides(summary=summary, task=task())).here
    assert isinstance(action, Delete)


def test_the_host_has_no_say_about_own_tasks() -> None:
    """A summary with the name of a task that was made here."""
    made = member_group()
    made["metadata"]["annotations"][KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR] = "true"
    own = task()
    del own["metadata"]["annotations"]
    found = [resource(made, "bob")]
    for sides in (
        TaskSides(summary=summary_of("Schedulable"), task=own, group=made, resources=found),
        TaskSides(summary=summary_of("Schedulable"), group=made, resources=found),
        TaskSides(summary=None, task=own),
    ):
        both = plan_task(sides)
        assert not both.here
        assert not both.host


# -- jobs ----------------------------------------------------------------------------------------------------------------------


def host_job(**status: Any) -> Raw:
    made = kuscia_job("j", [job_task("first", ["alice", "bob"], taskID="j-first")])
    made["metadata"] |= {"uid": "job", "resourceVersion": "3", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**made, "status": status}


def copies_of(job: Raw) -> list[Raw]:
    made = []
    for action in plan_host_job("j", job, [], [], {"alice": OWN, "bob": PARTNER}).actions:
        assert isinstance(action, Create)
        made.append(copy_json(action.object))
        made[-1]["metadata"] |= {"uid": made[-1]["kind"], "resourceVersion": "5"}
    return made


def test_a_partner_gets_a_copy_of_the_job_without_task_ids() -> None:
    mirror, summary = copies_of(host_job(phase="AwaitingApproval"))
    assert (mirror["kind"], namespace_of(mirror), summary["kind"], namespace_of(summary)) == (
        "KusciaJob",
        "bob",
        "KusciaJobSummary",
        "bob",
    )
    assert "taskID" not in mirror["spec"]["tasks"][0]
    assert summary["spec"] == {"stage": "Create", "stageTrigger": "alice"}
    assert not plan_host_job(
        "j", host_job(phase="AwaitingApproval"), [mirror], [summary], {"alice": OWN, "bob": PARTNER}
    ).actions


def test_copies_go_with_their_job_and_nothing_else_does() -> None:
    mirror, summary = copies_of(host_job())
    stranger = copy_json(mirror)
    del stranger["metadata"]["labels"]
    actions = plan_host_job("j", None, [mirror, stranger], [summary], {}).actions
    assert [type(action) for action in actions] == [Delete, Delete]
    replaced = host_job()
    replaced["metadata"]["uid"] = "another"
    actions = plan_host_job("j", replaced, [mirror], [summary], {"alice": OWN, "bob": PARTNER}).actions
    assert [type(action) for action in actions] == [Delete, Delete]


def test_approvals_go_from_the_member_to_the_job() -> None:
    domains = {"alice": PARTNER, "bob": OWN}
    mirror, summary = copies_of(host_job(phase="AwaitingApproval"))
    [made] = plan_job(mirror, summary, None, domains).here
    assert isinstance(made, Create)
    job = {**made.object, "status": {"phase": "Pending", "approveStatus": {"bob": "JobAccepted", "alice": "JobRejected"}}}
    job["metadata"]["labels"] |= {KusciaLabel.JOB_STAGE: "Create", KusciaLabel.JOB_STAGE_TRIGGER: "alice"}
    both = plan_job(mirror, summary, job, domains)
    [patch] = both.host
    assert isinstance(patch, Patch)
    assert patch.patch["status"] == {
        "approveStatus": {"bob": "JobAccepted"},
        "stageStatus": {"bob": "JobCreateStageSucceeded"},
    }
    summary["status"] |= patch.patch["status"] | {"approveStatus": {"bob": "JobAccepted", "alice": "JobRejected"}}
    actions = plan_host_job(
        "j", host_job(phase="AwaitingApproval"), [mirror], [summary], {"alice": OWN, "bob": PARTNER}
    ).actions
    assert [action.status for action in actions] == [  # type: ignore[union-attr]
        {"approveStatus": {"bob": "JobAccepted"}, "stageStatus": {"bob": "JobCreateStageSucceeded"}}
    ]


def copy_of(mirror: Raw, summary: Raw, **status: Any) -> Raw:
    """The member's KusciaJob, as it is made."""
    [made] = plan_job(mirror, summary, None, {"alice": PARTNER, "bob": OWN}).here
    assert isinstance(made, Create)
    job: Raw = copy_json(made.object)
    job["metadata"] |= {"uid": "copy", "resourceVersion": "8"}
    return {**job, "status": status}


def test_the_phase_goes_from_the_host_to_the_member() -> None:
    domains = {"alice": PARTNER, "bob": OWN}
    mirror, summary = copies_of(host_job(phase="Running"))
    job = copy_of(mirror, summary)
    failed = host_job(phase="Failed", reason="OOMKilled")
    [told] = plan_host_job("j", failed, [mirror], [summary], {"alice": OWN, "bob": PARTNER}).actions
    assert isinstance(told, Patch)
    assert told.patch == {"status": {"phase": "Failed", "reason": "OOMKilled"}}
    summary["status"] |= told.patch["status"]
    [here] = plan_job(mirror, summary, job, domains).here
    assert isinstance(here, Patch)
    assert here.target.resource_version == "8"
    assert here.patch["metadata"]["annotations"] == {Muster.HOST_PHASE: "Failed", Muster.HOST_REASON: "OOMKilled"}


def test_a_job_that_failed_at_the_host_did_not_fail_to_be_taken_up_here() -> None:
    mirror, summary = copies_of(host_job(phase="Running"))
    job = copy_of(mirror, summary, phase="Failed", approveStatus={"bob": "JobAccepted"})
    job["metadata"]["annotations"][Muster.HOST_PHASE] = "Failed"
    [remote] = plan_job(mirror, summary, job, {"alice": PARTNER, "bob": OWN}).host
    assert isinstance(remote, Patch)
    assert remote.patch["status"]["stageStatus"] == {"bob": "JobCreateStageSucceeded"}


def test_a_command_goes_from_the_member_to_the_job() -> None:
    mirror, summary = copies_of(host_job(phase="Running"))
    job = copy_of(mirror, summary)
    labels = {KusciaLabel.JOB_STAGE: "Cancel", KusciaLabel.JOB_STAGE_TRIGGER: "bob", KusciaLabel.JOB_STAGE_VERSION: "1"}
    job["metadata"]["labels"] |= labels
    both = plan_job(mirror, summary, job, {"alice": PARTNER, "bob": OWN})
    assert all("labels" not in action.patch["metadata"] for action in both.here if isinstance(action, Patch))
    [remote] = both.host
    assert isinstance(remote, Patch)
    summary = apply_merge_patch(summary, remote.patch)
    assert summary["spec"] == {"stage": "Cancel", "stageTrigger": "bob"}
    [taken] = plan_host_job("j", host_job(phase="Running"), [mirror], [summary], {"alice": OWN, "bob": PARTNER}).actions
    assert isinstance(taken, Patch)
    assert (taken.target.kind, taken.target.resource_version) == ("KusciaJob", "3")
    assert taken.patch == {"metadata": {"labels": labels}}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Cancelled"])
def test_a_job_that_is_over_and_was_cleaned_up_here_does_not_come_back(phase: str) -> None:
    mirror, summary = copies_of(host_job(phase=phase))
    assert not plan_job(mirror, summary, None, {"alice": PARTNER, "bob": OWN}).here


@pytest.mark.parametrize("domains", [{"alice": OWN, "bob": OWN}, {"bob": OWN}], ids=["ours", "unknown"])
def test_nobody_starts_a_job_in_the_name_of_a_party_that_is_no_partner(domains: dict[str, Partner]) -> None:
    mirror, summary = copies_of(host_job())
    both = plan_job(mirror, summary, None, domains)
    assert not both.here
    assert not both.host


def test_a_job_that_was_made_here_is_left_alone() -> None:
    mirror, summary = copies_of(host_job())
    own = host_job()
    for at_host in (mirror, None):
        both = plan_job(at_host, summary, own, {"alice": PARTNER, "bob": OWN})
        assert not both.here
        assert not both.host
    assert labels_of(mirror)
