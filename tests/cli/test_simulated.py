from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.cli.errors import UsageError
from muster.cli.simulated import (
    SECONDS_DEFAULT,
    Pretending,
    SimulatedNodes,
    exit_code_of,
    parse_simulated,
    seconds_of,
    was_running,
)
from muster.cli.simulated_logs import history
from muster.objects.status import Raw
from muster.sim.machine import Process
from tests.cli.support import Up, environment, muster
from tests.client.job_objects import pod

KUBECTL = Path(sys.executable).parent / "kubectl"


class TestCommandLine:
    def test_nodes_by_party(self) -> None:
        found = parse_simulated(["alice=2,bob=1", "default=1"], [])
        assert found is not None
        assert dict(found.counts) == {"alice": 2, "bob": 1, "default": 1}
        names = [machine.name for machine in found.machines()]
        assert names == ["simulated-alice-1", "simulated-alice-2", "simulated-bob-1", "simulated-default-1"]
        labels = [machine.labels for machine in found.machines()]
        assert labels[0] == {"muster.dev/simulated": "true", "kuscia.secretflow/namespace": "alice", "domain": "alice"}
        assert labels[-1] == {"muster.dev/simulated": "true"}
        assert [len(machine.taints) for machine in found.machines()] == [1, 1, 1, 0], "a party's nodes are for its own work"
        assert found.said() == "4 simulated nodes (alice 2, bob 1, default 1)"

    def test_capacity(self) -> None:
        found = parse_simulated(["alice=1"], ["cpu=64,bandwidth=25Gbps", "nvidia.com/gpu=8"])
        assert found is not None
        assert found.capacity["cpu"] == "64"
        assert found.capacity["kuscia.io/bandwidth"] == "25000"
        assert found.capacity["nvidia.com/gpu"] == "8"
        assert found.capacity["memory"] == "32Gi"

    def test_nothing(self) -> None:
        assert parse_simulated([], []) is None

    @pytest.mark.parametrize(
        ("nodes", "capacity", "says"),
        [
            (["alice"], [], "expected NAME=VALUE"),
            (["alice=2,"], [], "expected NAME=VALUE"),
            (["alice=0"], [], "from 1 to 500, not '0'"),
            (["alice=-1"], [], "from 1 to 500"),
            (["alice=many"], [], "from 1 to 500"),
            (["Alice=1"], [], "party 'Alice' must consist of"),
            (["alice=1", "alice=2"], [], "given twice"),
            (["alice=300,bob=300"], [], "600 nodes in all"),
            (["alice=1"], ["cpu=lots"], "'cpu=lots'"),
            (["alice=1"], ["cpu=-1"], "not negative"),
            (["alice=1"], ["bandwidth=5Gib"], "bandwidth=5Gib"),
            ([], ["cpu=1"], "--simulated-nodes"),
        ],
    )
    def test_wrong(self, nodes: list[str], capacity: list[str], says: str) -> None:
        with pytest.raises(UsageError, match=says):
            parse_simulated(nodes, capacity)


def said(annotations: Raw | None = None, env: list[Any] | None = None, **more: Any) -> Raw:
    made = pod("p", "ns", annotations=annotations or {}, **more)
    made["spec"]["containers"][0]["env"] = env or []
    made["metadata"]["uid"] = "u1"
    return made


@pytest.mark.parametrize(
    ("made", "seconds", "exit_code"),
    [
        pytest.param(said(), SECONDS_DEFAULT, 0, id="nothing said"),
        pytest.param(said({"muster.dev/simulated-seconds": "7.5"}), 7.5, 0, id="annotation"),
        pytest.param(said({"muster.dev/simulated-seconds": "forever"}), None, 0, id="forever"),
        pytest.param(said(env=[{"name": "MUSTER_SIMULATED_SECONDS", "value": "4"}]), 4.0, 0, id="variable"),
        pytest.param(
            said({"muster.dev/simulated-exit-code": "9"}, [{"name": "MUSTER_SIMULATED_EXIT_CODE", "value": "4"}]),
            SECONDS_DEFAULT,
            9,
            id="the annotation wins",
        ),
        pytest.param(
            said({"muster.dev/simulated-seconds": "-3", "muster.dev/simulated-exit-code": "999"}),
            SECONDS_DEFAULT,
            0,
            id="nonsense",
        ),
        pytest.param(
            said(env=["odd", {"name": "MUSTER_SIMULATED_SECONDS", "valueFrom": {}}]), SECONDS_DEFAULT, 0, id="odd variables"
        ),
        pytest.param({"metadata": {}, "spec": {"containers": []}}, SECONDS_DEFAULT, 0, id="no container"),
    ],
)
def test_what_a_pod_pretends(made: Raw, seconds: float | None, exit_code: int) -> None:
    assert (seconds_of(made), exit_code_of(made)) == (seconds, exit_code)


def test_only_the_first_runs_fail() -> None:
    no_store: Any = None
    pretending = Pretending(SimulatedNodes(counts={"default": 1}, capacity={"cpu": "1"}), no_store, lambda: 0.0)
    [machine] = pretending.machines
    made = said({"muster.dev/simulated-exit-code": "1", "muster.dev/simulated-failures": "2"})
    codes = []
    for uid in ("a", "a", "b", "c", "a"):
        made["metadata"]["uid"] = uid
        codes.append(pretending.script(machine, made).exit_code)
    assert codes == [1, 1, 1, 0, 1]


def test_what_ran_in_an_earlier_process_is_not_started_again() -> None:
    made = said(phase="Running", containerStatuses=[{"state": {"running": {}}}])
    assert was_running(made)
    assert not was_running(said(containerStatuses=[{"state": {"waiting": {}}}]))
    assert not was_running(said(containerStatuses=["odd"]))


@pytest.mark.parametrize(
    ("ends_s", "now_s", "texts"),
    [
        pytest.param(None, 10.5, ["simulated: would run x -v"], id="just begun"),
        pytest.param(None, 12.5, ["simulated: would run x -v", "simulated: second 1", "simulated: second 2"], id="runs"),
        pytest.param(
            12.0, 99.0, ["simulated: would run x -v", "simulated: second 1", "simulated: ended with exit code 3"], id="ended"
        ),
    ],
)
def test_the_log_follows_from_the_process(ends_s: float | None, now_s: float, texts: list[str]) -> None:
    process = Process(pod_uid="u", started_s=10.0, ends_s=ends_s, exit_code=3, reason="")
    assert [text for _, text in history({"command": ["x"], "args": ["-v"]}, process, now_s)] == texts


POD = """
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: default
  annotations: {{muster.dev/simulated-seconds: "{seconds}", muster.dev/simulated-exit-code: "{code}"}}
spec:
  schedulerName: muster-scheduler
  restartPolicy: Never
  containers:
    - {{name: main, image: x, command: [work], resources: {{requests: {{cpu: "1"}}}}}}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def up(home: Path) -> Iterator[Up]:
    with Up(home / "data", "--simulated-nodes", "alice=1,default=1", env=environment(home)) as up:
        yield up


@pytest.mark.slow
class TestUp:
    def kubectl(self, up: Up, *args: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            [str(KUBECTL), "--kubeconfig", str(up.kubeconfig), *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def test_pods_run_pretend_and_end_as_they_say(self, up: Up) -> None:
        nodes = json.loads(self.kubectl(up, "get", "nodes", "-o", "json"))["items"]
        assert [node["metadata"]["name"] for node in nodes] == ["simulated-alice-1", "simulated-default-1"]
        assert nodes[0]["status"]["allocatable"]["kuscia.io/bandwidth"] == "10k"
        self.kubectl(up, "apply", "-f", "-", stdin=POD.format(name="bad", seconds=1, code=7))
        self.kubectl(up, "wait", "--for=jsonpath={.status.phase}=Failed", "pod/bad", "--timeout=60s")
        assert self.kubectl(up, "logs", "bad").splitlines() == [
            "simulated: would run work",
            "simulated: ended with exit code 7",
        ]
        ended = json.loads(self.kubectl(up, "get", "pod", "bad", "-o", "json"))
        assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
        refused = subprocess.run(
            [str(KUBECTL), "--kubeconfig", str(up.kubeconfig), "logs", "bad", "--previous"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "no log of earlier runs" in refused.stderr

    def test_a_log_can_be_followed_and_progress_is_reported(self, up: Up) -> None:
        self.kubectl(up, "apply", "-f", "-", stdin=POD.format(name="slow", seconds=3, code=0))
        self.kubectl(up, "wait", "--for=jsonpath={.status.phase}=Running", "pod/slow", "--timeout=60s")
        lines = self.kubectl(up, "logs", "-f", "slow").splitlines()
        assert lines == [
            "simulated: would run work",
            *(f"simulated: second {n}" for n in (1, 2)),
            "simulated: ended with exit code 0",
        ]
        assert self.kubectl(up, "logs", "--tail=1", "slow").splitlines() == lines[-1:]
        made = json.loads(self.kubectl(up, "get", "pod", "slow", "-o", "json"))
        assert 0 < float(made["metadata"]["annotations"]["muster.dev/progress"]) <= 1

    def test_says_that_it_pretends(self, home: Path, tmp_path: Path) -> None:
        with Up(tmp_path / "data", "--simulated-nodes", "alice=1", env=environment(home)) as up:
            up.stop()
            shown = up.errors()
        assert "1 simulated nodes (alice 1) only pretend to run pods: no command of a pod is executed" in shown

    def test_what_was_left_is_removed_or_told_lost(self, home: Path, tmp_path: Path) -> None:
        env = environment(home)
        with Up(tmp_path / "data", "--simulated-nodes", "default=2", env=env) as first:
            self.kubectl(first, "apply", "-f", "-", stdin=POD.format(name="long", seconds="forever", code=0))
            self.kubectl(first, "wait", "--for=jsonpath={.status.phase}=Running", "pod/long", "--timeout=60s")
            node = self.kubectl(first, "get", "pod", "long", "-o", "jsonpath={.spec.nodeName}")
        with Up(tmp_path / "data", "--simulated-nodes", "default=2", env=env) as again:
            self.kubectl(again, "wait", "--for=jsonpath={.status.phase}=Failed", "pod/long", "--timeout=60s")
            assert self.kubectl(again, "get", "pod", "long", "-o", "jsonpath={.status.reason}") == "NodeRestarted"
        assert node.startswith("simulated-default-")
        with Up(tmp_path / "data", env=env) as without:
            assert self.kubectl(without, "get", "nodes", "-o", "name") == ""


def test_a_wrong_option_stops_the_start(home: Path, tmp_path: Path) -> None:
    done = muster("up", "--data-dir", str(tmp_path / "d"), "--simulated-nodes", "alice=x", env=environment(home))
    assert done.returncode == 2
    assert "from 1 to 500" in done.stderr
    assert not (tmp_path / "d").exists()
