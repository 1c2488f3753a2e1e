from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.job_commands import Command, approval_patch, command_patch, rerun_from_patch, rerun_name, rerun_of
from muster.objects.labels import KusciaLabel, Muster
from muster.objects.names import validate_label_name
from muster.objects.status import BadRequest, Conflict, Raw
from tests.client.job_objects import kuscia_job, own_job

STAGE = "kuscia.secretflow/job-stage"
VERSION = "kuscia.secretflow/job-stage-version"


def staged(stage: str, version: str = "4") -> Raw:
    return {"labels": {STAGE: stage, VERSION: version}}


@pytest.mark.parametrize(
    ("command", "phase", "stage"),
    [
        (Command.STOP, "Running", "Stop"),
        (Command.STOP, "AwaitingApproval", "Stop"),
        (Command.CANCEL, "Pending", "Cancel"),
        (Command.CANCEL, "Failed", "Cancel"),
        (Command.SUSPEND, "Running", "Suspend"),
        (Command.RESUME, "Suspended", "Restart"),
        (Command.RESTART, "Failed", "Restart"),
        (Command.RESTART, "Suspended", "Restart"),
    ],
)
def test_a_stage_command_writes_the_next_version(command: Command, phase: str, stage: str) -> None:
    patch = command_patch(kuscia_job(phase=phase, metadata=staged("Start")), command, trigger="bob")
    assert patch == {
        "metadata": {
            "resourceVersion": "7",
            "labels": {STAGE: stage, "kuscia.secretflow/job-stage-trigger": "bob", VERSION: "5"},
        }
    }


@pytest.mark.parametrize("version", ["", "x", "-3", "9" * 40])
def test_a_version_that_cant_be_read_counts_as_none(version: str) -> None:
    patch = command_patch(kuscia_job(phase="Running", metadata=staged("Start", version)), Command.STOP)
    assert patch is not None
    assert patch["metadata"]["labels"][VERSION] == "1"
    assert patch["metadata"]["labels"][KusciaLabel.JOB_STAGE_TRIGGER] == "alice"


@pytest.mark.parametrize(
    ("version", "answered", "following"),
    [
        pytest.param("123456789012", 0, "123456789013", id="as long as the controller reads"),
        pytest.param("x", 6, "7", id="past the last one that was answered"),
        pytest.param("3", 6, "7", id="a lower one would be passed over in silence"),
    ],
)
def test_the_next_version_is_one_that_the_controller_takes_for_new(version: str, answered: int, following: str) -> None:
    raw = kuscia_job(phase="Running", metadata=staged("Start", version), status={"stageVersion": answered, "stage": "Start"})
    patch = command_patch(raw, Command.STOP)
    assert patch is not None
    assert patch["metadata"]["labels"][VERSION] == following


def test_a_command_that_was_refused_may_be_given_again() -> None:
    refused = {"type": "JobStageAccepted", "status": "False", "message": "Suspend is possible in the phases Running"}
    status = {"stage": "Suspend", "stageVersion": 4, "conditions": [refused]}
    patch = command_patch(kuscia_job(phase="Running", metadata=staged("Suspend"), status=status), Command.SUSPEND)
    assert patch is not None
    assert patch["metadata"]["labels"][VERSION] == "5"


@pytest.mark.parametrize(
    ("command", "state", "phase", "wanted"),
    [
        (Command.STOP, "", "Running", "Stopped"),
        (Command.SUSPEND, "Running", "Queued", "Suspended"),
        (Command.RESUME, "Suspended", "Suspended", "Running"),
        (Command.RESTART, "Suspended", "Suspended", "Running"),
        (Command.CANCEL, "Suspended", "Suspended", "Cancelled"),
    ],
)
def test_a_job_is_told_by_its_state(command: Command, state: str, phase: str, wanted: str) -> None:
    patch = command_patch(own_job(phase=phase, state=state), command)
    assert patch == {"metadata": {"resourceVersion": "9"}, "spec": {"state": wanted}}


@pytest.mark.parametrize(
    ("job", "command"),
    [
        (kuscia_job(phase="Running", metadata=staged("Stop")), Command.STOP),
        (kuscia_job(phase="Failed", metadata=staged("Stop")), Command.STOP),
        (kuscia_job(phase="Cancelled", metadata=staged("Cancel")), Command.CANCEL),
        (own_job(phase="Running", state="Suspended"), Command.SUSPEND),
        (own_job(phase="Running"), Command.RESUME),
    ],
)
def test_what_was_said_already_changes_nothing(job: Raw, command: Command) -> None:
    assert command_patch(job, command) is None


@pytest.mark.parametrize(
    ("job", "command", "way_out"),
    [
        (kuscia_job(phase="Succeeded"), Command.STOP, "nothing left to end"),
        (kuscia_job(phase="Succeeded"), Command.CANCEL, "nothing left to end"),
        (kuscia_job(phase="Pending"), Command.SUSPEND, "wait until it runs, or stop it"),
        (kuscia_job(phase="Failed"), Command.SUSPEND, "restart or rerun it"),
        (kuscia_job(phase="Failed"), Command.RESUME, "restart one that failed"),
        (kuscia_job(phase="Running"), Command.RESTART, "stop or suspend it first"),
        (kuscia_job(phase="Succeeded"), Command.RESTART, "muster job rerun train"),
        (kuscia_job(phase="Cancelled"), Command.RESTART, "muster job rerun train"),
        (own_job(phase="Failed"), Command.RESTART, "muster job rerun fit"),
        (own_job(phase="Cancelled"), Command.RESUME, "rerun one that has ended"),
    ],
)
def test_what_cant_be_done_says_why_and_what_to_do(job: Raw, command: Command, way_out: str) -> None:
    with pytest.raises(Conflict, match=way_out) as refused:
        command_patch(job, command)
    assert str(job["metadata"]["name"]) in refused.value.message
    assert "status.phase is" in refused.value.message


def test_only_a_party_commands() -> None:
    with pytest.raises(BadRequest, match=r"party 'mallory' takes no part .* its parties are: alice, bob"):
        command_patch(kuscia_job(phase="Running"), Command.STOP, trigger="mallory")


class TestRerunFrom:
    def test_in_place(self) -> None:
        patch = rerun_from_patch(kuscia_job(phase="Failed"), ["first", "then"])
        assert patch["metadata"]["annotations"] == {Muster.RERUN_FROM: "first,then"}
        assert patch["metadata"]["labels"][STAGE] == "Restart"

    @pytest.mark.parametrize(
        ("job", "error", "says"),
        [
            (kuscia_job(phase="Running"), Conflict, "stop it first"),
            (kuscia_job(phase="Cancelled"), Conflict, "leave --from out"),
            (own_job(phase="Failed"), BadRequest, "has no tasks"),
        ],
    )
    def test_refused(self, job: Raw, error: type[Exception], says: str) -> None:
        with pytest.raises(error, match=says):
            rerun_from_patch(job, ["first"])

    def test_unknown_task(self) -> None:
        with pytest.raises(BadRequest, match="no task 'frist'; its tasks are: first, then"):
            rerun_from_patch(kuscia_job(phase="Failed"), ["frist"])


class TestRerun:
    def test_a_new_job_has_the_old_spec_and_nothing_of_the_old_run(self) -> None:
        old = kuscia_job(
            phase="Failed",
            metadata={
                "labels": {STAGE: "Stop", VERSION: "3", "team": "blue"},
                "annotations": {
                    Muster.RERUN_FROM: "first",
                    "note": "kept",
                    "kubectl.kubernetes.io/last-applied-configuration": "{}",
                },
                "finalizers": ["x"],
            },
        )
        old["spec"]["tasks"][0]["taskID"] = "fixed"
        new = rerun_of(old, 2)
        assert new["metadata"] == {
            "name": "train-rerun-2",
            "namespace": "cross-domain",
            "labels": {"team": "blue"},
            "annotations": {"note": "kept", Muster.RERUN_OF: "train"},
        }
        assert "taskID" not in new["spec"]["tasks"][0]
        assert old["spec"]["tasks"][0]["taskID"] == "fixed"
        assert "status" not in new

    def test_state_of_a_job_begins_anew(self) -> None:
        assert "state" not in rerun_of(own_job(phase="Cancelled", state="Cancelled"), 1)["spec"]

    def test_not_while_it_runs(self) -> None:
        with pytest.raises(Conflict, match=r"can't rerun: status\.phase is Running; stop it first"):
            rerun_of(kuscia_job(phase="Running"), 1)

    def test_pods_of_the_new_job_can_be_named(self) -> None:
        old = own_job("f" * 50, phase="Failed", spec={"roles": [{"name": "worker", "replicas": 100}]})
        name = rerun_of(old, 12)["metadata"]["name"]
        assert name.endswith("-rerun-12")
        assert len(f"{name}-worker-99") <= 63

    @given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True), st.integers(1, 99_999))
    def test_names_stay_names_and_do_not_pile_up(self, name: str, number: int) -> None:
        new = rerun_name(name, number)
        assert validate_label_name(new) == []
        assert rerun_name(new, number) == new


class TestApproval:
    def test_says_so_in_the_status(self) -> None:
        job = kuscia_job(phase="AwaitingApproval")
        assert approval_patch(job, "bob", is_accepted=True) == {
            "metadata": {"resourceVersion": "7"},
            "status": {"approveStatus": {"bob": "JobAccepted"}},
        }
        rejected = approval_patch(job, "bob", is_accepted=False)
        assert rejected is not None
        assert rejected["status"]["approveStatus"] == {"bob": "JobRejected"}

    def test_once_is_enough(self) -> None:
        job = kuscia_job(phase="Running", status={"approveStatus": {"bob": "JobAccepted"}})
        assert approval_patch(job, "bob", is_accepted=True) is None

    @pytest.mark.parametrize(
        ("job", "party", "says"),
        [
            (kuscia_job(phase="AwaitingApproval"), "carol", "takes no part"),
            (kuscia_job(phase="Running"), "bob", "only while it awaits approval"),
            (own_job(phase="Queued"), "bob", "needs no approval"),
        ],
    )
    def test_refused(self, job: Raw, party: str, says: str) -> None:
        with pytest.raises((BadRequest, Conflict), match=says):
            approval_patch(job, party, is_accepted=True)
