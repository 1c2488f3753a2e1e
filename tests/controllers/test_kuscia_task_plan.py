"""The plan as a function: what it does in each situation, and that doing it twice, or from a stale cache, does no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.controllers.kuscia_tasks import app_image, container, party, task, template

from muster.controllers.actions import Create, Delete, Emit, Patch, PatchStatus, Target, Together
from muster.controllers.kuscia_task_end import TaskPlan
from muster.controllers.kuscia_task_parts import TaskState, group_of, objects_of
from muster.controllers.kuscia_task_plan import kits_of, plan, refuse
from muster.controllers.kuscia_task_pods import TaskPod
from muster.controllers.parties import Party
from muster.controllers.task_reservation_parts import task_resource_name
from muster.engine.work import decode_work
from muster.objects.kinds.kuscia_tasks import KusciaTask, TaskResourceGroup
from muster.objects.labels import Muster
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import view_of

NOW = 1_800_000_000.0
IMAGE = app_image(
    "app",
    template(container(ports=[{"name": "spu", "scope": "Cluster"}], configVolumeMounts=[{"mountPath": "/c", "subPath": "c"}])),
    files={"c": "{{.TASK_ID}}"},
)


def state_of(raw: Raw, **fields: Any) -> TaskState:
    meta = {
        "uid": "uid-t",
        "resourceVersion": "5",
        "creationTimestamp": format_time(NOW - 100),
        "finalizers": [Muster.TASK_FINALIZER],
    }
    raw = {**raw, "metadata": {**meta, **raw["metadata"]}}
    found: dict[str, Any] = {
        "find_image": lambda name: IMAGE if name == "app" else None,
        "find_party": lambda name: Party(is_partner=name == "carol") if name in ("alice", "bob", "carol") else None,
        "now": NOW,
        **fields,
    }
    return TaskState(task=raw, view=view_of(KusciaTask, raw), **found)


def with_group(state: TaskState, phase: str = "Reserving", **meta: Any) -> TaskState:
    group = group_of(state, kits_of(state))
    group["metadata"] |= {"uid": "uid-g", "resourceVersion": "7", **meta}
    group["status"] = {"phase": phase}
    return msgspec.structs.replace(state, group=group, group_view=view_of(TaskResourceGroup, group))


def with_resources(state: TaskState) -> TaskState:
    found = {
        (p.domain_id, task_resource_name(state.uid, p.domain_id, p.role)): f"uid-{p.domain_id}" for p in state.view.spec.parties
    }
    return msgspec.structs.replace(state, resources=found)


def with_pods(state: TaskState, phase: str = "Pending", **status: Any) -> TaskState:
    made = objects_of(state, kits_of(state))
    pods = []
    for one in made.pods:
        one["metadata"]["uid"] = f"uid-{one['metadata']['name']}"
        pods.append(view_of(TaskPod, {**one, "status": {"phase": phase, **status}}))
    others = [Target("", one["kind"], one["metadata"]["name"], one["metadata"]["namespace"], "u") for one in made.before]
    return msgspec.structs.replace(state, pods=pods, others=others)


def applied(state: TaskState, decided: TaskPlan) -> TaskState:
    """The state after the status writes of a plan, with a new version."""
    status = dict(state.status)
    for action in decided.actions:
        if isinstance(action, PatchStatus):
            status = merged(status, action.status)
    meta = {**state.task["metadata"], "resourceVersion": str(int(state.task["metadata"]["resourceVersion"]) + 1)}
    raw = {**state.task, "metadata": meta, "status": status}
    return msgspec.structs.replace(state, task=raw, view=view_of(KusciaTask, raw))


def merged(old: Raw, patch: Raw) -> Raw:
    result = dict(old)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def written(decided: TaskPlan) -> Raw:
    found = [action for action in decided.actions if isinstance(action, PatchStatus)]
    assert len(found) == 1, decided
    assert found[0].target.resource_version, "a status write names the version that it was planned from"
    return found[0].status


def fresh(**fields: Any) -> TaskState:
    return state_of(task(), **fields)


def allocated(**fields: Any) -> TaskState:
    state = fresh(**fields)
    return applied(state, plan(state))


def created(phase: str = "Pending", **fields: Any) -> TaskState:
    """All pods seen, and written down as such."""
    state = with_pods(with_resources(with_group(allocated(**fields))), phase)
    state = applied(state, plan(state))
    return state


def test_the_finalizer_comes_first() -> None:
    state = fresh()
    raw = {**state.task, "metadata": {**state.task["metadata"], "finalizers": []}}
    [action] = plan(msgspec.structs.replace(state, task=raw)).actions
    assert isinstance(action, Patch)
    assert action.patch == {"metadata": {"finalizers": ["muster.dev/task"]}}
    assert action.target.resource_version == "5"


def test_ports_come_before_anything_is_made() -> None:
    decided = plan(fresh())
    status = written(decided)
    assert status["phase"] == "Pending"
    assert status["attempts"] == 1
    assert [one["domainID"] for one in status["allocatedPorts"]] == ["alice", "bob"]
    assert status["conditions"][0]["type"] == "PortsAllocated"
    assert decided.allocated is not None
    assert len(decided.actions) == 1


def test_then_the_group() -> None:
    [action] = plan(allocated()).actions
    assert isinstance(action, Create)
    group = action.object
    assert group["metadata"]["name"] == "t1"
    assert group["metadata"]["labels"]["kuscia.secretflow/task-uid"] == "uid-t"
    notes = group["metadata"]["annotations"]
    assert notes["muster.dev/attempt"] == "1"
    assert notes["muster.dev/origin-uid"] == "uid-t"
    assert notes["muster.dev/origin-created"] == format_time(NOW - 100)
    assert group["spec"] == {
        "initiator": "alice",
        "minReservedMembers": 2,
        "resourceReservedSeconds": 30,
        "retryIntervalSeconds": 30,
        "lifecycleSeconds": 0,
        "parties": [
            {
                "domainID": "alice", "role": "host", "minReservedPods": 1, "pods": [{"name": "t1-host-0"}],
                "taskResourceName": task_resource_name("uid-t", "alice", "host"),
            },
            {
                "domainID": "bob", "role": "guest", "minReservedPods": 1, "pods": [{"name": "t1-guest-0"}],
                "taskResourceName": task_resource_name("uid-t", "bob", "guest"),
            },
        ],
    }  # fmt: skip


def test_a_partner_has_no_pods_here() -> None:
    state = state_of(task("t1", party("alice", "host"), party("carol", "guest")))
    state = applied(state, plan(state))
    [action] = plan(state).actions
    assert isinstance(action, Create)
    assert [one["domainID"] for one in action.object["spec"]["parties"]] == ["alice"]
    [other] = action.object["spec"]["outOfControlledParties"]
    assert other["domainID"] == "carol"
    assert "pods" not in other
    made = objects_of(with_resources(with_group(state)), kits_of(state))
    assert [one["metadata"]["namespace"] for one in made.pods] == ["alice"]


@pytest.mark.parametrize("phase", ["", "Pending", "Creating"])
def test_pods_wait_for_the_reservation(phase: str) -> None:
    assert plan(with_resources(with_group(allocated(), phase))).actions == []


def test_pods_wait_for_task_resources() -> None:
    assert plan(with_group(allocated())).actions == []


def test_then_files_and_services_then_pods() -> None:
    before, pods = plan(with_resources(with_group(allocated()))).actions
    assert isinstance(before, Together)
    assert isinstance(pods, Together)
    kinds = [action.object["kind"] for action in before.actions if isinstance(action, Create)]
    assert sorted(kinds) == ["ConfigMap", "ConfigMap", "Service", "Service"]
    made = [action.object for action in pods.actions if isinstance(action, Create)]
    assert [one["metadata"]["name"] for one in made] == ["t1-host-0", "t1-guest-0"]
    meta = made[0]["metadata"]
    assert meta["labels"]["kuscia.secretflow/task-resource-group-uid"] == "uid-g"
    assert meta["labels"]["kuscia.secretflow/task-resource-uid"] == "uid-alice"
    assert meta["annotations"]["kuscia.secretflow/task-resource-group"] == "t1"
    assert meta["annotations"]["kuscia.secretflow/task-resource"] == task_resource_name("uid-t", "alice", "host")
    for one in (*made, *(action.object for action in before.actions if isinstance(action, Create))):
        [owner] = one["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("TaskResourceGroup", "uid-g", True)


def test_only_what_is_missing_is_made() -> None:
    state = with_pods(with_resources(with_group(allocated())))
    state = msgspec.structs.replace(state, pods=state.pods[:1])
    [action] = plan(state).actions
    assert isinstance(action, Together)
    [pod] = action.actions
    assert isinstance(pod, Create)
    assert pod.object["metadata"]["name"] == "t1-guest-0"


def test_pods_of_an_earlier_attempt_are_not_this_ones() -> None:
    state = with_pods(with_resources(with_group(allocated())))
    old = msgspec.structs.replace(state, pods=[_relabelled(pod, "uid-old") for pod in state.pods])
    [action] = plan(old).actions
    assert isinstance(action, Together)
    assert len(action.actions) == 2


def _relabelled(pod: TaskPod, group_uid: str) -> TaskPod:
    labels = {**pod.metadata.labels, "kuscia.secretflow/task-resource-group-uid": group_uid}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels))


def test_the_attempt_has_begun_when_all_pods_are_seen() -> None:
    status = written(plan(with_pods(with_resources(with_group(allocated())))))
    assert {one["type"]: one["status"] for one in status["conditions"]}["ResourceCreated"] == "True"
    assert set(status["serviceStatuses"]) == {"alice/t1-host-0-spu", "bob/t1-guest-0-spu"}


@pytest.mark.parametrize(
    ("phase", "expected"),
    [("Pending", "Pending"), ("Running", "Running"), ("Succeeded", "Succeeded"), ("Failed", "Failed")],
)
def test_the_task_follows_its_pods(phase: str, expected: str) -> None:
    state = created(phase)
    after = applied(state, plan(state))
    assert after.view.status.phase == expected
    assert bool(after.view.status.completion_time) == (expected in ("Succeeded", "Failed"))


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_nothing_is_written_when_nothing_has_changed(phase: str) -> None:
    state = created(phase)
    state = applied(state, plan(state))
    later = msgspec.structs.replace(state, now=NOW + 30)
    assert [action for action in plan(later).actions if isinstance(action, PatchStatus)] == []


def retried(**retry: Any) -> TaskState:
    state = created("Failed")
    raw = {**state.task, "spec": {**state.task["spec"], "retry": retry}}
    return msgspec.structs.replace(state, task=raw, view=view_of(KusciaTask, raw))


@pytest.mark.parametrize(
    ("attempts", "preemptions", "retry", "pause_s"),
    [
        pytest.param(1, 0, {"limit": 3, "backoffSeconds": 10}, 10, id="the first retry"),
        pytest.param(3, 0, {"limit": 3, "backoffSeconds": 10}, 40, id="the pause doubles"),
        pytest.param(3, 0, {"limit": 3, "backoffSeconds": 10, "backoffSecondsMax": 25}, 25, id="up to its limit"),
        pytest.param(4, 3, {"limit": 1, "backoffSeconds": 10}, 10, id="preemptions are no failures"),
        pytest.param(4, 0, {"limit": 3}, None, id="used up"),
        pytest.param(1, 0, {"limit": 0}, None, id="none"),
        pytest.param(900, 0, {"limit": 1000, "backoffSeconds": 10}, 3600, id="very often"),
    ],
)
def test_retries(attempts: int, preemptions: int, retry: Raw, pause_s: float | None) -> None:
    state = retried(**retry)
    group = {**(state.group or {}), "metadata": {**(state.group or {})["metadata"]}}
    group["metadata"]["annotations"] = {**group["metadata"]["annotations"], "muster.dev/attempt": str(attempts)}
    raw = {**state.task, "status": {**state.status, "attempts": attempts, "preemptions": preemptions}}
    state = msgspec.structs.replace(state, task=raw, view=view_of(KusciaTask, raw), group=group)
    status = written(plan(state))
    if pause_s is None:
        assert status["phase"] == "Failed"
        return
    assert status["retryTime"] == format_time(NOW + pause_s)
    assert status.get("phase", "Pending") == "Pending"
    assert status["reason"] == "BackingOff"


def ended_attempt() -> TaskState:
    state = retried(limit=1, backoffSeconds=10)
    return applied(state, plan(state))


def test_between_attempts_the_old_one_goes_first() -> None:
    state = ended_attempt()
    assert state.view.status.retry_time
    [action] = plan(state).actions
    assert isinstance(action, Delete)
    assert (action.target.kind, action.target.uid) == ("TaskResourceGroup", "uid-g")
    state = msgspec.structs.replace(state, group=None, group_view=None)
    assert "waits until alice/t1-host-0" in written(plan(state))["message"], "its pods go with their owner"
    state = msgspec.structs.replace(state, pods=[], others=[])
    waiting = plan(state)
    assert waiting.actions == ()
    assert waiting.requeue_after_s == pytest.approx(10)
    status = written(plan(msgspec.structs.replace(state, now=NOW + 10)))
    assert status["attempts"] == 2
    assert status["retryTime"] is None


def test_a_cache_of_tasks_that_lags_deletes_nothing_new() -> None:
    """The next attempt's group is there already; this plan still sees the task as it was before."""
    state = ended_attempt()
    group = {**(state.group or {}), "metadata": {**(state.group or {})["metadata"], "uid": "uid-new"}}
    group["metadata"]["annotations"] = {**group["metadata"]["annotations"], "muster.dev/attempt": "2"}
    assert plan(msgspec.structs.replace(state, group=group)).actions == ()
    state = msgspec.structs.replace(created("Running"), group=group)
    assert plan(state).actions == ()


def test_a_group_of_an_earlier_task_of_the_name_is_deleted() -> None:
    state = with_group(allocated(), labels={"kuscia.secretflow/task-uid": "uid-earlier"})
    [action] = plan(state).actions
    assert isinstance(action, Delete)
    assert action.target.uid == "uid-g"


def test_a_group_of_nobody_is_left_alone() -> None:
    status = written(plan(with_group(allocated(), labels={})))
    assert status["reason"] == "DuplicateName"
    assert "delete it" in status["message"]


def test_an_app_image_that_changed_meanwhile_starts_the_attempt_over() -> None:
    state = with_resources(with_group(allocated()))
    other = app_image("app", template(container(command=["other"])))
    changed = msgspec.structs.replace(state, find_image=lambda _name: other)
    [action] = plan(changed).actions
    assert isinstance(action, Delete)
    half = msgspec.structs.replace(with_pods(state), group=None, group_view=None)
    assert plan(half).actions == (), "what was made from the old one goes first"
    begun = msgspec.structs.replace(created("Running"), find_image=lambda _name: other)
    assert not any(isinstance(action, Delete) for action in plan(begun).actions), "what runs is left alone"


def test_a_deleted_group_means_that_the_task_had_to_give_way() -> None:
    state = created("Running")
    decided = plan(msgspec.structs.replace(state, group=None, group_view=None))
    assert decided.absent == [Target("kuscia.secretflow", "TaskResourceGroup", "t1")]
    status = written(decided)
    assert status["preemptions"] == 1
    assert status["retryTime"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"parties": []}, "spec.minReservedMembers is 2, and it has 0 parties", id="no parties"),
        pytest.param({"parties": [], "minReservedMembers": 0}, "it has 0 parties", id="nothing at all"),
        pytest.param({"minReservedMembers": 3}, "spec.minReservedMembers is 3, and it has 2 parties", id="too many members"),
        pytest.param(
            {"parties": [{"domainID": "alice", "minReservedPods": 1}, {"domainID": "bob", "pods": [{"name": "t1-guest-0"}]}]},
            "minReservedPods of party alice is 1, and it has 0 pods",
            id="no pods",
        ),
    ],
)
def test_a_group_that_was_changed_by_hand_is_made_anew(change: Raw, words: str) -> None:
    state = created("Running")
    assert state.group is not None
    group = {**state.group, "spec": {**state.group["spec"], **change}}
    view = view_of(TaskResourceGroup, group)
    status = written(plan(msgspec.structs.replace(state, group=group, group_view=view)))
    assert status["preemptions"] == 1
    assert status["retryTime"]
    assert words in status["message"]


def test_a_pod_that_is_not_seen_is_looked_for_before_it_is_given_up() -> None:
    state = created("Running")
    decided = plan(msgspec.structs.replace(state, pods=state.pods[:1]))
    assert written(decided)["preemptions"] == 1
    assert decided.absent == [Target("", "Pod", "t1-guest-0", "bob")]


def _failed_group(*conditions: Raw) -> Callable[[TaskState], TaskState]:
    def change(state: TaskState) -> TaskState:
        group = {**(state.group or {}), "status": {"phase": "Failed", "conditions": list(conditions)}}
        return msgspec.structs.replace(state, group=group, group_view=view_of(TaskResourceGroup, group))

    return change


FAILED = {"type": "TaskResourceGroupFailed", "status": "True", "reason": "R", "message": "told why"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(_failed_group(FAILED), "PartyNotReserved", id="for any reason"),
        pytest.param(
            _failed_group(FAILED, {"type": "TaskResourceGroupExpired", "status": "True"}), "SchedulingTimeout", id="too late"
        ),
        pytest.param(
            _failed_group(FAILED, {"type": "TaskResourceGroupValidated", "status": "False"}), "ManifestInvalid", id="wrong"
        ),
    ],
)
def test_a_reservation_that_failed_fails_the_task(change: Callable[[TaskState], TaskState], reason: str) -> None:
    for state in (created(), with_group(allocated())):
        status = written(plan(change(state)))
        assert (status["phase"], status["reason"]) == ("Failed", reason)
        assert "told why" in status["message"]


@pytest.mark.parametrize(
    ("raw", "reason", "phase"),
    [
        pytest.param(task("t1", party("alice", image="nope")), "AppImageNotFound", "Pending", id="no image"),
        pytest.param(task("t1", party("zoe")), "PartyUnknown", "Pending", id="no party"),
        pytest.param(task("t1", party("alice"), party("alice")), "DuplicateName", "Failed", id="a party twice"),
        pytest.param(task("t1", scheduleConfig={"minReservedMembers": 3}), "ManifestInvalid", "Failed", id="too many members"),
        pytest.param(task("t1", party("alice", minReservedPods=9)), "ManifestInvalid", "Failed", id="too many pods"),
    ],
)
def test_what_is_missing_is_waited_for_and_what_is_wrong_fails(raw: Raw, reason: str, phase: str) -> None:
    state = state_of(raw)
    decided = plan(state)
    status = written(decided)
    assert (status["phase"], status["reason"]) == (phase, reason)
    again = plan(applied(state, decided))
    assert [action for action in again.actions if isinstance(action, PatchStatus) and "phase" in action.status] == []


def test_a_full_party_is_tried_again() -> None:
    decided = plan(fresh(is_taken=lambda _domain, _number: True))
    assert written(decided)["reason"] == "PortsExhausted"
    assert decided.requeue_after_s is not None


@pytest.mark.parametrize(
    "state", [fresh(), allocated(), created("Running"), ended_attempt()], ids=["new", "early", "runs", "pause"]
)
@pytest.mark.parametrize(("stop", "reason"), [("Stopped", "KusciaJobStopped"), ("Suspended", "Suspended")])
def test_a_task_is_stopped_at_any_time(state: TaskState, stop: str, reason: str) -> None:
    meta = {**state.task["metadata"], "annotations": {Muster.STOP: stop}}
    stopped = msgspec.structs.replace(state, task={**state.task, "metadata": meta})
    after = applied(stopped, plan(stopped))
    assert (after.view.status.phase, after.view.status.reason) == ("Failed", reason)
    assert {one.phase for one in after.view.status.party_task_status} == {"Failed"}
    assert after.view.status.retry_time == ""


def test_after_the_end_what_runs_goes_and_what_ended_stays() -> None:
    state = created("Running")
    ended = view_of(TaskPod, {**msgspec.to_builtins(state.pods[0]), "status": {"phase": "Failed"}})
    state = msgspec.structs.replace(state, pods=[ended, state.pods[1]])
    state = applied(state, plan(state))
    assert state.view.status.phase == "Failed"
    together, stop = plan(state).actions
    assert isinstance(together, Together)
    names = {action.target.name for action in together.actions if isinstance(action, Delete)}
    assert names == {"t1-guest-0", "t1-host-0-spu", "t1-guest-0-spu", "t1-host-0-config", "t1-guest-0-config"}
    assert isinstance(stop, Patch), "the reservation is told"
    group = {**(state.group or {}), "metadata": {**(state.group or {})["metadata"], "annotations": {Muster.STOP: "x"}}}
    clean = msgspec.structs.replace(state, group=group, pods=[ended], others=[])
    status = written(plan(clean))
    assert {one["type"]: one.get("reason") for one in status["conditions"]}["ResourceCreated"] == "Released"
    assert plan(applied(clean, plan(clean))).actions == []


def test_a_deleted_task_gives_everything_back_before_it_goes() -> None:
    state = created("Running")
    meta = {**state.task["metadata"], "deletionTimestamp": format_time(NOW)}
    state = msgspec.structs.replace(state, task={**state.task, "metadata": meta})
    [action] = plan(state).actions
    assert isinstance(action, Delete)
    assert action.target.kind == "TaskResourceGroup"
    state = msgspec.structs.replace(state, group=None, group_view=None)
    [together] = plan(state).actions
    assert isinstance(together, Together)
    state = msgspec.structs.replace(state, pods=[], others=[])
    delete, release = plan(state).actions
    assert isinstance(delete, Delete), "a group that the cache does not show yet"
    assert isinstance(release, Patch)
    assert release.patch == {"metadata": {"finalizers": []}}


def test_the_server_refuses() -> None:
    final = written(refuse(allocated(), "spec.x: bad", is_final=True))
    assert (final["phase"], final["reason"]) == ("Failed", "ManifestInvalid")
    for_now = refuse(allocated(), "exceeded quota", is_final=False)
    assert written(for_now)["reason"] == "CreationRefused"
    assert for_now.requeue_after_s is not None


@pytest.mark.parametrize("phase", ["Pending", "Running", "Failed", "Succeeded"])
def test_nulls_in_the_status_do_no_harm(phase: str) -> None:
    """Kubernetes writes null where Go had a nil list or an unset time."""
    state = created(phase)
    junk = {
        "podStatuses": {"a/b": None},
        "partyTaskStatus": [None],
        "serviceStatuses": None,
        "retryTime": None,
        "message": None,
    }
    raw = {**state.task, "status": {**state.status, **junk}}
    raw["status"]["conditions"] = [None, *raw["status"]["conditions"]]
    state = msgspec.structs.replace(state, task=raw, view=view_of(KusciaTask, raw))
    after = applied(state, plan(state))
    assert after.view.status.phase == phase


def test_a_large_task_is_put_together_once() -> None:
    image = app_image("app", template(container(ports=[{"name": "spu", "scope": "Cluster"}]), replicas=400))
    state = state_of(task("t1", party("alice"), party("bob")), find_image=lambda _name: image)
    state = applied(state, plan(state))
    state = with_resources(with_group(state))
    decided = plan(state)
    assert decided.is_making
    made = [action for together in decided.actions if isinstance(together, Together) for action in together.actions]
    assert len(made) == 1_600
    state = with_pods(state)
    half = msgspec.structs.replace(state, pods=state.pods[:-1])
    [together] = plan(half).actions
    assert isinstance(together, Together)
    assert len(together.actions) == 1, "only what is missing is built again"


def test_pods_say_whose_work_they_are_and_are_told_when_that_changes() -> None:
    state = created()
    (first, *_) = state.pods
    said = decode_work(first.metadata.annotations[Muster.WORK])
    assert (said.job, said.queue, said.hold) == ("KusciaTask/cross-domain/t1", "", "")
    meta = state.task["metadata"]
    held = {**meta, "annotations": {**meta.get("annotations", {}), Muster.HOLD: "later"}, "labels": {Muster.QUEUE: "night"}}
    actions = plan(msgspec.structs.replace(state, task={**state.task, "metadata": held})).actions
    [together] = [action for action in actions if isinstance(action, Together)]
    patches = [action for action in together.actions if isinstance(action, Patch)]
    assert sorted(patch.target.name for patch in patches) == sorted(pod.metadata.name for pod in state.pods)
    changed = patches[0].patch["metadata"]
    assert changed["labels"] == {Muster.QUEUE: "night"}
    assert decode_work(changed["annotations"][Muster.WORK]).hold == "later"
    assert {action.reason for action in actions if isinstance(action, Emit)} == {"Held", "Moved"}
