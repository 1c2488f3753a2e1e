"""Every example runs: on a real `muster up` with simulated nodes, by the very commands that its comments show."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.client import SyncClient
from tests.cli.support import Up, environment

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
EXAMPLES = ROOT / "examples"
TIMEOUT_S = 180
pytestmark = pytest.mark.slow


class Shell:
    """Commands as a person types them, in the root of the project."""

    def __init__(self, up: Up, home: Path) -> None:
        self.kubeconfig = up.kubeconfig
        self.environment = environment(
            home, KUBECONFIG=str(up.kubeconfig), PATH=f"{BIN}:{os.environ['PATH']}", COLUMNS="120", LINES="40", TERM="xterm"
        )

    def run(self, command: str, *, code: int = 0) -> str:
        done = subprocess.run(
            shlex.split(command, comments=True),
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def data(self, command: str) -> Any:
        return json.loads(self.run(f"{command} -o json"))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    home = tmp_path_factory.mktemp("home")
    nodes = ("--simulated-nodes", "alice=2,bob=2,carol=1", "--simulated-nodes", "default=2")
    with Up(home / "data", *nodes, env=environment(home)) as up:
        yield Shell(up, home)


def commands_of(path: str) -> list[str]:
    """The commands in the comments of a file, joined over `\\`; the one that starts the server left out."""
    lines = [line.removeprefix("#").strip() for line in (EXAMPLES / path).read_text().splitlines() if line.startswith("#")]
    joined: list[str] = []
    for line in lines:
        if joined and joined[-1].endswith("\\"):
            joined[-1] = f"{joined[-1][:-1]} {line}"
        else:
            joined.append(line)
    return [line for line in joined if line.startswith(("muster ", "kubectl ")) and not line.startswith("muster up")]


def phases(tree: Any) -> dict[str, str]:
    return {task["alias"]: task["phase"] for task in tree["tasks"]}


def test_two_party(shell: Shell) -> None:
    [submit] = commands_of("two-party/job.yaml")
    shown = shell.run(submit)
    assert "KusciaJob cross-domain/two-party Succeeded" in shown
    tree = shell.data("muster job tree two-party")
    assert (tree["outcome"], phases(tree)) == ("Succeeded", {"intersect": "Succeeded"})
    nodes = {party["party"]: [pod["node"] for pod in party["pods"]] for party in tree["tasks"][0]["parties"]}
    assert all(node.startswith("simulated-alice-") for node in nodes["alice"])
    assert all(node.startswith("simulated-bob-") for node in nodes["bob"])
    assert nodes.keys() == {"alice", "bob"}
    lines = shell.run("muster job logs two-party").splitlines()
    assert {line.split("/")[0] for line in lines} == {"[alice", "[bob"}
    assert all("exit code 0" in line for line in lines if "ended" in line)
    assert shell.run("muster job logs two-party --party bob --task intersect --tail 1 --no-prefix") == (
        "simulated: ended with exit code 0\n"
    )


def test_two_party_for_real(tmp_path: Path) -> None:
    """With an agent for each party on this machine, by the same command."""
    if os.geteuid() != 0:
        pytest.skip("without root tasks have no network of their own")
    [submit] = commands_of("two-party/job.yaml")
    with Up(tmp_path / "data", "--agents", "alice,bob", env=environment(tmp_path)) as up:
        shell = Shell(up, tmp_path)
        shown = shell.run(submit)
        assert "KusciaJob cross-domain/two-party Succeeded" in shown
        for party in ("alice", "bob"):
            last = shell.run(f"muster job logs two-party --party {party} --tail 1 --no-prefix")
            assert last == "2 ids are common: bea, dai\n"


def test_parties_are_asked_where_the_operator_wants_that(tmp_path: Path) -> None:
    options = ("--workload-approval", "--simulated-nodes", "alice=1,bob=1")
    with Up(tmp_path / "data", *options, env=environment(tmp_path)) as up:
        shell = Shell(up, tmp_path)
        shell.run("muster job submit -f examples/two-party")
        shell.run("kubectl -n cross-domain wait --for=jsonpath={.status.phase}=AwaitingApproval kj/two-party --timeout=60s")
        assert "bob" in shell.run("muster job tree two-party"), "it says whose answer it waits for"
        shell.run("muster job approve two-party --party bob")
        shell.run("muster job watch two-party")


def test_dag(shell: Shell) -> None:
    [submit] = commands_of("dag/job.yaml")
    shell.run(submit)
    tree = shell.data("muster job tree dag")
    assert tree["outcome"] == "Succeeded"
    assert set(phases(tree).values()) == {"Succeeded"}
    tasks = {task["alias"]: task for task in tree["tasks"]}
    assert tasks["retry"]["attempts"] == 2
    assert tasks["left"].get("attempts", 1) == 1
    for task in tree["tasks"]:
        for before in task.get("dependencies", []):
            assert tasks[before]["ended"] <= task["started"], (before, task["alias"])
    assert sum(len(party["pods"]) for party in tasks["left"]["parties"]) == 4


def test_three_party_with_a_tolerable_branch(shell: Shell) -> None:
    [submit] = commands_of("three-party/job.yaml")
    shell.run(submit)
    tree = shell.data("muster job tree three-party")
    assert tree["outcome"] == "Succeeded"
    assert phases(tree) == {"align": "Succeeded", "train": "Succeeded", "statistics": "Failed"}
    [failed] = [task for task in tree["tasks"] if task["alias"] == "statistics"]
    assert failed["reason"] == "ContainerFailed"
    assert "exit code 3" in failed["message"]


def test_podgroup(shell: Shell) -> None:
    for command in commands_of("podgroup/pods.yaml"):
        shell.run(command)
    shell.run("kubectl wait --for=jsonpath={.status.phase}=Finished podgroup/ring --timeout=120s")
    pods = shell.data("kubectl get pods -l pod-group.scheduling.sigs.k8s.io=ring")["items"]
    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * 3


def test_service(shell: Shell) -> None:
    for command in commands_of("service/service.yaml"):
        shell.run(command)
    shell.run(
        "kubectl wait --for=jsonpath={.status.phase}=Available kusciadeployment/scoring --namespace cross-domain --timeout=120s"
    )
    service = shell.data("kubectl get kusciadeployment scoring --namespace cross-domain")
    assert (service["status"]["totalParties"], service["status"]["availableParties"]) == (2, 2)
    ready = [
        pod["metadata"]["namespace"]
        for pod in shell.data("kubectl get pods --all-namespaces")["items"]
        if pod["metadata"]["name"].startswith("scoring") and pod["status"]["phase"] == "Running"
    ]
    assert sorted(ready) == ["alice", "alice", "bob"]
    shell.run("kubectl delete kusciadeployment scoring --namespace cross-domain --timeout=120s")


def test_run(shell: Shell) -> None:
    by_hand, submit = commands_of("run/job.yaml")
    shell.run(submit)
    tree = shell.data("muster job tree fit")
    assert (tree["outcome"], phases(tree)) == ("Succeeded", {"worker": "Succeeded"})
    manifest = shell.data("muster job get fit")["spec"]
    shell.run("muster job delete fit")
    shell.run(by_hand)
    made = shell.data("muster job get fit")["spec"]
    for field in ("type", "estimate"):
        assert made[field] == manifest[field]
    assert [role["command"] for role in made["roles"]] == [["python", "train.py"]]
    assert made["roles"][0]["resources"]["requests"] == manifest["roles"][0]["resources"]["requests"]


def test_a_job_that_fits_nowhere_says_so(shell: Shell, tmp_path: Path) -> None:
    shell.run("muster apply -f examples/two-party/parties.yaml -f examples/two-party/app.yaml")
    path = tmp_path / "job.yaml"
    text = (EXAMPLES / "two-party" / "job.yaml").read_text()
    path.write_text(text.replace("name: two-party", "name: too-large").replace("cpu: 200m", 'cpu: "20"'))
    shell.run(f"muster job submit -f {path} --wait --timeout 5", code=124)
    tree = shell.data("muster job tree too-large")
    assert tree["tasks"][0]["reason"] == "Impossible"
    assert "wants 20" in tree["tasks"][0]["message"]
    shell.run("muster job logs too-large", code=4)
    explained = shell.run("muster explain kusciajob/too-large")
    assert "Helps: ask for at most 8 of cpu" in explained
    shell.run("muster job cancel too-large --wait --timeout 60", code=8)
    assert shell.run("muster job list --phase cancelled -o name") == "kusciajob.kuscia.secretflow/too-large\n"
    shell.run("muster job delete too-large")


JOB = """
apiVersion: kuscia.secretflow/v1alpha1
kind: KusciaJob
metadata: {{name: {name}}}
spec:
  initiator: alice
  maxParallelism: 1
  tasks:
    - alias: first
      appImage: pipeline
      taskInputConfig: "{{}}"
      parties: [{{domainID: alice, role: steady}}, {{domainID: bob, role: steady}}]
    - alias: long
      dependencies: [first]
      appImage: {image}
      taskInputConfig: "{{}}"
      parties: [{{domainID: alice}}, {{domainID: bob}}]
    - alias: last
      dependencies: [long]
      appImage: pipeline
      taskInputConfig: "{{}}"
      parties: [{{domainID: bob, role: steady}}]
"""
LONG = """
apiVersion: kuscia.secretflow/v1alpha1
kind: AppImage
metadata: {name: long}
spec:
  image: {name: example/long, tag: "1"}
  deployTemplates:
    - name: any
      replicas: 1
      spec:
        containers:
          - {name: main, command: [work], env: [{name: MUSTER_SIMULATED_SECONDS, value: "%s"}]}
"""


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 100_000).decode("utf-8", "replace")
    except OSError:  # the other side is closed
        return ""


class TestLifeOfAJob:
    """Commands on a job whose second task runs until it is told otherwise."""

    @pytest.fixture
    def job(self, shell: Shell, tmp_path: Path, request: pytest.FixtureRequest) -> str:
        name = str(request.node.name).removeprefix("test_").replace("_", "-")
        shell.run("muster apply -f examples/dag/app.yaml -f examples/two-party/parties.yaml")
        path = tmp_path / "job.yaml"
        path.write_text(f"{LONG % 'forever'}---{JOB.format(name=name, image='long')}")
        shell.run(f"muster job submit -f {path}")
        self.until(shell, name, {"first": "Succeeded", "long": "Running"})
        return name

    def until(self, shell: Shell, name: str, wanted: dict[str, str], *, phase: str = "") -> Any:
        with SyncClient.from_kubeconfig(shell.kubeconfig) as client:
            for tree in client.jobs.watch(name):
                seen = {task.alias: task.phase for task in tree.tasks}
                if phase in ("", tree.outcome, tree.phase) and wanted.items() <= seen.items():
                    return msgspec.to_builtins(tree)
        raise AssertionError(f"{name} ended as {tree.outcome}: {tree.message}")

    def let_it_end(self, shell: Shell, tmp_path: Path) -> None:
        path = tmp_path / "image.yaml"
        path.write_text(LONG % "1")
        shell.run(f"muster apply -f {path}")

    def test_stop_restart(self, shell: Shell, job: str, tmp_path: Path) -> None:
        shell.run(f"muster job stop {job} --wait --timeout 120", code=8)
        stopped = shell.data(f"muster job tree {job}")
        assert stopped["outcome"] == "Stopped"
        first = stopped["tasks"][0]["started"]
        self.let_it_end(shell, tmp_path)
        shell.run(f"muster job restart {job} --wait --timeout 120")
        tree = shell.data(f"muster job tree {job}")
        assert phases(tree) == {"first": "Succeeded", "long": "Succeeded", "last": "Succeeded"}
        assert tree["tasks"][0]["started"] == first, "what had succeeded was run again"

    def test_suspend_resume(self, shell: Shell, job: str, tmp_path: Path) -> None:
        shell.run(f"muster job suspend {job}")
        held = self.until(shell, job, {"first": "Succeeded"}, phase="Suspended")
        self.let_it_end(shell, tmp_path)
        shell.run(f"muster job resume {job} --wait --timeout 120")
        tree = shell.data(f"muster job tree {job}")
        assert tree["outcome"] == "Succeeded"
        assert tree["tasks"][0]["started"] == held["tasks"][0]["started"]

    def test_cancel_rerun_diff(self, shell: Shell, job: str, tmp_path: Path) -> None:
        shell.run(f"muster job cancel {job} --wait --timeout 120", code=8)
        assert "can't restart" in self.failure(shell, f"muster job restart {job}")
        self.let_it_end(shell, tmp_path)
        shell.run(f"muster job rerun {job} --wait --timeout 120")
        compared = shell.run(f"muster job diff {job} {job}-rerun-1")
        assert "Spec: the same" in compared
        assert "Cancelled -> Succeeded" in compared
        again = shell.run(f"muster job rerun {job}-rerun-1 --from long --wait --timeout 120")
        assert "rerunning from long" in again
        tree = shell.data(f"muster job tree {job}-rerun-1")
        assert tree["outcome"] == "Succeeded"
        assert tree["tasks"][0]["ended"] <= tree["tasks"][1]["started"]
        listed = shell.data("muster job list --party bob --phase cancelled --phase succeeded")["items"]
        assert {job, f"{job}-rerun-1"} <= {one["name"] for one in listed}

    def test_watch_on_a_terminal(self, shell: Shell, job: str, tmp_path: Path) -> None:
        own, theirs = os.openpty()
        watching = subprocess.Popen(
            ["muster", "job", "watch", job], cwd=ROOT, env=shell.environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        shown = os.read(own, 100_000).decode()
        shell.run(f"muster job cancel {job}")
        while chunk := _read(own):
            shown += chunk
        os.close(own)
        assert watching.wait(TIMEOUT_S) == 8
        assert "\x1b[J" in shown, "the tree was not repainted"
        assert "[--" in shown, "no progress bar"
        last = shown.rpartition("\x1b[J")[2]
        assert "Cancelled" in last.splitlines()[0]

    def test_follow_logs_delete(self, shell: Shell, job: str) -> None:
        following = subprocess.Popen(
            ["muster", "job", "logs", job, "--follow", "--task", "long"],
            cwd=ROOT,
            env=shell.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert following.stdout is not None
        assert "would run work" in following.stdout.readline()
        shell.run(f"muster job stop {job}")
        rest, errors = following.communicate(timeout=TIMEOUT_S)
        assert following.returncode == 0, errors
        assert "ended with exit code 143" in rest
        shell.run(f"muster job delete {job} --timeout 120")
        left = shell.data("kubectl get pods,kusciatasks --all-namespaces")["items"]
        assert [one["metadata"]["name"] for one in left if one["metadata"]["name"].startswith(f"{job}-")] == []

    def failure(self, shell: Shell, command: str) -> str:
        done = subprocess.run(
            shlex.split(command),
            cwd=ROOT,
            env=shell.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 6, done.stderr
        return done.stderr
