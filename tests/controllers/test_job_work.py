"""What pods say about their work: made from jobs and tasks, kept over attempts, said anew as the job changes."""

from __future__ import annotations

from typing import Any

import pytest

from muster.controllers.actions import Emit, Patch, Together
from muster.controllers.job_work import (
    Said,
    attained_s,
    common_name,
    hold_of,
    job_work,
    pin_of,
    said_anew,
    task_attained_s,
    task_work,
)
from muster.engine.work import Work, decode_work, encode_work
from muster.objects.kinds.kuscia_tasks import KusciaTask
from muster.objects.kinds.muster_jobs import Job
from muster.objects.labels import Muster
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.objects.view import view_of

NOW = 1_800_000_000.0


def job(*, notes: dict[str, str] | None = None, status: Raw | None = None, name: str = "train-3", **spec: Any) -> Raw:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "team",
            "creationTimestamp": format_time(NOW - 500),
            "annotations": notes or {},
        },
        "spec": {"roles": [{"name": "w", "command": ["x"]}], **spec},
        "status": status or {},
    }


def work(raw: Raw) -> Work:
    return job_work(raw, view_of(Job, raw))


def test_all_that_a_job_says() -> None:
    raw = job(
        notes={Muster.HOLD: "maintenance", Muster.PIN: "2"},
        status={"submittedTime": format_time(NOW - 100), "attainedSeconds": 600, "preemptions": 2},
        queue="research",
        user="ann",
        priority=7,
        type="training",
        attributes={"domain": "cv", "params": "7e9"},
        estimate={"runSeconds": 3600, "resources": {"cpu": "500m", "memory": "1Gi"}},
        deadline=format_time(NOW + 9_000),
        preemptible=True,
        checkpointIntervalSeconds=300,
    )
    assert work(raw) == Work(
        job="Job/team/train-3",
        queue="research",
        user="ann",
        type="training",
        name="train",
        level=7,
        attributes={"domain": "cv", "params": "7e9"},
        estimate_s=3600,
        estimate_use={"cpu": 500, "memory": 2**30},
        deadline=NOW + 9_000,
        preemptible=True,
        checkpoint_s=300,
        submitted=NOW - 100,
        attained_s=600,
        preemptions=2,
        hold="maintenance",
        pin=2,
    )


def test_a_job_that_says_nothing_has_its_name_and_age() -> None:
    assert work(job()) == Work(job="Job/team/train-3", name="train", submitted=NOW - 500)


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        pytest.param({"name": "etl"}, "etl", id="plain"),
        pytest.param({"name": "etl-x8k2p", "generateName": "etl-"}, "etl", id="generated"),
        pytest.param({"name": "etl-2026-05-01"}, "etl", id="a date"),
        pytest.param({"name": "resnet50"}, "resnet50", id="a number in the name"),
        pytest.param({"name": "7-8"}, "7", id="numbers only"),
    ],
)
def test_common_name(meta: Raw, expected: str) -> None:
    assert common_name({"metadata": meta}) == expected


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        pytest.param("0", 0, id="zero"),
        pytest.param(" -3 ", -3, id="negative"),
        pytest.param("", None, id="empty"),
        pytest.param("first", None, id="a word"),
        pytest.param("1.5", None, id="a fraction"),
        pytest.param("9" * 40, None, id="beyond all bounds"),
    ],
)
def test_pin(text: str, pin: int | None) -> None:
    assert pin_of({Muster.PIN: text}) == pin


def test_an_empty_hold_holds() -> None:
    assert hold_of({}) == ""
    assert hold_of({Muster.HOLD: " "}) == "held by an administrator"


@pytest.mark.parametrize(
    ("phase", "ran_s", "interval_s", "kept_s"),
    [
        pytest.param("Running", 1000, 300, 900, id="whole intervals"),
        pytest.param("Running", 900, 300, 900, id="just saved"),
        pytest.param("Running", 299, 300, 0, id="not saved yet"),
        pytest.param("Running", 1000, None, 0, id="never saves"),
        pytest.param("Starting", 1000, 300, 0, id="not up"),
        pytest.param("Running", -50, 300, 0, id="a clock that went back"),
    ],
)
def test_what_is_kept_of_an_attempt(phase: str, ran_s: float, interval_s: int | None, kept_s: float) -> None:
    status = {"phase": phase, "runningTime": format_time(NOW - ran_s), "attainedSeconds": 60}
    raw = job(status=status, checkpointIntervalSeconds=interval_s)
    assert attained_s(view_of(Job, raw), NOW) == 60 + kept_s


def test_a_task_says_what_its_job_says() -> None:
    raw: Raw = {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "KusciaTask",
        "metadata": {
            "name": "psi-1-x",
            "namespace": "cross-domain",
            "creationTimestamp": format_time(NOW),
            "labels": {Muster.QUEUE: "mpc", Muster.PREEMPTIBLE: "true"},
            "annotations": {
                "kuscia.secretflow/job-id": "psi-1",
                "kuscia.secretflow/task-alias": "join",
                Muster.USER: "ann@example.com",
                Muster.ESTIMATE_SECONDS: "90",
                Muster.CHECKPOINT_SECONDS: "soon",
                Muster.DEADLINE: "never",
                Muster.TYPE: "psi",
            },
        },
        "spec": {"initiator": "alice", "taskInputConfig": "{}", "parties": [{"domainID": "alice", "appImageRef": "i"}]},
        "status": {"preemptions": 1, "attainedSeconds": 60},
    }
    assert task_work(raw, view_of(KusciaTask, raw)) == Work(
        job="KusciaTask/cross-domain/psi-1-x",
        queue="mpc",
        user="ann@example.com",
        type="psi",
        name="psi/join",
        estimate_s=90,
        preemptible=True,
        submitted=NOW,
        attained_s=60,
        preemptions=1,
    )


@pytest.mark.parametrize(
    ("interval", "status", "kept_s"),
    [
        pytest.param("60", "True", 160.0, id="whole intervals since all parties ran, after what was kept before"),
        pytest.param("", "True", 40.0, id="saves nothing"),
        pytest.param("60", "False", 40.0, id="does not run"),
        pytest.param("1000", "True", 40.0, id="before the first checkpoint"),
    ],
)
def test_what_a_task_keeps_when_it_gives_way(interval: str, status: str, kept_s: float) -> None:
    raw: Raw = {
        "metadata": {"name": "t", "annotations": {Muster.CHECKPOINT_SECONDS: interval}},
        "spec": {"initiator": "alice", "taskInputConfig": "{}", "parties": []},
        "status": {
            "phase": "Running",
            "attainedSeconds": 40,
            "conditions": [{"type": "Running", "status": status, "lastTransitionTime": format_time(NOW - 179)}],
        },
    }
    assert task_attained_s(raw, view_of(KusciaTask, raw), NOW) == kept_s


def said(text: str, *, is_bound: bool = False, name: str = "p-0") -> Said:
    return Said(namespace="team", name=name, uid=f"uid-{name}", work=text, is_bound=is_bound)


def test_what_is_said_already_is_not_said_again() -> None:
    now = work(job(queue="a"))
    assert said_anew(job(), now, [said(encode_work(now))]) == []


def test_a_hold_is_said_on_all_pods_and_once_as_an_event_with_who_did_it() -> None:
    acts = '[{"act":"Held","by":"root","at":"2027-01-15T08:00:00Z","detail":"maintenance"}]'
    raw = job(notes={Muster.HOLD: "maintenance", Muster.ACTS: acts})
    old = encode_work(work(job()))
    together, event = said_anew(raw, work(raw), [said(old, name="p-10"), said(old, name="p-9")])
    assert isinstance(together, Together)
    patches = [action for action in together.actions if isinstance(action, Patch)]
    assert [patch.target.name for patch in patches] == ["p-9", "p-10"]
    assert decode_work(patches[0].patch["metadata"]["annotations"][Muster.WORK]).hold == "maintenance"
    assert "labels" not in patches[0].patch["metadata"]
    assert isinstance(event, Emit)
    assert (event.reason, event.message) == ("Held", "Held by root at 2027-01-15T08:00:00Z: maintenance")


def test_a_move_changes_the_label_too() -> None:
    raw = job(queue="b")
    together, event = said_anew(raw, work(raw), [said(encode_work(work(job(queue="a"))))])
    assert isinstance(together, Together)
    [patch] = together.actions
    assert isinstance(patch, Patch)
    assert patch.patch["metadata"]["labels"] == {Muster.QUEUE: "b"}
    assert patch.patch["metadata"]["annotations"][Muster.QUEUE] is None
    assert isinstance(event, Emit)
    assert (event.reason, event.message) == ("Moved", "Moved: from a to b")


def test_what_has_a_node_stays_in_its_queue() -> None:
    """It was found to be within the limits of that one."""
    old, raw = work(job(queue="a")), job(queue="b", estimate={"runSeconds": 60})
    [together] = said_anew(
        raw, work(raw), [said(encode_work(old), name="p-0"), said(encode_work(old), is_bound=True, name="p-1")]
    )
    assert isinstance(together, Together)
    for patch in together.actions:
        assert isinstance(patch, Patch)
        assert "labels" not in patch.patch["metadata"]
        told = decode_work(patch.patch["metadata"]["annotations"][Muster.WORK])
        assert (told.queue, told.estimate_s) == ("a", 60)


def test_a_pod_is_moved_only_as_it_was_seen() -> None:
    raw = job(queue="b")
    seen = Said(namespace="team", name="p", uid="u", work=encode_work(work(job(queue="a"))), is_bound=False, version="7")
    [together, _] = said_anew(raw, work(raw), [seen])
    assert isinstance(together, Together)
    [patch] = together.actions
    assert isinstance(patch, Patch)
    assert patch.target.resource_version == "7", "it may have got a node meanwhile"


def test_another_estimate_is_no_act() -> None:
    raw = job(estimate={"runSeconds": 60})
    actions = said_anew(raw, work(raw), [said(encode_work(work(job())), is_bound=True)])
    assert [type(action) for action in actions] == [Together]


def test_pods_from_before_are_told_without_an_event() -> None:
    raw = job(notes={Muster.PIN: "1"})
    assert [type(action) for action in said_anew(raw, work(raw), [said("")])] == [Together]
