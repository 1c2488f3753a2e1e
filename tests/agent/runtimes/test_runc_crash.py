"""The agent is killed, not stopped: what it started goes on, and the next agent knows all of it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from muster.agent.contracts import RunRef
from tests.agent.runc_node import a_node

AGENT = """
import asyncio, sys
from pathlib import Path
from muster.agent.cgroups import open_cgroups
from muster.agent.config import AgentConfig
from muster.agent.contracts import Sandbox
from muster.agent.layout import Layout
from tests.agent.runc_node import Node

async def main(data, run, uid, user):
    node = Node(Path(data).parent, AgentConfig(runtime="runc"))
    node.layout = Layout(Path(data), Path(run))
    node.cgroups = open_cgroups(node.layout.id)
    await node.begin()
    image = await node.runtime.image("busybox:1", "Never")
    sandbox = Sandbox(uid=uid, namespace="test", name="p", hostname="box", user=int(user))
    script = "echo one; while [ ! -e /go ]; do sleep 0.05; done; echo two; exit 5"
    ref = await node.start(sandbox, image, "/bin/sh", "-c", script)
    await node.printed(ref, "one")
    print("up", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_over_first", [False, True], ids=["it runs on", "it ends while nobody looks"])
async def test_killed_agent(tmp_path: Path, is_over_first: bool) -> None:
    async with a_node(tmp_path) as node:
        node.load()
        sandbox = node.sandbox()
        await node.stop()
        said = tmp_path / "said"
        with said.open("wb") as out:
            agent = await asyncio.create_subprocess_exec(
                sys.executable, "-c", AGENT, str(node.layout.data), str(node.layout.run), sandbox.uid, str(sandbox.user),
                cwd=Path(__file__).parents[3], stdout=out,
            )  # fmt: skip
        while said.read_bytes() != b"up\n":
            assert agent.returncode is None, "the agent ended by itself"
            await asyncio.sleep(0.02)
        agent.send_signal(signal.SIGKILL)
        await agent.wait()
        ref = RunRef(sandbox.uid, "main", 0)
        node.refs.append(ref)
        if is_over_first:
            started = json.loads((node.run_dir(ref) / "started.json").read_text())
            Path(f"/proc/{started['pid']}/root/go").touch()
            while not (node.run_dir(ref) / "exit.json").exists():
                await asyncio.sleep(0.01)
        await node.begin()
        if not is_over_first:
            assert (await node.state(ref, "running")).state == "running"
            assert (await node.runtime.exec(ref, ["/bin/touch", "/go"], 60)).code == 0
        assert (await node.end(ref)).code == 5
        assert node.log(ref) == "one\ntwo"
