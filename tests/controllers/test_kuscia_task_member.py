"""A task over several control planes: what the initiator makes of what partners say, and what a member does by itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.controllers.kuscia_tasks import party, task
from tests.controllers.test_kuscia_task_plan import NOW, applied, state_of, with_group, with_pods, with_resources, written

from muster.controllers.actions import Delete, PatchStatus, Together
from muster.controllers.kuscia_task_parts import TaskState
from muster.controllers.kuscia_task_plan import PARTNERS_WORD_S, plan
from muster.controllers.kuscia_task_pods import TaskPod
from muster.objects.kinds.kuscia_tasks import PartyTaskStatus
from muster.objects.labels import KusciaAnnotation, Muster
from muster.objects.meta import annotations_of
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import view_of

GONE = {"deletionTimestamp": format_time(NOW)}
MARKED = [
    {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for more important work"}
]


def ran(*parties: Raw, notes: dict[str, str] | None = None, **spec: Any) -> TaskState:
    """All pods run, and that was written down."""
    raw = task("t1", *parties, **spec)
    raw["metadata"]["annotations"] = notes or {}
    state = state_of(raw)
    state = applied(state, plan(state))
    state = with_pods(with_resources(with_group(state, "Reserved")), "Running")
    for _ in range(2):
        state = applied(state, plan(state))
    assert state.view.status.phase == "Running"
    return state


def host(**spec: Any) -> TaskState:
    """carol has a control plane of her own."""
    return ran(party("alice", "host"), party("carol", "guest"), **spec)


def member(*parties: Raw, **spec: Any) -> TaskState:
    """carol is the initiator."""
    notes = {KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR: "false", Muster.SUMMARY_UID: "s"}
    return ran(*parties, party("carol", "guest"), notes=notes, **spec)


def with_pod(state: TaskState, index: int, **changes: Any) -> TaskState:
    raw = msgspec.to_builtins(state.pods[index])
    raw = {**raw, "metadata": {**raw["metadata"], **changes.pop("metadata", {})}, "status": {**raw["status"], **changes}}
    pods = list(state.pods)
    pods[index] = view_of(TaskPod, raw)
    return msgspec.structs.replace(state, pods=pods)


def told(state: TaskState, phase: Any, reason: str = "", message: str = "why") -> TaskState:
    """What carol says."""
    said = PartyTaskStatus(domain_id="carol", role="guest", phase=phase, reason=reason, message=message)
    return msgspec.structs.replace(state, partners={("carol", "guest"): said})


def parts(status: Raw) -> dict[str, tuple[str, str]]:
    return {one["domainID"]: (one.get("phase", ""), one.get("reason", "")) for one in status["partyTaskStatus"]}


# -- at the initiator ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "retry", "expected"),
    [
        pytest.param("Preempted", None, ("Pending", "Preempted", 1), id="preempted"),
        pytest.param("EvictedByAdmin", None, ("Pending", "EvictedByAdmin", 1), id="evicted"),
        pytest.param("ContainerFailed", {"limit": 3}, ("Pending", "BackingOff", None), id="failed, and may be retried"),
        pytest.param("ContainerFailed", {"limit": 0}, ("Failed", "ContainerFailed", None), id="failed, for good"),
        pytest.param("", None, ("Failed", "PartyFailed", None), id="failed, and does not say why"),
    ],
)
def test_a_partners_failure_counts_as_an_own_one(reason: str, retry: Raw | None, expected: tuple[Any, ...]) -> None:
    state = told(host(**({"retry": retry} if retry else {})), "Failed", reason)
    status = written(plan(state))
    assert (status["phase"], status["reason"], status.get("preemptions")) == expected
    assert "party carol: why" in status["message"]
    after = applied(state, plan(state))
    if expected[0] == "Pending":
        [action] = plan(after).actions
        assert isinstance(action, Delete), "the group goes, and with it what the partner was told by"
        assert action.target.kind == "TaskResourceGroup"


def test_a_failure_waits_a_moment_for_what_partners_say() -> None:
    """The application failed because its peer was taken away, and the news of that is still on its way."""
    failed = with_pod(told(host(), "Running"), 0, phase="Failed")
    decided = plan(failed)
    assert decided.requeue_after_s == PARTNERS_WORD_S
    assert parts(written(decided)) == {"alice": ("Failed", "ContainerFailed"), "carol": ("Running", "")}
    waiting = applied(failed, decided)
    assert waiting.view.status.phase == "Running"
    again = plan(waiting)
    assert not again.actions
    assert again.requeue_after_s == PARTNERS_WORD_S
    lost = told(waiting, "Failed", "Preempted")
    status = written(plan(lost))
    assert (status["phase"], status["reason"], status["preemptions"]) == ("Pending", "Preempted", 1)
    assert {one["type"]: one["status"] for one in status["conditions"]}["PartyFailed"] == "False"
    silent = msgspec.structs.replace(waiting, now=NOW + PARTNERS_WORD_S)
    assert written(plan(silent))["reason"] == "ContainerFailed"
    assert written(plan(told(waiting, "Failed", "OOMKilled")))["phase"] == "Failed", "nobody is left to wait for"


# -- at a member ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"phase": "Failed"}, "ContainerFailed", id="failed"),
        pytest.param({"metadata": GONE, "conditions": MARKED}, "Preempted", id="preempted"),
        pytest.param({"metadata": GONE}, "EvictedByAdmin", id="deleted"),
        pytest.param({"phase": "Failed", "reason": "NodeLost"}, "EvictedByAdmin", id="lost with its node"),
    ],
)
def test_a_member_ends_its_side_and_starts_nothing_again(change: Raw, reason: str) -> None:
    state = with_pod(member(party("alice", "host"), retry={"limit": 5}), 0, **change)
    status = written(plan(state))
    assert (status["phase"], status["reason"]) == ("Failed", reason)
    assert parts(status)["alice"] == ("Failed", reason)
    assert not status.get("retryTime")
    assert "preemptions" not in status


def test_a_member_whose_group_is_deleted_ends() -> None:
    state = msgspec.structs.replace(member(party("alice", "host")), group=None, group_view=None)
    decided = plan(state)
    assert (written(decided)["phase"], parts(written(decided))["alice"]) == ("Failed", ("Failed", "EvictedByAdmin"))
    assert [target.kind for target in decided.absent] == ["TaskResourceGroup"], "the store is asked first"


def test_one_of_two_parties_of_a_member_ends_alone() -> None:
    """alice's other pod is stopped after her failure was written, and does not change what was written."""
    state = with_pod(member(party("alice", "host", template={"replicas": 2}), party("bob", "guest")), 0, phase="Failed")
    first = plan(state)
    status = written(first)
    assert "phase" not in status, "it goes on: whether bob is enough is the initiator's to say"
    assert parts(status)["alice"] == ("Failed", "ContainerFailed")
    assert not any(isinstance(action, Together) for action in first.actions)
    state = applied(state, first)
    [together] = plan(state).actions
    assert isinstance(together, Together)
    assert [action.target.name for action in together.actions if isinstance(action, Delete)] == ["t1-host-1"]
    state = with_pod(state, 1, metadata=GONE)
    stopped = plan(state)
    assert all("partyTaskStatus" not in action.status for action in stopped.actions if isinstance(action, PatchStatus))
    state = with_pod(state, 2, metadata=GONE, conditions=MARKED)
    status = written(plan(state))
    assert (status["phase"], status["reason"]) == ("Failed", "Preempted"), "a loss explains a failure beside it"
    assert parts(status)["bob"] == ("Failed", "Preempted")


def test_a_member_has_succeeded_when_the_initiator_says_so() -> None:
    state = with_pod(member(party("alice", "host")), 0, phase="Succeeded")
    status = written(plan(state))
    assert "phase" not in status
    assert parts(status)["alice"] == ("Succeeded", "")
    state = applied(state, plan(state))
    meta = {**state.task["metadata"], "annotations": {**annotations_of(state.task), Muster.STOP: "Succeeded"}}
    status = written(plan(msgspec.structs.replace(state, task={**state.task, "metadata": meta})))
    assert (status["phase"], status["reason"]) == ("Succeeded", "Succeeded")


def test_only_a_member_is_told_that_it_has_succeeded() -> None:
    state = host()
    meta = {**state.task["metadata"], "annotations": {Muster.STOP: "Succeeded"}}
    assert written(plan(msgspec.structs.replace(state, task={**state.task, "metadata": meta})))["phase"] == "Failed"


def test_an_app_image_that_changes_ends_what_a_member_prepares() -> None:
    """What it promised may count already, so it can't be put together anew here."""
    raw = task("t1", party("alice", "host"), party("carol", "guest"))
    raw["metadata"]["annotations"] = {KusciaAnnotation.SELF_CLUSTER_AS_INITIATOR: "false"}
    state = state_of(raw)
    state = with_group(applied(state, plan(state)))
    group: Raw = {**(state.group or {})}
    group["metadata"] = {**group["metadata"], "annotations": {**annotations_of(group), Muster.KIT: "another"}}
    status = written(plan(msgspec.structs.replace(state, group=group)))
    assert (status["phase"], parts(status)["alice"]) == ("Failed", ("Failed", "EvictedByAdmin"))
