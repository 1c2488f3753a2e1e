"""The private set intersection of `examples/psi` as a job of two parties, on real agents: as processes, and in containers."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.agent.agent import run_dir_of
from muster.agent.config import load
from muster.agent.layout import Layout
from muster.objects.labels import Muster
from tests.cli.support import Up, environment, muster
from tests.e2e.agent_world import leftovers
from tests.examples.psi_support import FOLDER
from tests.examples.psi_support import load as load_example
from tests.waiting import blocked_until

pytestmark = pytest.mark.slow
PARTIES = ("alice", "bob")
FIRST_USER = 3_000_000_000
STOP_S = 60
prepare = load_example("prepare")
image = load_example("image")


class Agents:
    """An agent for each party, each a process on a directory of its own; they leave for good at the end."""

    def __init__(self, up: Up, home: Path, config: dict[str, Any]) -> None:
        self.env = environment(home, KUBECONFIG=str(up.kubeconfig))
        self._home = home
        self._config = config
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._up = up

    def directory(self, party: str) -> Path:
        return self._home / "agents" / party

    def start(self, party: str) -> None:
        directory = self.directory(party)
        directory.mkdir(parents=True)
        path = self._home / f"{party}.yaml"
        first = FIRST_USER + 10_000 * PARTIES.index(party)
        shared = {"capacity": {"share": 0.5}, "process": {"userRange": [first, first + 9_999], "hide": [str(self._home)]}}
        path.write_text(yaml.safe_dump({"name": f"{party}-node", "reserved": {"cpu": "0"}, **shared, **self._config}))
        load(path)
        said = muster("domain", "token", "create", party, env=self.env)
        [join] = [line for line in (said.stdout + said.stderr).splitlines() if "muster agent --join" in line]
        command = [sys.executable, "-m", "muster.cli.main", *shlex.split(join.strip())[1:]]
        with (self._home / f"{party}.log").open("w") as log:
            self._started[party] = subprocess.Popen(
                [*command, "--data-dir", str(directory), "--config", str(path)], env=self.env, stdout=log, stderr=log
            )

    def stop(self) -> None:
        for party, process in self._started.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                muster("agent", "--leave", "--drain", "--data-dir", str(self.directory(party)), env=self.env)
                process.wait(STOP_S)
            if process.poll() is None:
                process.terminate()
                process.wait(STOP_S)
            directory = self.directory(party)
            assert leftovers(Layout(directory, run_dir_of(directory))) == []

    def logs(self) -> str:
        return "".join(f"{party}: {(self._home / f'{party}.log').read_text()[-3000:]}\n" for party in self._started)

    def get(self, *what: str) -> Any:
        done = muster("get", *what, "-o", "json", env=self.env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def are_ready(self) -> bool:
        conditions = [c for node in self.get("nodes")["items"] for c in node["status"].get("conditions", ())]
        return len([c for c in conditions if c["type"] == "Ready" and c["status"] == "True"]) == len(PARTIES)


@pytest.fixture(params=["process", "runc"])
def agents(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Agents]]:
    if os.geteuid() != 0:
        pytest.skip("without root tasks have no network of their own")
    if request.param == "runc" and not (shutil.which("runc") or shutil.which("crun")):
        if os.environ.get("CI"):
            pytest.fail("CI must have runc")
        pytest.skip("neither runc nor crun is installed")
    config = {"runtime": request.param}
    with Up(tmp_path / "data", "--without", "agent", env=environment(tmp_path)) as up:
        started = Agents(up, tmp_path, config)
        try:
            applied = muster("apply", "-f", str(FOLDER / "parties.yaml"), env=started.env)
            assert applied.returncode == 0, applied.stderr
            for party in PARTIES:
                started.start(party)
            yield request.param, started
        finally:
            started.stop()


@pytest.fixture
def lists() -> Iterator[Path]:
    """The example's data where tasks see it, wherever the checkout lies."""
    directory = Path(tempfile.mkdtemp(prefix="muster-psi-", dir="/var/tmp"))
    try:
        shutil.copytree(FOLDER / "data", directory / "data")
        for path in (directory, directory / "data"):
            path.chmod(0o755)
        yield directory / "data"
    finally:
        shutil.rmtree(directory)


def manifests(runtime: str, nodes: Agents, root: Path, lists: Path) -> str:
    """With runc they are taken as they stand in the example, and the image is loaded as its page says."""
    if runtime == "process":
        return yaml.safe_dump_all(prepare.manifests(lists, parts=("app", "job")))
    image.make(root)
    for party in PARTIES:
        directory = str(nodes.directory(party))
        loaded = muster("image", "load", f"dir:{root}", "--name", "example/psi:1.0", "--data-dir", directory, env=nodes.env)
        assert loaded.returncode == 0, loaded.stderr
    return "\n---\n".join((FOLDER / f"{part}.yaml").read_text() for part in ("app", "job"))


def test_the_intersection_is_found(agents: tuple[str, Agents], tmp_path: Path, lists: Path) -> None:
    runtime, nodes = agents
    blocked_until(nodes.are_ready)
    path = tmp_path / "job.yaml"
    path.write_text(manifests(runtime, nodes, tmp_path / "image", lists))
    applied = muster("apply", "-f", str(path), env=nodes.env)
    assert applied.returncode == 0, applied.stderr
    done = muster("job", "watch", "psi", "--timeout", "100", env=nodes.env)
    logs = muster("job", "logs", "psi", env=nodes.env)
    shown = logs.stdout + logs.stderr
    pods = nodes.get("pods", "--all-namespaces")["items"]
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{shown}{nodes.logs()}{json.dumps(pods)[:6000]}"
    assert shown.count("60 items are common") == 2, shown
    for pod in pods:
        annotations = pod["metadata"]["annotations"]
        assert annotations[Muster.PROGRESS] == "1"
        assert json.loads(annotations[Muster.RECORDS]) == {"items": 200, "peerItems": 200, "common": 60}
        traffic = json.loads(annotations[Muster.TRAFFIC])
        # Two points of 32 bytes for each of the own items and of the peer's, and what TCP adds.
        assert 2 * 200 * 32 < traffic["sentBytes"] < 60_000
        assert 2 * 200 * 32 < traffic["receivedBytes"] < 60_000
