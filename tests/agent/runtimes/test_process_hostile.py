"""Tasks that misbehave hurt only themselves."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from muster.agent.contracts import Limits, LogLimits
from tests.agent.process_node import ProcessNode, a_process_node, needs_root

pytestmark = needs_root
MIB = 2**20


@pytest.fixture
async def node() -> AsyncIterator[ProcessNode]:
    async with a_process_node() as made:
        yield made


async def test_it_forks_without_end(node: ProcessNode) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    ref = await node.start(
        sys.executable, "-c", bomb, limits=Limits(pids_max=50, cpu_limit_milli=200, memory_limit_bytes=512 * MIB)
    )
    while (usage := node.cgroups.usage("pod-1", "main")) is None or usage.pids < 50:
        await asyncio.sleep(0.05)

    assert usage.pids <= 50
    beside = await node.output("echo", "the node works", uid="other")
    await node.runtime.signal(ref, signal.SIGKILL)

    assert beside == "the node works\n"
    assert (await node.ended(ref)).code == 137
    assert [line for line in node.processes() if "import os" in line] == []


async def test_it_eats_memory(node: ProcessNode) -> None:
    hungry = "held = []\nwhile True: held.append(bytearray(1 << 20))"
    ref = await node.start(sys.executable, "-c", hungry, limits=Limits(memory_limit_bytes=32 * MIB))

    exited = await node.ended(ref)

    assert (exited.code, exited.signal, exited.oom_killed) == (137, 9, True)


async def test_a_child_that_eats_memory_is_told_too(node: ProcessNode) -> None:
    hungry = "held = []\nwhile True: held.append(bytearray(1 << 20))"
    ref = await node.start("sh", "-c", f'{sys.executable} -c "$CODE"; exit 5', env=(("CODE", hungry),),
                           limits=Limits(memory_limit_bytes=32 * MIB))  # fmt: skip

    exited = await node.ended(ref)

    assert (exited.code, exited.oom_killed) == (5, True)


async def test_killed_is_not_out_of_memory(node: ProcessNode) -> None:
    ref = await node.start("sleep", "1000", limits=Limits(memory_limit_bytes=32 * MIB))
    await node.runtime.signal(ref, signal.SIGKILL)

    exited = await node.ended(ref)

    assert (exited.code, exited.oom_killed) == (137, False)


async def test_it_ignores_sigterm_and_so_do_its_children(node: ProcessNode) -> None:
    ref = await node.start(
        "sh", "-c", "trap '' TERM HUP INT; (sleep 1001 & sleep 1002) & echo ready; while :; do sleep 0.1; done"
    )
    await node.prints(ref, b"ready")

    await node.runtime.signal(ref, signal.SIGTERM)
    await asyncio.sleep(0.3)
    still = node.runtime.observe(ref)
    await node.runtime.signal(ref, signal.SIGKILL)

    assert still is not None
    assert still.state == "running"
    assert (await node.ended(ref)).code == 137
    assert [line for line in node.processes() if "sleep" in line] == []


async def test_daemons_end_with_it(node: ProcessNode) -> None:
    """Forked twice, sessions of their own, output closed: nothing ties them to the task but its namespace."""
    daemon = "setsid sleep 1003 </dev/null >/dev/null 2>&1 &"
    script = f"for i in 1 2 3; do setsid sh -c '{daemon}' & done; until [ $(pgrep -xc sleep) = 3 ]; do :; done; echo daemons"

    text = await node.output("sh", "-c", script)

    assert text == "daemons\n"
    assert [line for line in node.processes() if "sleep 1003" in line] == []


async def test_orphans_are_reaped_while_it_runs(node: ProcessNode) -> None:
    many = "[ $(ps ax | grep -c '[d]efunct') -ge 20 ]"
    looks = f"sleep 1; for i in $(seq 100); do {many} || break; sleep 0.2; done; {many} || echo few"
    script = f"for i in $(seq 200); do (sh -c 'true &' &); done; {looks}"

    text = await node.output("sh", "-c", script)

    assert text == "few\n"


@pytest.mark.slow
async def test_it_prints_hundreds_of_megabytes(node: ProcessNode) -> None:
    log = LogLimits(bytes_max=4 * MIB, files_max=3)
    ref = await node.start("sh", "-c", "head -c 300000000 /dev/zero | tr '\\0' x | fold -w 99; echo; echo the end", log=log)

    assert (await node.ended(ref)).code == 0
    files = list((node.run_dir(ref) / "log").iterdir())
    assert len(files) == 3
    assert sum(path.stat().st_size for path in files) <= 12 * MIB
    assert (await node.log(ref, tail_lines=1)) == b"the end\n"


async def test_short_lines_are_bounded_as_well(node: ProcessNode) -> None:
    """Every byte becomes a line with a stamp: fifty times as much."""
    log = LogLimits(bytes_max=MIB, files_max=2)
    ref = await node.start("sh", "-c", "yes '' | head -c 1000000", log=log)

    await node.ended(ref)
    assert sum(path.stat().st_size for path in (node.run_dir(ref) / "log").iterdir()) <= 2 * MIB


async def test_a_line_without_end(node: ProcessNode) -> None:
    ref = await node.start("sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' y; echo; echo after")

    await node.ended(ref)
    assert await node.log(ref) == b"y" * 3_000_000 + b"\nafter\n"


async def test_any_bytes(node: ProcessNode) -> None:
    code = "import sys, random; sys.stdout.buffer.write(random.Random(1).randbytes(500_000))"
    ref = await node.start(sys.executable, "-c", code)

    await node.ended(ref)
    assert await node.log(ref) == random.Random(1).randbytes(500_000)


async def test_it_closes_its_output_and_goes_on(node: ProcessNode) -> None:
    ref = await node.start("sh", "-c", "echo before; exec >&- 2>&-; sleep 0.5; exit 9")

    assert (await node.ended(ref)).code == 9
    assert await node.log(ref) == b"before\n"


async def test_it_reads_from_nothing(node: ProcessNode) -> None:
    assert await node.output("sh", "-c", "cat; echo end") == "end\n"


async def test_it_fills_small_file_systems(node: ProcessNode) -> None:
    """/dev/shm is bounded, and counts as its memory; /dev takes no files of its own."""
    text = await node.output(
        "sh", "-c", "head -c 100000000 /dev/zero > /dev/shm/x 2>/dev/null || echo full; touch /dev/x || echo no"
    )

    assert "full\n" in text
    assert "no\n" in text


async def test_it_stops_itself(node: ProcessNode) -> None:
    ref = await node.start("sh", "-c", "echo ready; kill -STOP $$")
    await node.prints(ref, b"ready")

    await node.runtime.signal(ref, signal.SIGKILL)

    assert (await node.ended(ref)).code == 137


async def test_its_own_limits_do_not_stop_the_log(node: ProcessNode) -> None:
    """Files of the log are the shim's: a task's disk full, or its files closed, changes nothing for what it says."""
    text = await node.output("sh", "-c", "ulimit -f 1; head -c 100000 /dev/zero > /task/big; echo said")

    assert "said\n" in text.splitlines(keepends=True)
