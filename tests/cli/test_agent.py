"""`muster agent` as a program: joining, starting again, reloading, leaving, and mistakes on the command line."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.agent.claim import holder_of
from muster.agent.fencing import is_guarded
from muster.agent.layout import Layout
from tests.cli.conftest import Run
from tests.cli.support import Up, environment, muster
from tests.waiting import blocked_until

DOMAIN = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "Domain", "metadata": {"name": "alice"}, "spec": {}}


class Node:
    """One data directory, and at most one agent on it."""

    def __init__(self, up: Up, directory: Path, env: dict[str, str]) -> None:
        self.up = up
        self.directory = directory
        self.env = env
        self.layout = Layout(directory)
        self.child: subprocess.Popen[str] | None = None

    def start(self, *args: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "muster.cli.main", "agent", "--data-dir", str(self.directory), *args]
        self.child = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return self.child

    def wait_ready(self) -> str:
        assert self.child is not None
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert "is ready" in line, self.child.communicate(timeout=60)
        return line

    def stop(self) -> str:
        """What it said on stderr."""
        assert self.child is not None
        self.child.send_signal(signal.SIGTERM)
        _, err = self.child.communicate(timeout=60)
        assert self.child.returncode == 0, err
        return err

    def kill(self) -> None:
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.communicate()

    def node(self, name: str) -> dict[str, Any] | None:
        done = muster("get", "node", name, "-o", "json", env=self.env)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def ready(self, name: str) -> tuple[str, str]:
        node = self.node(name)
        assert node is not None
        (one,) = [c for c in node["status"]["conditions"] if c["type"] == "Ready"]
        return one["status"], one["reason"]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    root = tmp_path_factory.mktemp("agents")
    with Up(root / "data", env=environment(root)) as made:
        yield made


@pytest.fixture
def node(up: Up, tmp_path: Path) -> Iterator[Node]:
    env = environment(tmp_path, KUBECONFIG=str(up.kubeconfig))
    made = Node(up, tmp_path / "agent", env)
    yield made
    made.kill()
    import asyncio

    from muster.agent.ending import end_everything

    asyncio.run(end_everything(made.layout))


def url_of(up: Up) -> str:
    found = re.search(r"server: (\S+)", up.kubeconfig.read_text())
    assert found is not None
    return found[1]


def token_for(node: Node) -> str:
    done = muster("apply", "-f", "-", env=node.env, stdin=json.dumps(DOMAIN))
    assert done.returncode == 0, done.stderr
    done = muster("domain", "token", "create", "alice", env=node.env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0]


@pytest.mark.slow
def test_a_node_joins_starts_again_reloads_and_leaves(node: Node, tmp_path: Path) -> None:
    config = tmp_path / "agent.yaml"
    whole = ipaddress.IPv4Network((node.up.data_dir / "pod-range").read_text().strip())
    cidr = list(whole.subnets(new_prefix=24))[-1]
    config.write_text(f"labels: {{zone: east}}\nnetwork: {{enabled: never, podCIDR: {cidr}}}\n")
    args = ("--join", url_of(node.up), "--domain", "alice", "--name", "n1", "--config", str(config))
    node.start(*args, "--token", token_for(node))
    assert "node n1 of party alice is ready" in node.wait_ready()
    made = node.node("n1")
    assert made is not None
    assert made["metadata"]["labels"]["zone"] == "east"
    assert made["spec"]["podCIDR"] == str(cidr)
    assert made["spec"]["taints"][0]["key"] == "kuscia.secretflow/agent"
    assert node.ready("n1") == ("True", "AgentReady")

    second = subprocess.run(node.child.args, env=node.env, capture_output=True, text=True, timeout=60, check=False)  # type: ignore[union-attr]
    assert second.returncode == 6
    assert "runs an agent on it" in second.stderr

    config.write_text("labels: {zone: west}\ncapacity: {cpu: '0.75'}\nnetwork: {enabled: never}\n")
    assert node.child is not None
    node.child.send_signal(signal.SIGHUP)
    blocked_until(lambda: (node.node("n1") or {})["status"]["capacity"]["cpu"] == "750m")
    assert (node.node("n1") or {})["metadata"]["labels"]["zone"] == "west"
    config.write_text("capacity: {cpu: many}\n")
    node.child.send_signal(signal.SIGHUP)
    config.write_text("capacity: {cpu: '0.75'}\nnetwork: {enabled: never}\n")
    said = node.stop()
    assert "the configuration was read again" in said
    assert node.ready("n1") == ("False", "AgentStopped")

    node.start("--config", str(config))
    assert "node n1 of party alice is ready" in node.wait_ready(), "a second start needs no token, and knows who it is"
    assert node.ready("n1") == ("True", "AgentReady")
    left = muster("agent", "--leave", "--data-dir", str(node.directory), env=node.env)
    assert left.returncode == 0, left.stderr
    assert node.child is not None
    assert node.child.wait(60) == 0
    assert node.node("n1") is None
    assert not node.layout.credentials.exists()
    assert not node.layout.run.exists()
    node.child.communicate()


@pytest.mark.slow
def test_an_admins_kubeconfig_is_enough(node: Node) -> None:
    node.start("--kubeconfig", str(node.up.kubeconfig), "--name", "by-kubeconfig")
    node.wait_ready()
    made = node.node("by-kubeconfig")
    assert made is not None
    uid = made["metadata"]["uid"]
    done = muster("delete", "node", "by-kubeconfig", env=node.env)
    assert done.returncode == 0, done.stderr
    blocked_until(lambda: (node.node("by-kubeconfig") or {}).get("metadata", {}).get("uid") not in (None, uid))
    node.stop()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        pytest.param((), 2, "give --join URL with --token, or --kubeconfig", id="nothing"),
        pytest.param(("--join", "https://127.0.0.1:1", "--token", "t"), 3, "can't be reached", id="nobody there"),
        pytest.param(("--join", "https://127.0.0.1:1"), 5, "has not joined yet", id="no token"),
        pytest.param(("--join", "ftp://x", "--token", "t"), 5, "must begin with https://", id="no URL"),
        pytest.param(("--join", "https://192.0.2.1:1", "--token", "t"), 5, "must prove who it is", id="no CA"),
        pytest.param(("--kubeconfig", "/nowhere"), 3, "no such kubeconfig", id="no kubeconfig"),
    ],
)
def test_mistakes(tmp_path: Path, args: tuple[str, ...], code: int, words: str) -> None:
    done = muster("agent", "--data-dir", str(tmp_path / "d"), *args, env=environment(tmp_path))
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert done.stderr.count("\n") == 1, "one line"


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        pytest.param(("--join", "u", "--kubeconfig", "f"), 2, "give one of them", id="two ways"),
        pytest.param(("--join", "u", "--ca-file", "f", "--ca-hash", "h"), 2, "give one of them", id="two CAs"),
        pytest.param(("--config", "/nowhere"), 2, "No such file", id="no configuration"),
        pytest.param(("--name", "A_B"), 2, "name: 'A_B'", id="no name"),
        pytest.param(("--domain", "A_B"), 2, "domain: 'A_B'", id="no party"),
        pytest.param(("--drain",), 2, "give it with --leave", id="drain without leaving"),
        pytest.param(("--leave",), 4, "no agent runs on it", id="leaving without an agent"),
        pytest.param(("--runtime", "magic"), 2, "magic", id="no runtime"),
    ],
)
def test_mistakes_before_anything_begins(run: Run, tmp_path: Path, args: tuple[str, ...], code: int, words: str) -> None:
    done = run("agent", "--data-dir", str(tmp_path / "d"), *args)
    assert (done.code, words in done.err) == (code, True), done.err
    assert done.err.count("\n") == 1, "one line"


def test_a_wrong_file_is_named_with_every_mistake(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("capacity: {cpu: many, share: 2}\n")
    done = run("agent", "--config", str(config), "--data-dir", str(tmp_path / "d"))
    assert done.code == 2
    assert "capacity.cpu" in done.err
    assert "capacity.share" in done.err


def test_the_token_is_not_left_in_the_environment(tmp_path: Path) -> None:
    """What the agent starts later must not find it."""
    from muster.cli.commands.agent import TOKEN_VARIABLE

    assert TOKEN_VARIABLE not in os.environ
    env = environment(tmp_path) | {TOKEN_VARIABLE: "secret"}
    done = muster("agent", "--join", "https://127.0.0.1:1", "--data-dir", str(tmp_path / "d"), env=env)
    assert done.returncode == 3, "the variable counts as a token"
    assert "secret" not in done.stderr
    assert holder_of(Layout(tmp_path / "d").lock) is None


def pod_on(node: str, name: str, script: str) -> dict[str, Any]:
    container = {"name": "main", "image": "muster.dev/process", "command": ["sh", "-c", script]}
    spec = {"nodeName": node, "restartPolicy": "Always", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def status_of(node: Node, pod: str) -> dict[str, Any]:
    done = muster("get", "pod", pod, "-o", "json", env=node.env)
    return json.loads(done.stdout).get("status", {}) if done.returncode == 0 else {}


@pytest.mark.slow
def test_work_is_fenced_also_when_the_agent_is_stopped(node: Node, tmp_path: Path) -> None:
    """SIGSTOP: the agent does nothing any more, and the control plane hears nothing. The guard kills what runs."""
    config = tmp_path / "agent.yaml"
    config.write_text("network: {enabled: never}\ntiming: {heartbeatSeconds: 1, leaseSeconds: 5, fenceSeconds: 8}\n")
    node.start("--kubeconfig", str(node.up.kubeconfig), "--name", "fenced", "--config", str(config))
    node.wait_ready()
    assert (node.node("fenced") or {})["metadata"]["annotations"]["muster.dev/fence-seconds"] == "8"
    done = muster("apply", "-f", "-", env=node.env, stdin=json.dumps(pod_on("fenced", "victim", "sleep 1000")))
    assert done.returncode == 0, done.stderr
    blocked_until(lambda: status_of(node, "victim").get("phase") == "Running")
    (started,) = node.layout.pods.glob("*/containers/main/0/started.json")
    pid = json.loads(started.read_text())["pid"]
    assert node.child is not None
    node.child.send_signal(signal.SIGSTOP)
    try:
        blocked_until(lambda: not _runs(pid))
        assert (started.parent / "fenced").exists()
    finally:
        node.child.send_signal(signal.SIGCONT)
    blocked_until(lambda: status_of(node, "victim").get("phase") == "Failed")
    assert status_of(node, "victim")["reason"] == "NodeLost", "whatever its restart policy says: it may run elsewhere by now"
    assert not list(node.layout.pods.glob("*/containers/main/1"))
    node.stop()
    blocked_until(lambda: not is_guarded(node.directory))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
