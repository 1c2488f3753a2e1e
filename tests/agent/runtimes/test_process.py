"""The process runtime: real processes from their start to their end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.agent.contracts import AgentError, Limits, Mount, RunRef, Security
from tests.agent.process_node import ProcessNode, a_process_node, needs_root

pytestmark = needs_root


@pytest.fixture
async def node() -> AsyncIterator[ProcessNode]:
    async with a_process_node() as made:
        yield made


async def test_a_task_runs_as_a_user_of_its_own_in_a_place_of_its_own(node: ProcessNode) -> None:
    text = await node.output("sh", "-c", "id -u; id -g; pwd; hostname; echo $HOME; echo $$; touch here && ls")

    user = str(node.sandbox().user)
    assert text.split() == [user, user, "/task", "pod-1", "/task", "2", "here"]


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [
        pytest.param("exit 0", 0, 0, id="success"),
        pytest.param("exit 7", 7, 0, id="a code"),
        pytest.param("kill -TERM $$", 143, 15, id="a signal"),
        pytest.param("kill -KILL $$", 137, 9, id="killed by itself"),
    ],
)
async def test_how_it_ended(node: ProcessNode, script: str, code: int, number: int) -> None:
    exited = await node.ended(await node.start("sh", "-c", script))

    assert (exited.code, exited.signal, exited.reason, exited.oom_killed) == (code, number, "", False)


@pytest.mark.parametrize(
    ("argv", "cwd", "code", "text"),
    [
        pytest.param(("no-such-program",), "", 127, "execute 'no-such-program': No such file", id="no such program"),
        pytest.param(("/etc/passwd",), "", 126, "execute '/etc/passwd': Permission denied", id="not a program"),
        pytest.param(("true",), "/etc/passwd", 128, "/etc/passwd", id="working directory is a file"),
    ],
)
async def test_what_can_not_start_says_why(node: ProcessNode, argv: tuple[str, ...], cwd: str, code: int, text: str) -> None:
    exited = await node.ended(await node.start(*argv, cwd=cwd))

    assert (exited.code, exited.reason) == (code, "StartError")
    assert text in exited.message


async def test_a_second_start_of_the_same_attempt_starts_nothing(node: ProcessNode) -> None:
    first = await node.start("sh", "-c", "echo once >> /shared/count", mounts=(_volume(node, "count", "/shared"),))
    await node.ended(first)

    await node.start("sh", "-c", "echo once >> /shared/count", mounts=(_volume(node, "count", "/shared"),))
    await node.shims.launch(node.run_dir(first))

    assert (node.layout.volume("pod-1", "count") / "count").read_text() == "once\n"


async def test_sigterm_ends_a_plain_program_and_changes_are_told(node: ProcessNode) -> None:
    ref = await node.start("sleep", "1000")
    await node.reaches(ref, "running")

    await node.runtime.signal(ref, signal.SIGTERM)

    async for told in node.runtime.changed():
        found = node.runtime.observe(told)
        if told == ref and found is not None and found.state == "exited":
            break
    assert (await node.ended(ref)).code == 143


async def test_exec_runs_beside_it(node: ProcessNode) -> None:
    ref = await node.start("sh", "-c", "echo secret > /tmp/f; exec sleep 1000", env=(("WORD", "hello"),))
    await node.reaches(ref, "running")
    while (await node.runtime.exec(ref, ["test", "-s", "/tmp/f"], 30)).code:
        await asyncio.sleep(0.01)

    found = await node.runtime.exec(
        ref, ["sh", "-c", "cat /tmp/f; id -u; hostname; echo $WORD; ps ax | grep -c '[s]leep 1000'"], 30
    )

    assert found.code == 0
    assert found.output.decode().split() == ["secret", str(node.sandbox().user), "pod-1", "hello", "1"]


async def test_exec_has_an_end(node: ProcessNode) -> None:
    ref = await node.start("sleep", "1000")

    late = await node.runtime.exec(ref, ["sh", "-c", "echo begun; sleep 1000"], 0.5)
    much = await node.runtime.exec(ref, ["sh", "-c", "head -c 5000000 /dev/zero"], 30)

    assert late.is_timeout
    assert late.output == b"begun\n"
    assert (much.code, len(much.output)) == (0, 10 * 1024)
    with pytest.raises(AgentError, match="no-such-program"):
        await node.runtime.exec(ref, ["no-such-program"], 30)
    found = await node.runtime.exec(ref, ["sh", "-c", "ps ax | grep -c '[s]leep 1000'"], 30)
    assert found.output == b"1\n", "what had no time left is gone"


async def test_exec_of_what_has_ended(node: ProcessNode) -> None:
    ref = await node.start("true")
    await node.ended(ref)

    with pytest.raises(AgentError, match="not running"):
        await node.runtime.exec(ref, ["true"], 5)
    assert node.runtime.observe(RunRef("pod-1", "main", 1)) is None


async def test_volumes_of_all_kinds(node: ProcessNode) -> None:
    config = node.layout.volume("pod-1", "config")
    config.mkdir(parents=True)
    (config / "a.conf").write_text("from a map\n")
    mounts = (
        _volume(node, "config", "/work/kuscia/conf", read_only=True),
        _volume(node, "data", "/data"),
        Mount(target="/scratch", kind="tmpfs", size_bytes=65536),
        Mount(target="/etc/app/one.conf", source=str(config / "a.conf"), read_only=True),
        _volume(node, "token", "/var/run/secrets/kubernetes.io/serviceaccount"),
    )
    script = (
        "cat /work/kuscia/conf/a.conf /etc/app/one.conf; touch /work/kuscia/conf/x || echo refused; echo kept > /data/f;"
        "touch /scratch/x && head -c 1000000 /dev/zero > /scratch/big || echo full; ls -d /run/secrets/kubernetes.io/*"
    )

    text = await node.output("sh", "-c", script, mounts=mounts)

    assert [line for line in text.splitlines() if not line.startswith(("touch:", "head:"))] == [
        "from a map", "from a map", "refused", "full", "/run/secrets/kubernetes.io/serviceaccount",
    ]  # fmt: skip
    assert (node.layout.volume("pod-1", "data") / "f").read_text() == "kept\n"
    assert not Path("/work/kuscia").exists(), "the mount point is in its own layer"


async def test_a_termination_message(node: ProcessNode) -> None:
    ref = await node.start("sh", "-c", "echo it went wrong > /dev/termination-log; exit 1")
    await node.ended(ref)

    assert (node.run_dir(ref) / "termination-log").read_text() == "it went wrong\n"


async def test_a_read_only_root(node: ProcessNode) -> None:
    """Read-only but for what is mounted, as in Kubernetes."""
    script = "for d in / /tmp /task /data /dev/shm; do touch $d/x 2>/dev/null && echo $d; done"

    text = await node.output(
        "sh", "-c", script, security=Security(read_only_root=True), mounts=(_volume(node, "data", "/data"),)
    )

    assert text.split() == ["/data", "/dev/shm"]


async def test_the_python_of_the_agent_is_there(node: ProcessNode) -> None:
    assert await node.output(sys.executable, "-c", "import muster; print('found')") == "found\n"


async def test_ports_below_1024_where_asked(node: ProcessNode) -> None:
    code = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(open('/proc/self/status').read())"

    text = await node.output(sys.executable, "-c", code, security=Security(add_capabilities=("CAP_NET_BIND_SERVICE",)))

    assert "CapEff:\t0000000000000400\n" in text
    assert "CapBnd:\t0000000000000400\n" in text


async def test_remove_takes_all_but_logs_and_records(node: ProcessNode) -> None:
    ref = await node.start("sh", "-c", "echo said; sleep 1000 & sleep 1000")
    await node.prints(ref, b"said")

    for _ in range(2):
        await node.runtime.remove(node.sandbox(), ref)

    assert (await node.ended(ref)).code == 137
    assert await node.log(ref) == b"said\n"
    assert not (node.run_dir(ref) / "root").exists()
    assert [line for line in node.processes() if "sleep" in line] == []


async def test_what_was_removed_before_its_start_never_starts(node: ProcessNode) -> None:
    ref = RunRef("pod-1", "main", 0)
    sandbox = node.sandbox()
    node.shims.write_launch(node.run_dir(ref), {"argv": ["true"]})
    assert node.runtime.observe(ref) is None

    await node.runtime.remove(sandbox, ref)
    await node.shims.launch(node.run_dir(ref))

    assert (await node.ended(ref)).reason == "Lost"
    assert not (node.run_dir(ref) / "started.json").exists()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        pytest.param({"security": Security(user=0)}, r"runAsUser: 0: leave it out", id="root"),
        pytest.param({"security": Security(user=1000)}, r"runAsUser: 1000", id="a user of the host"),
        pytest.param({"security": Security(groups=(999,))}, r"supplementalGroups: \[999\]", id="a group of the host"),
        pytest.param({"security": Security(add_capabilities=("SYS_ADMIN",))}, r"capabilities.add: \['SYS_ADMIN'\]", id="power"),
        pytest.param({"mounts": (Mount(target="/a/../../etc", kind="tmpfs"),)}, r"mountPath: .*`\.\.`", id="dots"),
        pytest.param({"mounts": (Mount(target="/proc/sys", kind="tmpfs"),)}, r"mountPath: '/proc/sys'", id="proc"),
        pytest.param({"mounts": (Mount(target="/", kind="tmpfs"),)}, r"mountPath: '/'", id="root directory"),
        pytest.param({"cwd": "relative"}, r"not absolute", id="relative working directory"),
        pytest.param({"env": (("A", "b\0c"),)}, r"zero byte", id="zero byte"),
    ],
)
async def test_what_is_refused(node: ProcessNode, spec: dict[str, Any], text: str) -> None:
    with pytest.raises(AgentError, match=text) as found:
        await node.start("true", **spec)

    assert found.value.reason == "CreateContainerConfigError"
    assert not (node.run_dir(RunRef("pod-1", "main", 0)) / "launch.json").exists()


async def test_no_command(node: ProcessNode) -> None:
    with pytest.raises(AgentError, match="command: empty: the process runtime has no image"):
        await node.start()


async def test_devices_that_were_granted(node: ProcessNode) -> None:
    text = await node.output(
        "sh", "-c", "ls /dev", limits=Limits(devices=("/dev/kmsg",)) if os.path.exists("/dev/kmsg") else Limits()
    )

    assert ("kmsg" in text) == os.path.exists("/dev/kmsg")
    assert "vda" not in text
    assert "mem" not in text.split()


def _volume(node: ProcessNode, name: str, target: str, read_only: bool = False) -> Mount:
    path = node.layout.volume("pod-1", name)
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, node.sandbox().user, node.sandbox().user)
    return Mount(target=target, source=str(path), read_only=read_only)
