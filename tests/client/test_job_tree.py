from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.job_tree import build_tree, pod_node
from muster.objects.status import Raw
from tests.client.job_objects import kuscia_job, own_job, pod, task


def test_tasks_in_the_order_of_the_spec_with_what_each_object_knows() -> None:
    job = kuscia_job(
        phase="Running",
        status={
            "startTime": "2026-01-01T00:00:00Z",
            "tasks": [
                {"alias": "first", "taskID": "train-first", "phase": "Pending", "reason": "Old"},
                {"alias": "then", "phase": "Waiting", "reason": "DependencyPending", "message": "after first"},
            ],
        },
    )
    first = task(
        "first",
        phase="Running",
        progress=0.5,
        attempts=2,
        preemptions=1,
        startTime="2026-01-01T00:00:10Z",
        partyTaskStatus=[{"domainID": "alice", "phase": "Running"}, {"domainID": "bob", "phase": "Pending"}],
        podStatuses={
            "alice/train-first-0": {
                "podName": "train-first-0",
                "namespace": "alice",
                "podPhase": "Running",
                "nodeName": "n1",
            },
            "bob/train-first-0": {"podName": "train-first-0", "namespace": "bob", "podPhase": "Pending", "reason": "Was"},
        },
    )
    live = pod(
        "train-first-0",
        "bob",
        task_uid="uid-of-train-first",
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "CPUInsufficient", "message": "1 CPU short"}],
    )
    tree = build_tree(job, [first], [live])
    assert [node.alias for node in tree.tasks] == ["first", "then"]
    assert tree.parties == ["alice", "bob"]
    assert tree.progress == 0.25
    running, waiting = tree.tasks
    assert (running.phase, running.reason, running.attempts, running.preemptions) == ("Running", "", 2, 1)
    assert running.duration_s(1767225620.0) == 10.0
    assert [(p.party, p.phase, [q.name for q in p.pods]) for p in running.parties] == [
        ("alice", "Running", ["train-first-0"]),
        ("bob", "Pending", ["train-first-0"]),
    ]
    assert running.nodes == ["n1"]
    assert running.parties[1].pods[0].reason == "CPUInsufficient"
    assert (waiting.phase, waiting.reason, waiting.dependencies) == ("Waiting", "DependencyPending", ["first"])
    assert msgspec.to_builtins(tree)["tasks"][0]["taskID"] == "train-first"


def test_a_task_without_status_is_pending_and_one_without_object_waits() -> None:
    tree = build_tree(kuscia_job(phase="Running"), [task("first")])
    assert [node.phase for node in tree.tasks] == ["Pending", "Waiting"]


@pytest.mark.parametrize(
    ("phase", "first", "progress"),
    [
        pytest.param("Running", task("first", phase="Running", progress=0.5), 0.25, id="half of one of two"),
        pytest.param("Running", task("first", phase="Failed", progress=0.5), 0.5, id="a failure that is tolerated is over"),
        pytest.param("Succeeded", task("first", phase="Failed"), 1.0, id="succeeded is all"),
    ],
)
def test_progress_of_the_job(phase: str, first: Raw, progress: float) -> None:
    job = kuscia_job(phase=phase)
    job["spec"]["tasks"][0]["tolerable"] = True
    assert build_tree(job, [first]).progress == progress


def test_one_party_in_two_roles_keeps_its_pods_apart() -> None:
    job = kuscia_job()
    job["spec"]["tasks"][0]["parties"] = [{"domainID": "alice", "role": "server"}, {"domainID": "alice", "role": "client"}]
    pods = [pod(f"train-first-{role}-0", "alice", task_uid="uid-of-train-first") for role in ("server", "client")]
    tree = build_tree(job, [task("first")], pods)
    found = {party.role: [one.name for one in party.pods] for party in tree.tasks[0].parties}
    assert found == {"server": ["train-first-server-0"], "client": ["train-first-client-0"]}


def test_roles_of_a_job_stand_where_tasks_do() -> None:
    job = own_job(
        phase="Running",
        status={
            "progress": 0.4,
            "roles": [{"name": "worker", "running": 2}],
            "place": {"position": 3},
            "attempts": 2,
        },
        spec={"user": "ann", "queue": "night"},
    )
    pods = [
        pod(
            f"fit-worker-{n}",
            "team",
            phase="Running",
            node=f"n{n}",
            labels={"muster.dev/role": "worker", "muster.dev/index": n},
        )
        for n in ("10", "9")
    ]
    tree = build_tree(job, pods=pods)
    assert (tree.initiator, tree.queue, tree.place, tree.attempts, tree.progress) == ("ann", "night", 3, 2, 0.4)
    [role] = tree.tasks
    assert (role.alias, role.phase) == ("worker", "Running")
    assert [one.name for one in role.pods] == ["fit-worker-9", "fit-worker-10"]


@pytest.mark.parametrize(
    ("counts", "phase"),
    [
        pytest.param({}, "Pending", id="nothing yet"),
        pytest.param({"pending": 1, "succeeded": 1}, "Pending", id="one still waits"),
        pytest.param({"succeeded": 2}, "Succeeded", id="all done"),
        pytest.param({"running": 1, "succeeded": 1}, "Running", id="one runs"),
        pytest.param({"failed": 1, "running": 1}, "Failed", id="one failed"),
    ],
)
def test_phase_of_a_role(counts: dict[str, int], phase: str) -> None:
    job = own_job(phase="Running", status={"roles": [{"name": "worker", **counts}]})
    assert build_tree(job).tasks[0].phase == phase


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        pytest.param(
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}, "ImagePullBackOff", id="pull"
        ),
        pytest.param({"containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}, "Error", id="exit code"),
        pytest.param(
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
                    {"type": "muster.dev/Waiting", "status": "True", "reason": "NoNodes", "message": "NoNodes: none"},
                ]
            },
            "NoNodes",
            id="as the scheduler says",
        ),
        pytest.param({"reason": "NodeRestarted"}, "NodeRestarted", id="of the pod"),
        pytest.param({"containerStatuses": [{"state": {"running": {}}}]}, "", id="nothing wrong"),
    ],
)
def test_why_a_pod_does_not_run(status: Raw, reason: str) -> None:
    assert pod_node(pod("p", "ns", **status)).reason == reason


@pytest.mark.parametrize(
    ("text", "progress"), [("0.5", 0.5), ("7", 1.0), ("-1", 0.0), ("nan", 0.0), ("much", None), ("", None)]
)
def test_progress_of_a_pod_is_a_share_or_nothing(text: str, progress: float | None) -> None:
    assert pod_node(pod("p", "ns", annotations={"muster.dev/progress": text})).progress == progress


@pytest.mark.parametrize(
    ("records", "traffic", "shown"),
    [
        pytest.param('{"rows": 3}', '{"sentBytes": 5, "receivedBytes": 7}', ({"rows": 3}, 5, 7), id="as reported"),
        pytest.param("[1]", '{"sentBytes": "x"}', ({}, 0, 0), id="of another shape"),
        pytest.param("{", "", ({}, 0, 0), id="no JSON"),
    ],
)
def test_what_a_pod_reports_of_itself(records: str, traffic: str, shown: tuple[Raw, int, int]) -> None:
    node = pod_node(pod("p", "ns", annotations={"muster.dev/records": records, "muster.dev/traffic": traffic}))
    assert (node.records, node.sent_bytes, node.received_bytes) == shown


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("phase", "tasks", "roles", "parties", "alias", "domainID", "conditions", "podStatuses", "partyTaskStatus", "progress")


@given(spec=st.dictionaries(st.sampled_from(FIELDS), JSON), status=st.dictionaries(st.sampled_from(FIELDS), JSON), inner=JSON)
def test_no_object_can_break_a_tree(spec: Any, status: Any, inner: Any) -> None:
    broken = {**spec, "tasks": [{"alias": "first", "parties": [inner], "dependencies": inner}, spec]}
    job = {**kuscia_job(), "spec": broken, "status": {**status, "tasks": [status, inner]}}
    odd = {**task("first"), "status": status}
    tree = build_tree(job, [odd], [pod("p", "alice", task_uid="uid-of-train-first", containerStatuses=inner, conditions=inner)])
    assert 0 <= tree.progress <= 1
    msgspec.json.encode(tree)
    build_tree({**own_job(), "spec": {"roles": [spec, inner]}, "status": status})
