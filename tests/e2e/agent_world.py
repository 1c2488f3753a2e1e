"""A real `muster up` with real agents, `muster` and `kubectl` as users have them, and a check that nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from muster.agent.agent import run_dir_of
from muster.agent.claim import holder_of
from muster.agent.layout import Layout
from muster.objects.status import Raw
from tests.e2e.server_process import ServerProcess

WAIT_S = 120.0
POLL_S = 0.1
KUBECTL = Path(sys.executable).parent / "kubectl"


class AgentWorld:
    """See the module. `start`, then `close`."""

    def __init__(self, root: Path) -> None:
        self.data_dir = root / "data"
        self.data_dir.mkdir(mode=0o700)
        self.server = ServerProcess(self.data_dir)
        self._home = root / "home"
        self._home.mkdir()
        self.followers: list[asyncio.subprocess.Process] = []
        """Programs that are ended with the world, where they have not ended by themselves."""

    async def start(self, agents: str = "auto") -> None:
        await self.server.start("--agents", agents)

    async def close(self) -> None:
        """Whatever state it is in: everything ends, and nothing is left."""
        for follower in self.followers:
            if follower.returncode is None:
                follower.kill()
                await follower.wait()
        await self.server.stop()
        for layout in await self.server.end_tasks():
            assert leftovers(layout) == []

    def layout(self, party: str) -> Layout:
        directory = self.data_dir / "agents" / party
        return Layout(directory, run_dir_of(directory))

    def agent_pid(self, party: str) -> int | None:
        return holder_of(self.layout(party).lock) or None

    # -- users' programs -------------------------------------------------------------------------------------------------------

    @property
    def environ(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("KUBE", "MUSTER", "XDG_"))}
        return kept | {"HOME": str(self._home), "KUBECONFIG": str(self.data_dir / "kubeconfig"), "NO_COLOR": "1"}

    async def kubectl(self, *args: str, stdin: str = "") -> str:
        code, out, err = await self._run(str(KUBECTL), *args, stdin=stdin)
        assert code == 0, f"kubectl {' '.join(args)}: {err}"
        return out

    async def muster(self, *args: str) -> tuple[int, str, str]:
        return await self._run(sys.executable, "-m", "muster.cli.main", *args)

    async def follow(self, *args: str) -> asyncio.subprocess.Process:
        """A program whose output is read while it runs."""
        made = await asyncio.create_subprocess_exec(
            *(str(KUBECTL), *args), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self.environ
        )
        self.followers.append(made)
        return made

    async def _run(self, *command: str, stdin: str = "") -> tuple[int, str, str]:
        child = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environ
        )
        async with asyncio.timeout(WAIT_S):
            out, err = await child.communicate(stdin.encode())
        return child.returncode or 0, out.decode(), err.decode()

    # -- objects ---------------------------------------------------------------------------------------------------------------

    async def apply(self, *objects: Raw) -> None:
        await self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    async def get(self, *args: str) -> Any:
        return json.loads(await self.kubectl("get", *args, "-o", "json"))

    async def until(self, check: Callable[[], Awaitable[object]], what: str) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not await check():
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise AssertionError(f"{what}: not within {WAIT_S:g} s; {await self._troubles()}") from None

    async def _troubles(self) -> str:
        said = [await self._run(str(KUBECTL), "get", "nodes,pods", "-A", "-o", "wide")]
        logs = [path.read_text()[-1500:] for path in sorted(self.data_dir.glob("agents/*/agent.log"))]
        return "\n".join([*(out for _, out, _ in said), *logs, (self.data_dir.parent / "muster-up.log").read_text()[-1500:]])

    async def until_ready(self, *nodes: str) -> None:
        async def is_so() -> bool:
            found = {node["metadata"]["name"]: node for node in (await self.get("nodes"))["items"]}
            return all(name in found and _is_ready(found[name]) for name in nodes)

        await self.until(is_so, f"nodes {', '.join(nodes)} ready")

    async def pod(self, name: str, namespace: str = "default") -> Raw:
        found: Raw = await self.get("pod", name, "-n", namespace)
        return found

    async def until_phase(self, name: str, *phases: str) -> Raw:
        async def is_so() -> bool:
            return (await self.pod(name))["status"].get("phase") in phases

        await self.until(is_so, f"pod {name} {' or '.join(phases)}")
        return await self.pod(name)


def pod(name: str, script: str, **spec: Any) -> Raw:
    """A pod that runs a script under the process runtime."""
    container = {"name": "main", "image": "muster.dev/process", "command": ["sh", "-c", script]}
    plain: Raw = {"restartPolicy": "Never", "schedulerName": "muster-scheduler", "terminationGracePeriodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**plain, **spec, "containers": [container]},
    }


def _is_ready(node: Raw) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node.get("status", {}).get("conditions", ()))


def leftovers(layout: Layout) -> list[str]:
    """What of an agent is still in the kernel, or runs."""
    found = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/muster-{layout.id}")]
    found += [path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(f"m{layout.id}")]
    found += [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(layout.data) in line or layout.id in line
    ]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(layout.data) in words or (layout.run.name in words and "zygote" in words):
            found.append(f"{process.name}: {words[:200]}")
    return [*found, *([str(layout.run)] if layout.run.exists() else [])]
