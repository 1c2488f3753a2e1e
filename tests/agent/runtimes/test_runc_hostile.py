"""Containers that mean harm, to the machine or to each other: each hurts only itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from muster.agent.contracts import AgentError, Image, Limits, LogLimits, Mount, Security
from tests.agent.images_building import LayerTar, busybox
from tests.agent.runc_node import Node, a_node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with a_node(tmp_path) as node:
        yield node


@pytest.fixture
def image(node: Node) -> Image:
    return node.load()


@pytest.fixture
def netns(node: Node) -> Iterator[str]:
    """A network namespace with nothing but loopback."""
    name = f"t{uuid.uuid4().hex[:10]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield f"/run/netns/{name}"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


# -- hurting itself only ------------------------------------------------------------------------------------------------------


async def test_forking_without_end(node: Node, image: Image) -> None:
    script = "echo up; f() { f | f & }; f; while :; do sleep 1; done"
    ref = await node.start(node.sandbox(), image, "/bin/sh", "-c", script, limits=Limits(pids_max=32))
    beside = await node.start(node.sandbox(), image, "/bin/sleep", "1000")
    await node.printed(ref, "up")
    for _ in range(20):
        usage = node.cgroups.usage(ref.uid)
        assert usage is not None
        assert usage.pids <= 32
        await asyncio.sleep(0.02)
    assert (await node.runtime.exec(beside, ["/bin/true"], 60)).code == 0
    await node.runtime.signal(ref, signal.SIGKILL)
    assert (await node.end(ref)).code == 137
    assert (node.cgroups.usage(ref.uid, ref.container) is None) or node.cgroups.kill(ref.uid, ref.container) == 0


async def test_eating_memory(node: Node, image: Image) -> None:
    limits = Limits(memory_limit_bytes=32 * 2**20)
    exited, log = await node.run(image, "/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=100M", "count=1", limits=limits)
    assert (exited.code, exited.oom_killed) == (137, True), log
    exited, _ = await node.run(image, "/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=1M", "count=1", limits=limits)
    assert (exited.code, exited.oom_killed) == (0, False)


async def test_a_tmpfs_counts_as_memory(node: Node, image: Image) -> None:
    script = "dd if=/dev/zero of=/dev/shm/f bs=1M count=60"
    exited, _ = await node.shell(image, script, limits=Limits(memory_limit_bytes=24 * 2**20))
    assert exited.code != 0


async def test_filling_its_disk(node: Node, image: Image) -> None:
    limits = Limits(disk_limit_bytes=16 * 2**20, memory_limit_bytes=64 * 2**20)
    ref = await node.start(
        node.sandbox(),
        image,
        "/bin/sh",
        "-c",
        "dd if=/dev/zero of=/big bs=1M count=64; echo done; ls -ld /big; id",
        limits=limits,
    )
    assert (await node.end(ref)).code == 0
    log = node.log(ref)
    assert "No space left" in log
    assert "uid=0" in log
    taken = sum(p.stat().st_blocks * 512 for p in (node.run_dir(ref) / "root").rglob("*") if p.is_file())
    assert taken <= 17 * 2**20


async def test_ignoring_sigterm(node: Node, image: Image) -> None:
    ref = await node.start(node.sandbox(), image, "/bin/sh", "-c", "trap 'echo no' TERM; echo up; while :; do sleep 0.05; done")
    await node.printed(ref, "up")
    await node.runtime.signal(ref, signal.SIGTERM)
    await node.printed(ref, "no")
    await node.runtime.signal(ref, signal.SIGKILL)
    assert (await node.end(ref)).code == 137


@pytest.mark.slow
async def test_writing_without_end(node: Node, image: Image) -> None:
    """The log stays within its bounds however much is printed."""
    log = LogLimits(bytes_max=256 * 1024, files_max=3)
    ref = await node.start(
        node.sandbox(), image, "/bin/sh", "-c", "yes muster | head -c 35000000; echo; echo end; exit 9", log=log
    )
    assert (await node.end(ref)).code == 9
    files = list((node.run_dir(ref) / "log").iterdir())
    assert len(files) <= 3
    assert sum(p.stat().st_size for p in files) <= 3 * 256 * 1024 + 64 * 1024
    assert node.log(ref).splitlines()[-1] == "end"


async def test_children_that_outlive_the_first_process(node: Node, image: Image) -> None:
    marker = f"{1000 + uuid.uuid4().int % 100000}.25"
    exited, _ = await node.shell(image, f"for i in 1 2 3; do sleep {marker} & done; exit 0")
    assert exited.code == 0
    lines = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    assert [line for line in lines if marker.encode() in line] == []


# -- reaching others ----------------------------------------------------------------------------------------------------------


async def test_files_of_the_host_and_of_other_pods(node: Node, image: Image) -> None:
    secret = node.layout.data / "secret"
    secret.write_text("the host's")
    other = node.sandbox()
    volume = node.layout.pod(other.uid) / "volumes" / "v"
    volume.mkdir(parents=True)
    (volume / "key").write_text("the other's")
    paths = [secret, volume / "key", *(f"/proc/1/root{p}" for p in (secret, volume / "key")), f"../../../../../..{secret}"]
    _, log = await node.shell(image, "; ".join(f"cat {p}" for p in paths) + "; ls /")
    assert "host's" not in log
    assert "other's" not in log
    assert log.count("No such file") == len(paths)


async def test_processes_of_others(node: Node, image: Image) -> None:
    beside = await node.start(node.sandbox(), image, "/bin/sleep", "1000")
    state = await node.state(beside, "running")
    assert state.started is not None
    script = f"ps | grep -c '[s]leep 1000'; kill -9 {state.started.pid}; kill -9 -1; kill -9 {os.getpid()}; echo alive"
    _, log = await node.shell(image, script)
    assert log.splitlines()[0] == "0"
    assert log.count("No such process") == 3
    after = node.runtime.observe(beside)
    assert after is not None
    assert after.state == "running"


async def test_root_inside_is_nobody_outside(node: Node, image: Image) -> None:
    sandbox = node.sandbox()
    ref = await node.start(sandbox, image, "/bin/sleep", "1000")
    state = await node.state(ref, "running")
    assert state.started is not None
    status = Path(f"/proc/{state.started.pid}/status").read_text()
    assert f"Uid:\t{sandbox.user}\t{sandbox.user}" in status
    other = node.sandbox()
    ref = await node.start(other, image, "/bin/sleep", "1000", security=Security(user=1000, group=1000))
    state = await node.state(ref, "running")
    assert state.started is not None
    uid = Path(f"/proc/{state.started.pid}").stat().st_uid
    assert uid > 2**31
    assert uid not in (sandbox.user, other.user)


async def test_the_network_of_others(node: Node, image: Image, netns: str) -> None:
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        sandbox = node.sandbox(netns=netns)
        exited, log = await node.shell(image, f"cat /proc/net/dev; nc -w 1 127.0.0.1 {port} < /dev/null", sandbox=sandbox)
        assert exited.code != 0, log
        assert "refused" in log
        assert [line.split(":")[0].strip() for line in log.splitlines() if ":" in line and "nc" not in line] == ["lo"]
        inner = (await node.shell(image, "readlink /proc/self/ns/net", sandbox=sandbox, attempt=1))[1]
        assert inner == f"net:[{os.stat(netns).st_ino}]"
        assert inner != os.readlink("/proc/self/ns/net")
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("mount -t tmpfs x /tmp", id="mount"),
        pytest.param("umount /proc/sys", id="umount"),
        pytest.param("unshare -U true", id="user namespace"),
        pytest.param("unshare -m true", id="mount namespace"),
        pytest.param("echo 1 > /proc/sys/kernel/panic", id="kernel setting"),
        pytest.param("echo b > /proc/sysrq-trigger", id="sysrq"),
        pytest.param("mknod /tmp/mem c 1 1 && cat /tmp/mem", id="device node"),
        pytest.param("cat /proc/kcore | head -c 1 | grep -q .", id="kernel memory"),
        pytest.param("hostname other", id="host name"),
        pytest.param("echo 0 > /sys/fs/cgroup/memory/memory.limit_in_bytes", id="own limits"),
        pytest.param("chown 4000000000 /tmp", id="an id that is not its own"),
        pytest.param("ls /sys/kernel/debug/* /sys/firmware/*", id="kernel files"),
    ],
)
async def test_not_permitted(node: Node, image: Image, script: str) -> None:
    exited, log = await node.shell(image, script)
    assert exited.code not in (0, 127), log


@pytest.mark.parametrize("name", ["SYS_ADMIN", "NET_ADMIN", "CAP_SYS_MODULE", "ALL", "nonsense"])
async def test_capabilities_that_are_never_granted(node: Node, image: Image, name: str) -> None:
    with pytest.raises(AgentError, match="not granted") as e:
        await node.run(image, "/bin/true", security=Security(add_capabilities=(name,)))
    assert e.value.reason == "CreateContainerConfigError"


@pytest.mark.parametrize(
    ("security", "effective"),
    [
        (Security(), "00000000000405fb"),
        (Security(drop_capabilities=("ALL",)), "0000000000000000"),
        (Security(drop_capabilities=("ALL",), add_capabilities=("CHOWN",)), "0000000000000001"),
        (Security(drop_capabilities=("CAP_CHOWN", "kill")), "00000000000405da"),
        (Security(user=1000), "0000000000000000"),
    ],
)
async def test_capabilities(node: Node, image: Image, security: Security, effective: str) -> None:
    _, log = await node.shell(image, "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status", security=security)
    assert log.split() == ["CapEff:", effective, "NoNewPrivs:", "1", "Seccomp:", "2"]


async def test_a_set_user_id_program_gives_nothing(node: Node) -> None:
    program = busybox()
    assert program is not None
    image = node.load(None, "suid:1", LayerTar().file("opt/busybox", program.read_bytes(), mode=0o4755).bytes())
    _, log = await node.shell(image, "ls -l /opt/busybox; /opt/busybox id -u", security=Security(user=1000))
    assert log.startswith("-rwsr-xr-x")
    assert log.splitlines()[-1] == "1000"


async def test_an_image_whose_passwd_is_a_link_to_the_hosts(node: Node) -> None:
    layer = LayerTar().link("etc/passwd", "/etc/shadow").link("etc/group", "/etc/../../../etc/passwd").bytes()
    image = node.load({"User": "daemon"}, "link:1", layer)
    with pytest.raises(AgentError, match="not in its /etc/passwd"):
        await node.run(image, "/bin/true")


async def test_a_planted_mount_target(node: Node) -> None:
    """A mount goes inside the container's root, also where the image has a link that leads out."""
    layer = LayerTar().link("data", "/../../../../../tmp").bytes()
    image = node.load(None, "planted:1", layer)
    sandbox = node.sandbox()
    volume = node.layout.pod(sandbox.uid) / "volumes" / "v"
    volume.mkdir(parents=True)
    (volume / "f").write_text("mine\n")
    _, log = await node.shell(
        image, "cat /data/f; ls /tmp", sandbox=sandbox, mounts=(Mount(target="/data", source=str(volume)),)
    )
    assert log.splitlines() == ["mine", "f"], "its own /tmp"
