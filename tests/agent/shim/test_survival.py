"""The agent, the zygote, a shim or a container is killed at any moment: nothing runs twice, no exit code and no log is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster.agent.contracts import LogQuery, RunState
from muster.agent.layout import Layout
from muster.agent.log_files import read_log
from muster.agent.shim import files
from muster.agent.shim.client import Shims
from tests.agent.process_node import a_directory
from tests.agent.shim.dying_agent import SCRIPT, launch
from tests.waiting import WAIT_S, blocked_until

AGENT = Path(__file__).with_name("dying_agent.py")
ROUNDS = 300 if os.environ.get("MUSTER_SOAK") else 8
HAS_PIDS = os.geteuid() == 0


class Ground:
    """A directory on which agents come and go."""

    def __init__(self) -> None:
        self.layout = Layout(a_directory(), None)
        self.layout.run = self.layout.data / "run"
        self.shims = Shims(self.layout)
        self.agents: list[subprocess.Popen[str]] = []

    def agent(self, *names: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, str(AGENT), str(self.layout.data), *names]
        made = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        self.agents.append(made)
        return made

    def kill_agent(self, agent: subprocess.Popen[str]) -> None:
        agent.kill()
        agent.wait()
        assert agent.stdout is not None
        agent.stdout.close()

    def run_dir(self, name: str) -> Path:
        return self.layout.run_dir("pod", name, 0)

    async def start(self, name: str) -> None:
        """As a runtime does: write, then launch; may be repeated."""
        if self.shims.observe(self.run_dir(name)) is None:
            self.shims.write_launch(self.run_dir(name), launch(self.layout, name, SCRIPT))
            await self.shims.launch(self.run_dir(name), has_own_pids=HAS_PIDS)

    async def reaches(self, name: str, state: str) -> RunState:
        async with asyncio.timeout(WAIT_S):
            while (found := self.shims.observe(self.run_dir(name))) is None or found.state != state:
                await asyncio.sleep(0.01)
        return found

    def starts(self) -> list[str]:
        path = self.layout.data / "starts"
        return sorted(path.read_text().split()) if path.exists() else []

    def go(self) -> None:
        (self.layout.data / "go").touch()

    async def log(self, name: str) -> bytes:
        query = LogQuery(namespace="", pod="", container="")
        return b"".join([chunk async for chunk in read_log(self.run_dir(name), query, lambda: True)])

    def processes(self) -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and int(entry.name) != os.getpid():
                    text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                    if str(self.layout.data).encode() in text:
                        found.append(f"{entry.name} {text[:200]!r}")
        return found


@pytest.fixture
async def ground() -> AsyncIterator[Ground]:
    made = Ground()
    try:
        yield made
    finally:
        made.go()
        for agent in made.agents:
            if agent.returncode is None:
                made.kill_agent(agent)
        await made.shims.close()
        blocked_until(lambda: not made.processes())
        shutil.rmtree(made.layout.data)


async def test_the_agent_is_killed_and_its_runs_go_on(ground: Ground) -> None:
    agent = ground.agent("a", "b")
    blocked_until(lambda: ground.starts() == ["a", "b"])
    ground.kill_agent(agent)

    await ground.shims.open()
    for name in ("a", "b"):
        await ground.reaches(name, "running")
        await ground.start(name)
    ground.go()

    for name in ("a", "b"):
        found = await ground.reaches(name, "exited")
        assert found.exited is not None
        assert (found.exited.code, found.exited.reason) == (7, "")
        assert await ground.log(name) == b"begun\ndone\n"
    assert ground.starts() == ["a", "b"]


async def test_what_ended_while_no_agent_was_there(ground: Ground) -> None:
    agent = ground.agent("a")
    blocked_until(lambda: ground.starts() == ["a"])
    ground.kill_agent(agent)
    ground.go()
    blocked_until((ground.run_dir("a") / "exit.json").exists)

    await ground.shims.open()

    found = ground.shims.observe(ground.run_dir("a"))
    assert found is not None
    assert found.exited is not None
    assert found.exited.code == 7
    assert await ground.log("a") == b"begun\ndone\n"


async def test_the_agent_is_killed_between_its_record_and_the_start(ground: Ground) -> None:
    agent = ground.agent("a:die")
    blocked_until((ground.run_dir("a") / "launch.json").exists)
    ground.kill_agent(agent)

    await ground.shims.open()

    assert ground.shims.observe(ground.run_dir("a")) is None
    assert ground.starts() == []
    await ground.start("a")
    ground.go()
    await ground.reaches("a", "exited")
    assert ground.starts() == ["a"]


async def test_the_zygote_is_killed(ground: Ground) -> None:
    await ground.shims.open()
    await ground.start("a")
    blocked_until(lambda: ground.starts() == ["a"])
    assert ground.shims.zygote_pid is not None
    os.kill(ground.shims.zygote_pid, signal.SIGKILL)

    await ground.start("b")
    ground.go()

    for name in ("a", "b"):
        found = await ground.reaches(name, "exited")
        assert found.exited is not None
        assert found.exited.code == 7
    assert ground.starts() == ["a", "b"]


async def test_a_shim_is_killed(ground: Ground) -> None:
    """Its container dies with it, the end is known without anybody asking, and it is not started again."""
    await ground.shims.open()
    await ground.start("a")
    state = await ground.reaches("a", "running")
    blocked_until(lambda: ground.starts() == ["a"])
    started = state.started
    assert started is not None
    os.kill(started.shim_pid, signal.SIGKILL)

    found = await _told(ground)
    assert found.exited is not None
    assert (found.exited.code, found.exited.reason) == (137, "Lost")
    blocked_until(lambda: files.open_process(started.pid, started.start_ticks) is None)
    await ground.shims.launch(ground.run_dir("a"), has_own_pids=HAS_PIDS)
    assert ground.starts() == ["a"]
    again = ground.shims.observe(ground.run_dir("a"))
    assert again is not None
    assert again.exited == found.exited, "written once"


async def _told(ground: Ground) -> RunState:
    """The first run of which the shims tell that it has ended."""
    async with asyncio.timeout(WAIT_S):
        async for path in ground.shims.changed():
            found = ground.shims.observe(path)
            if found is not None and found.state == "exited":
                return found
    raise AssertionError("the changes came to an end")


async def test_a_container_is_killed(ground: Ground) -> None:
    await ground.shims.open()
    await ground.start("a")
    state = await ground.reaches("a", "running")
    assert state.started is not None
    os.kill(state.started.pid, signal.SIGKILL)

    found = await ground.reaches("a", "exited")

    assert found.exited is not None
    assert (found.exited.code, found.exited.signal, found.exited.reason) == (137, 9, "")


@pytest.mark.parametrize("is_started", [True, False], ids=["had started", "was about to"])
async def test_the_machine_was_restarted(ground: Ground, is_started: bool) -> None:
    """The records are of another boot: whatever ran is gone, and is not started again."""
    await ground.shims.open()
    directory = ground.run_dir("a")
    ground.shims.write_launch(directory, launch(ground.layout, "a", SCRIPT))
    record = json.loads((directory / "launch.json").read_text())
    (directory / "launch.json").write_text(json.dumps({**record, "bootId": "another"}))
    if is_started:
        started = {"pid": os.getpid(), "start_ticks": 1, "boot_id": "another", "at": 1.0}
        (directory / "started.json").write_text(json.dumps({**started, "shim_pid": 1, "shim_start_ticks": 1}))

    found = ground.shims.observe(directory)

    assert found is not None
    assert found.exited is not None
    assert (found.state, found.exited.reason, found.exited.code) == ("exited", "NodeRestarted", 137)
    await ground.shims.launch(directory, has_own_pids=HAS_PIDS)
    assert ground.starts() == []


@pytest.mark.parametrize("name", ["launch.json", "started.json", "exit.json"])
async def test_a_file_that_a_crash_left_empty(ground: Ground, name: str) -> None:
    await ground.shims.open()
    directory = ground.run_dir("a")
    ground.shims.write_launch(directory, launch(ground.layout, "a", SCRIPT))
    (directory / name).write_text("")

    found = ground.shims.observe(directory)

    assert found is None or found.state == "exited"


async def test_nobody_waits_for_the_output_of_an_agent_whose_containers_go_on(ground: Ground) -> None:
    agent = ground.agent("a")
    blocked_until(lambda: ground.starts() == ["a"])
    agent.kill()
    agent.wait()
    assert agent.stdout is not None

    with agent.stdout:
        text = await asyncio.wait_for(asyncio.to_thread(agent.stdout.read), WAIT_S)

    assert text.startswith("open")


async def test_many_ask_for_the_same_start(ground: Ground) -> None:
    await ground.shims.open()
    ground.shims.write_launch(ground.run_dir("a"), launch(ground.layout, "a", SCRIPT))
    ground.go()

    await asyncio.gather(*(ground.shims.launch(ground.run_dir("a"), has_own_pids=HAS_PIDS) for _ in range(20)))

    await ground.reaches("a", "exited")
    assert ground.starts() == ["a"]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_killed_at_any_moment(ground: Ground, seed: int) -> None:
    """Agents are killed at moments that nobody chose; the last one finishes the work. Every run ran once, to its end."""
    dice = random.Random(seed)
    names = [f"run-{number}" for number in range(4)]
    for _ in range(2):
        agent = ground.agent(*names)
        assert agent.stdout is not None
        if dice.random() < 0.7:
            agent.stdout.readline()
        await asyncio.sleep(dice.random() * 0.05)
        if dice.random() < 0.3:
            _kill_zygote(ground, agent.pid)
        ground.kill_agent(agent)
    await ground.shims.open()
    for name in names:
        await ground.start(name)
    ground.go()

    for name in names:
        found = await ground.reaches(name, "exited")
        assert found.exited is not None
        assert (found.exited.code, found.exited.reason) == (7, ""), name
        assert await ground.log(name) == b"begun\ndone\n"
    assert ground.starts() == sorted(names)


def _kill_zygote(ground: Ground, parent: int) -> None:
    with contextlib.suppress(OSError):
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
