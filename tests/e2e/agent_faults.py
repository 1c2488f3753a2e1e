"""One control plane, one agent, and a hand that kills them, their shims and their tasks, by seed. Run in a process of its own.

    python -m tests.e2e.agent_faults SEED ROUNDS DIRECTORY

Everything happens in network and mount namespaces of its own, so that interfaces, routes and settings of the machine stay as
they are. In each round some pods are bound to the node, and while they run, server, agent, zygote, shims and tasks are killed
in any order and started again. What must hold after a round:

- every pod came to an end, and to the one that its command has, unless the hand hit that very pod;
- nothing ran twice: a pod writes a line when it starts, and there are as many as the status says that it was started;
- what it printed can be read, though agent and server died in between;
- when the pods are deleted, no process, cgroup, namespace, interface, mount or file of theirs is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml

from muster.agent.agent import run_dir_of
from muster.agent.layout import Layout
from muster.agent.shim import namespaces
from muster.client.api import ApiClient
from muster.client.kubeconfig import load
from muster.objects.resources import Resource
from muster.objects.status import ApiError, NotFound, Raw
from muster.store.kubernetes import KubernetesStore
from tests.e2e.server_process import ServerProcess

NODE = "faulty"
WAIT_S = 120.0
NAMESPACE = "default"
USERS = (1_900_000_000, 1_900_000_999)


class Work(msgspec.Struct):
    """One pod, as the test means it to go."""

    name: str
    run_s: float
    code: int
    policy: str
    is_hit: bool = False
    """The hand killed its task or shim: it may have ended in another way."""


class World:
    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ledger = directory / "ledger"
        self.server = ServerProcess(directory / "server")
        self.agent_data = directory / "agent"
        self.layout = Layout(self.agent_data, run_dir_of(self.agent_data))
        self.config = directory / "agent.yaml"
        self.agent_log = directory / "muster-agent.log"
        self.port = _free_port()
        self._agent: asyncio.subprocess.Process | None = None
        self._store: KubernetesStore | None = None
        self.pods: Resource

    # -- starting and killing --------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        self.ledger.mkdir()
        self.ledger.chmod(0o777)
        self.server.data_dir.mkdir()
        config = {
            "name": NODE,
            "allowedHostPaths": [str(self.ledger)],
            "capacity": {"cpu": "4", "memory": "4Gi", "bandwidth": "1Gbps"},
            "reserved": {"cpu": "0", "memory": "0", "ephemeralStorage": "0"},
            "network": {"masquerade": False},
            "process": {"userRange": list(USERS)},
        }
        self.config.write_text(yaml.safe_dump(config))
        await self.start_server()
        await self.start_agent("--join", self.server.url, "--ca-file", str(self.ca_file), "--token", self.new_token())
        await self.until(self.is_ready, "the node is ready")

    async def start_server(self) -> None:
        await self.server.start("--listen", f"127.0.0.1:{self.port}", "--without", "agent")
        if self._store is not None:
            await self._store.close()
        self._store = KubernetesStore(ApiClient(load(self.server.data_dir / "kubeconfig")))
        self.pods = await self.store.resource("", "Pod")

    @property
    def store(self) -> KubernetesStore:
        assert self._store is not None
        return self._store

    @property
    def ca_file(self) -> Path:
        return self.server.data_dir / "pki" / "ca.crt"

    def new_token(self) -> str:
        command = [sys.executable, "-m", "muster.cli.main", "node", "token", "create"]
        environment = {**os.environ, "KUBECONFIG": str(self.server.data_dir / "kubeconfig")}
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        found = re.search(r"muster-join-[\w-]+", said)
        assert found is not None, said
        return found[0]

    async def start_agent(self, *joining: str) -> None:
        """Joining is needed once."""
        command = [sys.executable, "-m", "muster.cli.main", "agent", "--data-dir", str(self.agent_data)]
        command += ["--config", str(self.config), *joining]
        log = os.open(self.agent_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._agent = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        os.close(log)

    async def kill_agent(self) -> None:
        assert self._agent is not None
        with contextlib.suppress(ProcessLookupError):
            self._agent.kill()
        await self._agent.wait()

    async def end(self) -> None:
        """Whatever was started."""
        if self._agent is not None:
            with contextlib.suppress(ProcessLookupError):
                self._agent.terminate()
            await self._agent.wait()
        if self._store is not None:
            await self._store.close()
            await self.server.stop()

    # -- the hand --------------------------------------------------------------------------------------------------------------

    async def strike(self, work: list[Work]) -> str:
        what = self.chance.choice(["agent", "agent", "server", "both", "zygote", "shim", "task"])
        if what in ("agent", "both"):
            await self.kill_agent()
        if what in ("server", "both"):
            await self.server.kill()
        if what == "zygote":
            self.kill_zygote()
        if what in ("shim", "task"):
            one = self.chance.choice(work)
            for started in self.layout.pods.glob("*/containers/main/*/started.json"):
                with contextlib.suppress(OSError, msgspec.DecodeError):
                    record = msgspec.json.decode((started.parents[3] / "pod.json").read_bytes())
                    if one.name not in msgspec.json.encode(record).decode():
                        continue
                    one.is_hit = True
                    found = msgspec.json.decode(started.read_bytes())
                    if not (started.parent / "exit.json").exists():
                        _kill(int(found["pid" if what == "task" else "shim_pid"]))
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        if what in ("server", "both"):
            await self.start_server()
        if what in ("agent", "both"):
            await self.start_agent()
        return what

    def kill_zygote(self) -> None:
        """The agent's own child; shims were forked from it and look the same, but are nobody's child that we know."""
        assert self._agent is not None
        for pid in self.processes("zygote.py"):
            with contextlib.suppress(OSError):
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                if parent == self._agent.pid:
                    _kill(pid)

    # -- one round -------------------------------------------------------------------------------------------------------------

    async def round(self, number: int) -> None:
        chance = self.chance
        work = [
            Work(f"r{number}-{n}", chance.uniform(0, 2), chance.choice([0, 0, 3]), chance.choice(["Never", "OnFailure"]))
            for n in range(chance.randint(2, 5))
        ]
        for one in work:
            await self.insist(lambda one=one: self.store.create(self.pods, self.manifest(one), NAMESPACE))
        struck = []
        for _ in range(chance.randint(1, 4)):
            await asyncio.sleep(chance.uniform(0, 0.8))
            struck.append(await self.strike(work))
        print(f"round {number}: {len(work)} pods; struck: {', '.join(struck)}", flush=True)
        for one in work:
            await self.until(lambda one=one: self.is_over(one), f"pod {one.name} came to its end")
            await self.check(one)
        for one in work:
            await self.insist(lambda one=one: self.delete(one))
        await self.until(self.is_empty, "nothing is left of the round's pods")

    def manifest(self, one: Work) -> Raw:
        # With OnFailure it fails the first time only; the ledger tells how often it began.
        script = (
            f"echo start >> /ledger/{one.name}; echo hello from {one.name}; sleep {one.run_s:.2f}; "
            f"if [ $(wc -l < /ledger/{one.name}) -gt 1 ]; then exit 0; fi; exit {one.code}"
        )
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": one.name, "namespace": NAMESPACE},
            "spec": {
                "nodeName": NODE,
                "restartPolicy": one.policy,
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "main",
                        "image": "none",
                        "command": ["/bin/sh", "-c", script],
                        "volumeMounts": [{"name": "ledger", "mountPath": "/ledger"}],
                        "resources": {"limits": {"cpu": "200m", "memory": "64Mi"}},
                    }
                ],
                "volumes": [{"name": "ledger", "hostPath": {"path": str(self.ledger)}}],
            },
        }

    async def is_over(self, one: Work) -> bool:
        pod = await self.store.get(self.pods, one.name, NAMESPACE)
        return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")

    async def check(self, one: Work) -> None:
        pod: Raw = {}

        async def read() -> None:
            nonlocal pod
            pod = await self.store.get(self.pods, one.name, NAMESPACE)

        await self.insist(read)
        status = pod["status"]
        [container] = status["containerStatuses"]
        ended = container["state"]["terminated"]
        starts = len((self.ledger / one.name).read_text().splitlines()) if (self.ledger / one.name).exists() else 0
        said = f"{one}: {status['phase']}, {container}, started {starts} times"
        assert starts <= container["restartCount"] + 1, f"ran more often than anybody says: {said}"
        if one.is_hit:
            return
        natural = 0 if one.policy == "OnFailure" else one.code
        assert ended["exitCode"] == natural, f"ended in another way than its command: {said}"
        assert starts == (2 if one.policy == "OnFailure" and one.code else 1), f"lost or run again: {said}"
        assert status["phase"] == ("Failed" if natural else "Succeeded"), said
        await self.until(lambda: self.has_log(one), f"the log of {one.name} can be read")

    async def has_log(self, one: Work) -> bool:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{one.name}/log"
        async with self.server.session() as session, session.get(self.server.url + path) as answer:
            return f"hello from {one.name}" in await answer.text()

    async def delete(self, one: Work) -> None:
        with contextlib.suppress(NotFound):
            await self.store.delete(self.pods, one.name, NAMESPACE)

    # -- looking ---------------------------------------------------------------------------------------------------------------

    async def is_ready(self) -> bool:
        node = await self.store.get(await self.store.resource("", "Node"), NODE)
        conditions = {c["type"]: c["status"] for c in (node.get("status") or {}).get("conditions") or ()}
        return conditions.get("Ready") == "True"

    async def is_empty(self) -> bool:
        assert self._agent is not None
        assert self._agent.returncode is None, self.agent_log.read_text()[-3000:]
        return not (await self.store.list(self.pods, NAMESPACE)).items and not self.left()

    def left(self) -> list[str]:
        found = [str(path) for path in self.layout.pods.glob("*")] if self.layout.pods.exists() else []
        root = Path("/sys/fs/cgroup")
        found += [str(path) for pattern in ("*/", "") for path in root.glob(f"{pattern}muster-{self.layout.id}/pod*")]
        found += [str(path) for path in (self.layout.run / "netns").glob("*")]
        found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{self.layout.pods}/" in line]
        links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
        found += [line for line in links.splitlines() if f"m{self.layout.id}v" in line]
        found += [f"process {pid}" for pid in self.processes("", users=USERS)]
        return found

    def processes(self, word: str, users: tuple[int, int] | None = None) -> list[int]:
        """Those of this agent: by what stands on their command line, or by their user."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if not entry.name.isdecimal():
                    continue
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                is_ours = users[0] <= entry.stat().st_uid <= users[1] if users else str(self.layout.run) in command
                if is_ours and word in command and command:
                    found.append(int(entry.name))
        return found

    async def insist(self, operation: Any) -> None:
        async def done() -> bool:
            await operation()
            return True

        await self.until(done, "the server took it")

    async def until(self, predicate: Any, what: str) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    with contextlib.suppress(ApiError, OSError):
                        if await predicate():
                            return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            tail = self.agent_log.read_text()[-4000:]
            raise AssertionError(f"it never came to pass that {what}; left: {self.left()}\n{tail}") from None


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def main(seed: int, rounds: int, directory: Path) -> None:
    world = World(directory, seed)
    try:
        await world.begin()
        for number in range(rounds):
            await world.round(number)
    finally:
        await world.end()


if __name__ == "__main__":
    namespaces.unshare(namespaces.CLONE_NEWNET | namespaces.CLONE_NEWNS)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
