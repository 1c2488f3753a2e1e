"""A machine, or an agent, that can do less: what is left works, and what is missing is said."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import pytest

from muster.agent.contracts import AgentError, ExecWant, Mount
from tests.agent.process_node import ProcessNode, a_process_node, needs_root
from tests.agent.talking import finished
from tests.waiting import blocked_until

pytestmark = needs_root
NOTHING = dict.fromkeys(("mount", "pid", "ipc", "uts"), "Operation not permitted")


@pytest.fixture(params=[("mount",), ("pid",), ("mount", "pid", "ipc", "uts")], ids="-".join)
async def node(request: pytest.FixtureRequest) -> AsyncIterator[ProcessNode]:
    async with a_process_node() as made:
        made.runtime._absent = {name: NOTHING[name] for name in request.param}
        yield made


async def test_it_says_what_is_missing(node: ProcessNode) -> None:
    for missing in node.runtime.missing():
        assert missing.why == "Operation not permitted"
        assert missing.so
    assert len(node.runtime.missing()) == len(node.runtime._absent)


async def test_a_task_runs_with_what_is_left(node: ProcessNode) -> None:
    ref = await node.start("sh", "-c", "id -u; touch here && pwd; grep NoNewPrivs /proc/self/status; exit 3")

    assert (await node.ended(ref)).code == 3
    lines = (await node.log(ref)).decode().split()
    assert lines[0] == str(node.sandbox().user)
    assert lines[1] == (str(node.run_dir(ref) / "root" / "home") if "mount" in node.runtime._absent else "/task")
    assert lines[2:] == ["NoNewPrivs:", "1"]


async def test_what_it_leaves_behind_ends_with_it(node: ProcessNode) -> None:
    await node.output("sh", "-c", "setsid sh -c 'setsid sleep 1004 </dev/null >/dev/null 2>&1 &'; sleep 0.3")

    assert [line for line in node.processes() if "sleep 1004" in line] == []


async def test_its_shim_is_killed(node: ProcessNode) -> None:
    """Nothing goes on without its shim: what the kernel does not end, the agent finds by its cgroup."""
    ref = await node.start("sh", "-c", "setsid sleep 1005 & echo ready; sleep 1006")
    await node.prints(ref, b"ready")
    started = (await node.reaches(ref, "running")).started
    assert started is not None

    os.kill(started.shim_pid, signal.SIGKILL)

    assert (await node.ended(ref)).reason == "Lost"
    blocked_until(lambda: not [line for line in node.processes() if "sleep 100" in line])


async def test_exec_works(node: ProcessNode) -> None:
    ref = await node.start("sleep", "1000")

    found = await node.runtime.exec(ref, ["id", "-u"], 30)

    assert (found.code, found.output.decode().strip()) == (0, str(node.sandbox().user))


@pytest.mark.parametrize("has_tty", [False, True], ids=["pipes", "terminal"])
async def test_open_commands_work(node: ProcessNode, has_tty: bool) -> None:
    ref = await node.start("sleep", "1000")
    session = await node.runtime.open_exec(ref, ExecWant(argv=("sh", "-c", "id -u; test -t 0; echo $?"), has_tty=has_tty))

    code, out, _ = await finished(session)

    assert (code, out.decode().split()) == (0, [str(node.sandbox().user), "0" if has_tty else "1"])


async def test_an_open_command_ends_with_its_container(node: ProcessNode) -> None:
    ref = await node.start("sleep", "1000")
    session = await node.runtime.open_exec(ref, ExecWant(argv=("sh", "-c", "setsid sleep 1010 & sleep 1010")))

    await node.runtime.signal(ref, signal.SIGKILL)

    assert await session.wait() == 137
    await session.close()
    blocked_until(lambda: not [line for line in node.processes() if "sleep 1010" in line])


async def test_mounts(node: ProcessNode) -> None:
    """Volumes that were asked for are refused by name; what the agent adds is done without, and found where it is."""
    report = node.layout.report("pod-1")
    report.mkdir(parents=True)
    added = Mount(target="/muster/report", source=str(report))
    asked = Mount(target="/data", kind="tmpfs")

    text = await node.output(
        "sh", "-c", "echo $MUSTER_REPORT", mounts=(added,), env=(("MUSTER_REPORT", "/muster/report/lines"),)
    )

    if "mount" in node.runtime._absent:
        assert text == f"{report}/lines\n"
        with pytest.raises(AgentError, match=r"containers\[main\].volumeMounts: \['/data'\]: this agent can't mount"):
            await node.start("true", mounts=(added, asked), attempt=1)
    else:
        assert text == "/muster/report/lines\n"
