"""`muster queue`, `muster why` and `muster pool` against a real server with a real scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.cli.errors import ExitCode
from tests.cli.conftest import Run
from tests.cli.support import Up
from tests.waiting import blocked_until

AMOUNTS = {"cpu": "4", "memory": "8Gi", "pods": "10"}
KUBECTL = str(Path(sys.executable).parent / "kubectl")
OBJECTS = """
apiVersion: v1
kind: Node
metadata: {name: NAME, labels: {queued: NAME}}
---
apiVersion: muster.dev/v1alpha1
kind: NodePool
metadata: {name: NAME}
spec: {nodes: [NAME]}
---
apiVersion: muster.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: NAME}
spec: {factors: [{name: level, source: JobLevel, weight: 10}], backfill: {mode: Strict}}
---
apiVersion: muster.dev/v1alpha1
kind: Queue
metadata: {name: NAME}
spec: {policy: NAME, pools: [NAME], weight: 3}
"""
JOB = """
apiVersion: muster.dev/v1alpha1
kind: Job
metadata: {name: JOB, namespace: SPACE}
spec:
  queue: NAME
  user: ann
  priority: LEVEL
  roles: [{name: w, command: ["x"], resources: {requests: {cpu: "4"}}}]
"""


def job(name: str, namespace: str, queue: str, level: int) -> str:
    text = JOB.replace("JOB", name).replace("SPACE", namespace).replace("NAME", queue)
    return text.replace("LEVEL", str(level))


@pytest.fixture
def line(muster: Run, namespace: str, local: Up) -> Iterator[str]:
    """A node, a pool, a policy and a queue of one name; `runs` has the node, `high` and `low` wait for it. Its priority is
    above theirs, so that they do not preempt it."""
    name = f"q-{namespace}"[:60]
    assert muster("apply", "-f", "-", stdin=OBJECTS.replace("NAME", name)).code == ExitCode.OK
    patch = json.dumps({"status": {"capacity": AMOUNTS, "allocatable": AMOUNTS}})
    command = [KUBECTL, "patch", "node", name, "--subresource=status", "--type=merge", "-p", patch]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "KUBECONFIG": str(local.kubeconfig)})
    made = muster("apply", "-f", "-", stdin=job("runs", namespace, name, 9))
    assert made.code == ExitCode.OK, made.err
    blocked_until(lambda: phase(muster, "runs", namespace) == "Starting")
    for word, level in (("high", 2), ("low", 1)):
        assert muster("apply", "-f", "-", stdin=job(word, namespace, name, level)).code == ExitCode.OK
    blocked_until(lambda: len(waiting(muster, name)) == 2)
    yield name
    assert muster("delete", "jobs.muster.dev", "runs", "low", "high", "-n", namespace).code == ExitCode.OK
    for kind in ("node", "nodepool", "schedulingpolicy", "queue"):
        assert muster("delete", kind, name).code == ExitCode.OK


def phase(muster: Run, name: str, namespace: str) -> str:
    found = json.loads(muster("get", "jobs.muster.dev", name, "-n", namespace, "-o", "json").out)
    return str((found.get("status") or {}).get("phase", ""))


def waiting(muster: Run, queue: str) -> list[str]:
    answer = muster("queue", queue, "-o", "json")
    places: list[Any] = json.loads(answer.out)["places"] if answer.code == ExitCode.OK else []
    return [one["job"].rpartition("/")[2] for one in places]


def test_the_tree_and_the_line(muster: Run, namespace: str, line: str) -> None:
    tree = muster("queue")
    [row] = [row.split() for row in tree.out.splitlines() if row.startswith(line)]
    assert row[1:7] == ["Open", line, "3", "0", "2", "1"]
    shown = muster("queue", line)
    assert f"queue {line}: 2 waiting, 1 running" in shown.out
    assert [row.split()[1] for row in shown.out.splitlines()[-2:]] == [f"{namespace}/high", f"{namespace}/low"]
    assert muster("queue", "show", line, "--first", "1").out.count("ann") == 1


def test_why(muster: Run, namespace: str, line: str) -> None:
    high = muster("why", "high", "-n", namespace)
    assert high.code == ExitCode.OK, high.err
    assert f"Queue: {line}, place 1 of 2, policy {line}" in high.out
    assert "Nobody is ahead of it" in high.out
    assert "cpu: wants 4" in high.out
    assert f"held by Pod {namespace}/runs-w-0: 4" in high.out
    low = muster("why", "low", "-n", namespace).out
    assert f"Ahead of it, at place 1: {namespace}/high, score 20" in low
    assert ["level", "1", "10", "10", "2", "20", "-10"] in [row.split() for row in low.splitlines()]
    assert "Reason: QueueBlocked" in low
    as_json = json.loads(muster("why", "low", "-n", namespace, "-o", "json").out)
    assert as_json["items"][0]["place"]["position"] == 2


def test_eta(muster: Run, namespace: str, line: str) -> None:
    told = muster("eta", "high", "-n", namespace)
    assert told.code == ExitCode.OK, told.err
    assert f"Job {namespace}/high: waits, place 1 of 2 in queue {line}" in told.out
    assert "  Start: about " in told.out  # nothing was measured yet
    answer = json.loads(muster("eta", "low", "-n", namespace, "-o", "json").out)["items"][0]
    assert (answer["state"], answer["position"]) == ("waiting", 2)
    assert muster("eta", "runs", "-n", namespace).out.startswith(f"Job {namespace}/runs: has started")
    asked = muster("eta", "-f", "-", "-n", namespace, stdin=job("new", namespace, line, 5))
    assert asked.code == ExitCode.OK, asked.err
    assert "if it were sent now" in asked.out
    refused = muster("eta", "-f", "-", "-n", namespace, stdin=job("new", namespace, "nowhere", 5))
    assert (refused.code, "QueueNotFound" in refused.err) == (ExitCode.FORBIDDEN, True)
    never = muster("eta", "-f", "-", "-n", namespace, stdin=job("new", namespace, line, 5).replace('cpu: "4"', 'cpu: "400"'))
    assert "Start: never as it is: no node could ever hold this" in never.out, never.err


def test_acts_change_the_line_and_are_recorded(muster: Run, namespace: str, line: str) -> None:
    assert muster("queue", "pin", "low", "-n", namespace).out == "job/low pinned at 0\n"
    blocked_until(lambda: waiting(muster, line) == ["low", "high"])
    assert muster("queue", "unpin", "job/low", "-n", namespace).code == ExitCode.OK
    blocked_until(lambda: waiting(muster, line) == ["high", "low"])
    assert muster("queue", "hold", "high", "-n", namespace, "--reason", "a look at it").code == ExitCode.OK
    blocked_until(lambda: "HeldByAdmin" in muster("why", "high", "-n", namespace).out)
    why = muster("why", "high", "-n", namespace).out
    assert "a look at it" in why
    assert "Act: Held by admin at " in why
    assert muster("queue", "release", "high", "-n", namespace).code == ExitCode.OK
    again = muster("queue", "release", "high", "-n", namespace)
    assert (again.code, "not held" in again.err) == (ExitCode.CONFLICT, True)
    assert muster("queue", "move", "high", "-n", namespace, "--to", "default").code == ExitCode.OK
    blocked_until(lambda: waiting(muster, line) == ["low"])
    assert "already" in muster("queue", "move", "high", "-n", namespace, "--to", "default").err
    refused = muster("queue", "move", "runs", "-n", namespace, "--to", "default")
    assert refused.code != ExitCode.OK
    assert "spec.queue" in refused.err


def test_pools(muster: Run, namespace: str, line: str) -> None:
    [row] = [row.split() for row in muster("pool").out.splitlines() if row.startswith(line)]
    assert row[1:4] == ["1", "1", "4/4"]
    by_user = muster("pool", line).out
    assert ["ann", "1", "4"] in [row.split()[:3] for row in by_user.splitlines()]
    uses = json.loads(muster("pool", line, "--by", "job", "-o", "json").out)["uses"]
    assert [(one["who"], one["others"]) for one in uses] == [(f"{namespace}/runs", [line])]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        pytest.param(["queue", "nowhere"], ExitCode.NOT_FOUND, "nowhere", id="no queue"),
        pytest.param(["why", "nothing"], ExitCode.NOT_FOUND, "nothing", id="no job"),
        pytest.param(["eta", "nothing"], ExitCode.NOT_FOUND, "nothing", id="no job to forecast"),
        pytest.param(["eta"], ExitCode.USAGE, "name a job, or give a manifest", id="nothing to forecast"),
        pytest.param(["pool", "nowhere"], ExitCode.NOT_FOUND, "nowhere", id="no pool"),
        pytest.param(["pool", "--at", "yesterday"], ExitCode.USAGE, "'yesterday' is no time", id="no time"),
        pytest.param(["pool", "--at", "5m"], ExitCode.NOT_FOUND, "muster/history", id="no log on this machine"),
        pytest.param(["pool", "--history", "here"], ExitCode.USAGE, "--at", id="where, but not when"),
        pytest.param(["queue", "move", "x", "--to", "no queue"], ExitCode.USAGE, "no queue", id="no name of a queue"),
        pytest.param(["queue", "hold", "x", "--reason", "y" * 201], ExitCode.USAGE, "201", id="a novel"),
    ],
)
def test_refused(muster: Run, arguments: list[str], code: ExitCode, words: str) -> None:
    answer = muster(*arguments)
    assert answer.code == code, answer.err
    assert words in answer.err
