"""`muster run`: the Job that it makes, and following it on a real server with simulated nodes."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.cli.errors import UsageError
from muster.cli.run_job import RunOptions, deadline_of, manifest_of, name_for, pairs
from muster.cli.running import Phases
from muster.client.job_tree import JobTree
from muster.objects.kinds.muster_jobs import JOB
from muster.objects.validation import validate_object
from tests.cli.conftest import Run
from tests.cli.support import TIMEOUT_S, Up, environment

# -- the Job ------------------------------------------------------------------------------------------------------------------


def test_everything_that_can_be_said() -> None:
    options = RunOptions(
        command=["python", "train.py", "--lr", "0.1"],
        name="train",
        image="x:1",
        replicas=3,
        cpu="2",
        memory="4Gi",
        gpu=1,
        bandwidth="200Mbps",
        memory_limit="6Gi",
        bandwidth_limit="none",
        env={"A": "b"},
        workdir="/app",
        queue="research",
        priority=7,
        user="ann",
        type="training",
        attributes={"domain": "cv"},
        labels={"team": "red"},
        node_selector={"gpu": "h100"},
        pools=["fast"],
        estimate_s=7200,
        deadline="2026-11-16T08:00:00Z",
        preemptible=True,
        checkpoint_interval_s=600,
        retries=2,
        timeout_s=0.2,
    )
    manifest = manifest_of(options)
    assert manifest["metadata"] == {"name": "train", "labels": {"team": "red"}}
    assert manifest["spec"] == {
        "roles": [
            {
                "name": "main",
                "replicas": 3,
                "image": "x:1",
                "command": ["python", "train.py", "--lr", "0.1"],
                "workingDir": "/app",
                "env": [{"name": "A", "value": "b"}],
                "nodeSelector": {"gpu": "h100"},
                "resources": {
                    "requests": {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1", "bandwidth": "200Mbps"},
                    "limits": {"cpu": "2", "memory": "6Gi", "nvidia.com/gpu": "1"},
                },
            }
        ],
        "user": "ann",
        "queue": "research",
        "priority": 7,
        "type": "training",
        "attributes": {"domain": "cv"},
        "estimate": {"runSeconds": 7200},
        "deadline": "2026-11-16T08:00:00Z",
        "pools": ["fast"],
        "preemptible": True,
        "checkpointIntervalSeconds": 600,
        "retry": {"limit": 2},
        "activeDeadlineSeconds": 1,
    }
    assert validate_object(JOB, {**manifest, "metadata": {**manifest["metadata"], "namespace": "default"}}) == []


@pytest.mark.parametrize(
    ("options", "resources"),
    [
        pytest.param({"cpu": "1"}, {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}, id="what it asks for"),
        pytest.param({"cpu": "1", "cpu_limit": "2"}, {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}, id="more"),
        pytest.param({"cpu": "1", "cpu_limit": "none"}, {"requests": {"cpu": "1"}}, id="none"),
        pytest.param({"memory_limit": "1Gi"}, {"limits": {"memory": "1Gi"}}, id="a limit alone"),
        pytest.param({"memory_limit": "none"}, None, id="no limit of nothing"),
        pytest.param(
            {"bandwidth": "10Mbps"}, {"requests": {"bandwidth": "10Mbps"}, "limits": {"bandwidth": "10Mbps"}}, id="bandwidth"
        ),
    ],
)
def test_limits(options: dict[str, Any], resources: dict[str, Any] | None) -> None:
    manifest = manifest_of(RunOptions(command=["true"], **options))
    assert manifest["spec"]["roles"][0].get("resources") == resources
    assert validate_object(JOB, {**manifest, "metadata": {"name": "x", "namespace": "default"}}) == []


def test_what_is_not_said_is_not_there() -> None:
    manifest = manifest_of(RunOptions(command=["true"]))
    assert manifest["spec"] == {"roles": [{"name": "main", "replicas": 1, "command": ["true"]}]}
    assert manifest["metadata"] == {"generateName": "true-"}


@pytest.mark.parametrize(
    ("command", "image", "name"),
    [
        pytest.param(["python", "train.py"], "", "train", id="a script"),
        pytest.param(["python", "-u", "jobs/My_Train.py"], "", "my-train", id="behind an option"),
        pytest.param(["/usr/bin/env"], "", "env", id="a program"),
        pytest.param(["7z", "x"], "", "z", id="begins with a digit"),
        pytest.param(["///"], "", "run", id="nothing is left"),
        pytest.param([], "reg.example.com:5000/team/solver:2", "solver", id="an image"),
        pytest.param([], "busybox", "busybox", id="an image without a tag"),
        pytest.param(["x" * 200], "", "x" * 40, id="very long"),
    ],
)
def test_names(command: list[str], image: str, name: str) -> None:
    assert name_for(RunOptions(command=command, image=image)) == name


def test_mistakes_name_the_option() -> None:
    with pytest.raises(UsageError, match="nothing to run"):
        manifest_of(RunOptions())
    with pytest.raises(UsageError, match="--env 'A': expected NAME=VALUE"):
        pairs(["A"], "--env")
    with pytest.raises(UsageError, match="given twice"):
        pairs(["A=1", "A=2"], "--env")
    with pytest.raises(UsageError, match="--deadline 'soon'"):
        deadline_of("soon", None, 0.0)
    with pytest.raises(UsageError, match="that is over"):
        deadline_of("2026-11-16T10:00:00Z", None, 1_800_000_000.0)
    assert deadline_of("2h", 7200.0, 1_800_000_000.0) == "2027-01-15T10:00:00Z"
    assert deadline_of("2026-11-16T10:00:00+02:00", None, 0.0) == "2026-11-16T08:00:00Z"


def test_a_reason_comes_with_what_helps_once() -> None:
    said: list[str] = []
    phases = Phases(said.append)
    tree = JobTree(kind="Job", namespace="d", name="j", phase="Queued", reason="CPUInsufficient", message="1 short")
    for message in ("1 short", "1 short", "2 short"):
        phases.show(msgspec.structs.replace(tree, message=message))
    assert said == [
        "Queued: CPUInsufficient: 1 short",
        "  what helps: Ask for less CPU, or wait for work to end.",
        "Queued: CPUInsufficient: 2 short",
    ]


# -- on a server --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = tmp_path_factory.mktemp("simulated")
    with Up(home / "data", "--simulated-nodes", "default=2", env=environment(home)) as up:
        yield up


@pytest.fixture
def muster(run: Run, simulated: Up, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("KUBECONFIG", str(simulated.kubeconfig))
    return run


SHORT = ("--env", "MUSTER_SIMULATED_SECONDS=1")


@pytest.mark.slow
def test_it_is_followed_to_its_end(muster: Run) -> None:
    done = muster("run", "--name", "good", "--cpu", "1", *SHORT, "--", "python", "train.py", "--lr", "0.1")
    assert done.code == 0, done.err
    assert "would run python train.py --lr 0.1" in done.out
    lines = done.err.splitlines()
    assert lines[0] == "good: submitted"
    assert any(line.startswith("good: Running on simulated-default-") for line in lines)
    assert lines[-1].startswith("good: Succeeded")


@pytest.mark.slow
def test_the_exit_code_is_the_command_s(muster: Run) -> None:
    failed = muster("run", "--name", "bad", "--env", "MUSTER_SIMULATED_EXIT_CODE=42", *SHORT, "--", "x")
    assert failed.code == 42
    assert "bad: Failed: ContainerFailed: pod bad-main-0" in failed.err
    several = muster("run", "--name", "bads", "--replicas", "2", "--env", "MUSTER_SIMULATED_EXIT_CODE=42", *SHORT, "--", "x")
    assert several.code == 1
    assert "main-0 | " in several.out
    assert "main-1 | " in several.out


@pytest.mark.slow
def test_retries(muster: Run) -> None:
    simulated = ("--env", "MUSTER_SIMULATED_EXIT_CODE=9", "--env", "MUSTER_SIMULATED_FAILURES=1")
    done = muster("run", "--name", "again", "--retries", "1", *simulated, *SHORT, "--", "x")
    assert done.code == 0, done.err
    assert "again: Queued: BackingOff: attempt 1 failed" in done.err


@pytest.mark.slow
def test_for_programs(muster: Run) -> None:
    name = muster("run", "--detach", "-o", "name", *SHORT, "--", "x")
    assert name.code == 0
    assert name.out.startswith("job.muster.dev/x-")
    whole = muster("run", "--name", "whole", "-o", "json", *SHORT, "--", "x")
    assert whole.code == 0, whole.err
    assert msgspec.json.decode(whole.out)["status"]["phase"] == "Succeeded"
    assert whole.err == ""


@pytest.mark.slow
def test_nothing_is_stored_by_a_dry_run(muster: Run) -> None:
    tried = muster("run", "--name", "dry", "--dry-run", "--", "x")
    assert (tried.code, tried.out) == (0, "job.muster.dev/dry submitted (dry run)\n")
    assert muster("get", "jobs.muster.dev", "dry").code == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        pytest.param(("run",), 2, "nothing to run", id="no command"),
        pytest.param(("run", "--cpu", "much", "--", "x"), 2, "--cpu 'much'", id="cpu"),
        pytest.param(("run", "--memory-limit", "much", "--", "x"), 2, "--memory-limit 'much'", id="memory limit"),
        pytest.param(("run", "--cpu", "2", "--cpu-limit", "1", "--", "x"), 1, "RequestExceedsLimit", id="limit below request"),
        pytest.param(("run", "--env", "A", "--", "x"), 2, "--env 'A'", id="env"),
        pytest.param(("run", "--deadline", "soon", "--", "x"), 2, "--deadline 'soon'", id="deadline"),
        pytest.param(("run", "--bandwidth", "9 pigeons", "--", "x"), 1, "spec.roles[0].resources.requests", id="bandwidth"),
        pytest.param(("run", "--bandwidth", "10", "--", "x"), 2, "10Mbps", id="bandwidth without a unit"),
        pytest.param(("run", "--name", "Bad_Name", "--", "x"), 1, "metadata.name", id="name"),
    ],
)
def test_mistakes(muster: Run, args: tuple[str, ...], code: int, words: str) -> None:
    done = muster(*args)
    assert done.code == code
    assert words in done.err
    assert len(done.err.splitlines()) == 1


# -- Ctrl-C -------------------------------------------------------------------------------------------------------------------


class Session:
    """`muster run` as a process of its own, on a terminal or not."""

    def __init__(self, up: Up, home: Path, *args: str, is_terminal: bool) -> None:
        self._master, slave = pty.openpty() if is_terminal else (-1, subprocess.PIPE)
        env = environment(home, KUBECONFIG=str(up.kubeconfig))
        self.child = subprocess.Popen(
            [sys.executable, "-m", "muster.cli.main", "run", *args],
            env=env,
            stdin=slave if is_terminal else subprocess.DEVNULL,
            stdout=slave if is_terminal else subprocess.PIPE,
            stderr=slave if is_terminal else subprocess.STDOUT,
        )
        if is_terminal:
            os.close(slave)
        else:
            assert self.child.stdout is not None
            self._master = self.child.stdout.fileno()
        self.text = ""

    def until(self, words: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while words not in self.text:
            assert time.monotonic() < deadline_s, self.text
            try:
                read = os.read(self._master, 4096)
            except OSError:  # how a terminal ends
                read = b""
            assert read, f"it ended: {self.text}"
            self.text += read.decode()

    def interrupt(self) -> None:
        self.child.send_signal(signal.SIGINT)

    def answer(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        with contextlib.suppress(OSError):
            while read := os.read(self._master, 4096):
                self.text += read.decode()
        return self.child.wait(TIMEOUT_S)


FOREVER = ("--env", "MUSTER_SIMULATED_SECONDS=forever", "--", "x")


def phase(muster: Run, name: str) -> Any:
    return msgspec.json.decode(muster("get", "jobs.muster.dev", name, "-o", "json").out)["status"]["phase"]


@pytest.mark.slow
def test_without_a_terminal_it_leaves_and_the_job_goes_on(muster: Run, simulated: Up, tmp_path: Path) -> None:
    session = Session(simulated, tmp_path, "--name", "piped", *FOREVER, is_terminal=False)
    session.until("piped: Running")
    session.interrupt()
    assert session.end() == 130
    assert "muster job watch Job/piped" in session.text
    assert phase(muster, "piped") == "Running"
    assert muster("job", "cancel", "Job/piped").code == 0


@pytest.mark.slow
def test_on_a_terminal_it_asks(muster: Run, simulated: Up, tmp_path: Path) -> None:
    session = Session(simulated, tmp_path, "--name", "asked", *FOREVER, is_terminal=True)
    session.until("asked: Running")
    session.interrupt()
    session.until("cancel the job? [y/N]")
    session.answer("n\n")
    assert phase(muster, "asked") == "Running"
    session.text = ""
    session.interrupt()
    session.until("cancel the job? [y/N]")
    session.answer("y\n")
    assert session.end() == 130
    assert phase(muster, "asked") == "Cancelled"


@pytest.mark.slow
def test_the_second_time_it_leaves(muster: Run, simulated: Up, tmp_path: Path) -> None:
    session = Session(simulated, tmp_path, "--name", "left", *FOREVER, is_terminal=True)
    session.until("left: Running")
    session.interrupt()
    session.until("cancel the job? [y/N]")
    session.interrupt()
    assert session.end() == 130
    assert "goes on" in session.text
    assert phase(muster, "left") == "Running"
    assert muster("job", "cancel", "Job/left").code == 0


@pytest.mark.slow
def test_logs_that_nobody_serves_are_mentioned_once(run: Run, local: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without agents: the pod is bound and reported by hand, as `kubectl` could."""
    monkeypatch.setenv("KUBECONFIG", str(local.kubeconfig))
    node = "apiVersion: v1\nkind: Node\nmetadata: {name: bare}\n"
    assert run("apply", "-f", "-", stdin=node).code == 0
    session = Session(local, local.data_dir.parent, "--name", "mute", "--", "x", is_terminal=False)
    session.until("mute: Queued")
    kubectl = [str(Path(sys.executable).parent / "kubectl"), "--kubeconfig", str(local.kubeconfig)]
    binding = '{"apiVersion":"v1","kind":"Binding","metadata":{"name":"mute-main-0"},"target":{"kind":"Node","name":"bare"}}'
    path = "/api/v1/namespaces/default/pods/mute-main-0/binding"
    subprocess.run([*kubectl, "create", "--raw", path, "-f", "-"], input=binding, text=True, check=True, capture_output=True)
    for reported in ("Running", "Succeeded"):
        patch = f'{{"status":{{"phase":"{reported}"}}}}'
        command = [*kubectl, "patch", "pod", "mute-main-0", "--subresource=status", "--type=merge", "-p", patch]
        subprocess.run(command, check=True, capture_output=True)
        session.until(f"mute: {reported}")
    assert session.end() == 0
    assert session.text.count("logs can't be shown") == 1
