"""The agent is killed while commands are open beside its containers: they end, and the containers go on."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from muster.agent.layout import Layout
from tests.agent.process_node import a_process_node, needs_root
from tests.agent.runc_node import a_node, need_runc
from tests.agent.talking import gone, processes
from tests.waiting import blocked_until

pytestmark = needs_root
AGENT = Path(__file__).with_name("talking_agent.py")


def talk_and_die(kind: str, layout: Layout, uid: str, mark: str, said: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(AGENT), kind, str(layout.data), str(layout.run), uid, mark]
    with said.open("wb") as out:
        agent = subprocess.Popen(command, stdout=out, env=env)
    try:
        blocked_until(lambda: said.read_bytes() == b"open\n" or agent.poll() is not None)
        assert agent.poll() is None, "it ended by itself"
        blocked_until(lambda: len(processes(f"sleep {mark}")) >= 4)
    finally:
        agent.kill()
        agent.wait()


@pytest.fixture
def mark() -> str:
    return f"10{uuid.uuid4().int % 10**6:06}"


async def test_process(tmp_path: Path, mark: str) -> None:
    async with a_process_node() as node:
        ref = await node.start("sleep", "1000")
        await node.reaches(ref, "running")
        await node.shims.close()

        talk_and_die("process", node.layout, ref.uid, mark, tmp_path / "said")

        await gone(lambda: processes(mark))
        await node.again()
        assert (await node.reaches(ref, "running")).exited is None


@pytest.mark.slow
async def test_runc(tmp_path: Path, mark: str) -> None:
    need_runc()
    async with a_node(tmp_path) as node:
        ref = await node.start(node.sandbox(), node.load(), "/bin/sleep", "1000")
        await node.state(ref, "running")
        await node.stop()

        talk_and_die("runc", node.layout, ref.uid, mark, tmp_path / "said")

        await gone(lambda: processes(mark))
        assert not list((node.run_dir(ref) / "root").glob("exec-*"))
        await node.begin()
        assert (await node.state(ref, "running")).exited is None
