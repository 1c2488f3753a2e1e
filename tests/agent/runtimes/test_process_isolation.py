"""What one process task can't do to another, to the agent, or to the machine. Each with a real attempt at it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from muster.agent.config import AgentConfig, Process
from muster.agent.contracts import Mount
from tests.agent.process_node import ProcessNode, a_directory, a_process_node, needs_root

pytestmark = needs_root


@pytest.fixture
async def node() -> AsyncIterator[ProcessNode]:
    async with a_process_node() as made:
        yield made


def volume(node: ProcessNode, uid: str, name: str, text: str = "", target: str = "/data") -> Mount:
    """As the agent makes them: the pod's own directory is closed to others, the files belong to its user."""
    path = node.layout.volume(uid, name)
    path.mkdir(parents=True, exist_ok=True)
    user = node.sandbox(uid).user
    if text:
        (path / "secret").write_text(text)
        (path / "secret").chmod(0o644)
    os.chown(path, user, user)
    return Mount(target=target, source=str(path))


async def test_it_sees_nothing_of_other_pods_or_the_agent(node: ProcessNode) -> None:
    """Also what its permissions would allow: everything here is readable by all."""
    node.layout.credentials.mkdir()
    (node.layout.credentials / "kubeconfig").write_text("key material")
    node.layout.credentials.chmod(0o755)
    other = await node.start("sh", "-c", "echo private > /task/f; echo said; sleep 1000", uid="other",
                             mounts=(volume(node, "other", "secret", "token of another"),))  # fmt: skip
    await node.prints(other, b"said")
    for path in [node.layout.data, *node.layout.data.rglob("*")]:
        if not path.is_symlink() and path.exists():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))

    text = await node.output(
        "sh", "-c", f"ls -R {node.layout.data} {node.layout.run}; cat {node.layout.credentials}/kubeconfig;"
        f"cat {node.layout.volume('other', 'secret')}/secret;"
        f"cat {node.run_dir(other)}/root/home/f {node.run_dir(other)}/log/0.log;"
        "find / -xdev -name kubeconfig -path '*credentials*' 2>/dev/null; grep -r . /task; ls -A /tmp; echo end",
        uid="mine", mounts=(volume(node, "mine", "mine"),),
    )  # fmt: skip

    assert "end\n" in text
    for secret in ("key material", "token of another", "private", "said"):
        assert secret not in text
    assert "credentials/kubeconfig\n" not in text


async def test_directories_that_the_configuration_hides() -> None:
    hidden = a_directory()
    try:
        (hidden / "of-another-agent").write_text("secret")
        hidden.chmod(0o755)
        place = Path("/var/tmp") / f"muster-test-{uuid.uuid4().hex}"
        os.rename(hidden, place)
        async with a_process_node(AgentConfig(process=Process(hide=[str(place)]))) as node:
            text = await node.output("sh", "-c", f"ls -A {place}; cat {place}/of-another-agent; touch {place}/new; echo end")
        assert "secret" not in text
        assert "end" in text.splitlines(), "beside what the other stream says"
        assert sorted(os.listdir(place)) == ["of-another-agent"]
    finally:
        for path in (hidden, place):
            if path.exists():
                (path / "of-another-agent").unlink()
                path.rmdir()


async def test_it_sees_and_signals_no_process_but_its_own(node: ProcessNode) -> None:
    other = await node.start("sleep", "1000", uid="other")
    started = (await node.reaches(other, "running")).started
    assert started is not None
    mine = os.getpid()

    text = await node.output(
        "sh", "-c", f"ls /proc | grep -E '^[0-9]+$' | tr '\\n' ' '; kill -9 {started.pid}; kill -9 {mine}; kill -9 1;"
        "cat /proc/1/environ /proc/1/root/etc/shadow /proc/1/mountinfo; ls /proc/1/fd /proc/1/cwd/; kill -9 -1; echo end",
        uid="mine",
    )  # fmt: skip

    seen = text.splitlines()[0].split()
    assert 0 < len(seen) < 10
    assert not {"1", str(started.pid)} & {*seen}
    found = node.runtime.observe(other)
    assert found is not None
    assert found.state == "running"
    assert "root:" not in text
    assert text.count("No such file or directory") == 5, "nothing of the first process, which is the agent's, can be read"
    assert "end" in text


async def test_shared_memory_and_queues_are_its_own(node: ProcessNode) -> None:
    made = subprocess.run(["ipcmk", "-M", "4096", "-p", "0666"], capture_output=True, text=True, check=True).stdout
    number = made.split()[-1]
    name = f"/dev/shm/muster-test-{uuid.uuid4().hex}"
    Path(name).write_text("of the host")
    try:
        text = await node.output("sh", "-c", f"ipcs -m; cat {name}; ls /dev/shm; echo end")
    finally:
        subprocess.run(["ipcrm", "-m", number], check=True)
        Path(name).unlink()
    assert f" {number} " not in text
    assert "of the host" not in text
    assert "end\n" in text, "nothing of it stopped the shell; two streams have no common order, so it need not be the last line"


@pytest.fixture
def netns(node: ProcessNode) -> Iterator[str]:
    """A network namespace of its own, made by the tools of the machine."""
    name = f"mt{uuid.uuid4().hex[:8]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield f"/run/netns/{name}"
    subprocess.run(["ip", "netns", "del", name], check=True)


async def test_it_sees_the_network_that_it_was_given_and_no_other(node: ProcessNode, netns: str) -> None:
    node.sandbox("networked", netns=netns)
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as abstract:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        abstract.bind(f"\0muster-test-{uuid.uuid4().hex}")
        port = listener.getsockname()[1]

        text = await node.output(
            "sh", "-c", f"ls /sys/class/net; cat /proc/net/tcp /proc/net/unix; exec 3<>/dev/tcp/127.0.0.1/{port}; echo tried",
            uid="networked",
        )  # fmt: skip
        bash = await node.output("bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached", uid="networked", attempt=1)

        assert text.split()[0] == "lo"
        assert "eth0" not in text
        assert f"{port:04X}" not in text
        assert "muster-test-" not in text
        assert "reached" not in bash


async def test_it_gains_no_privileges(node: ProcessNode) -> None:
    """A program that belongs to root and runs as root: the one that the machine has, and one that it planted."""
    planted = volume(node, "pod-1", "bin")
    with contextlib.suppress(FileNotFoundError):
        target = Path(planted.source) / "id"
        target.write_bytes(Path("/usr/bin/id").read_bytes())
        target.chmod(0o4755)

    text = await node.output(
        "sh", "-c", "grep -E 'Cap|NoNewPrivs|Groups' /proc/self/status; /data/id -u; su -c id root </dev/null; unshare -m true;"
        "mount -t tmpfs none /mnt; echo x > /proc/sys/kernel/core_pattern; mknod /tmp/d b 254 0; chroot / true;"
        "cat /etc/shadow; echo end", mounts=(planted,),
    )  # fmt: skip

    user = str(node.sandbox().user)
    assert "NoNewPrivs:\t1" in text
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{name}:\t0000000000000000" in text
    assert f"\n{user}\n" in text, "the planted program runs as nobody else"
    assert "uid=0" not in text
    assert "root:x:" not in text
    assert "root:*" not in text
    assert "end\n" in text, "nothing of it stopped the shell; two streams have no common order, so it need not be the last line"


async def test_what_is_hidden_can_not_be_uncovered(node: ProcessNode) -> None:
    """Where the kernel lets every user have namespaces of its own, with all rights in there."""
    node.layout.credentials.mkdir()
    (node.layout.credentials / "kubeconfig").write_text("key material")
    for path in (node.layout.data, node.layout.credentials):
        path.chmod(0o755)
    inner = f"umount -l /root /run /tmp /dev /proc; ls -A /root /run; cat {node.layout.credentials}/kubeconfig; echo tried"

    text = await node.output("sh", "-c", f"ls -A /root; unshare -Urm sh -c '{inner}'; echo end")

    assert "key material" not in text
    assert ".ssh" not in text
    assert ".bashrc" not in text
    assert "netns" not in text
    assert "end\n" in text


async def test_it_writes_to_nothing_of_the_host(node: ProcessNode) -> None:
    """Places where every user of the machine may write."""
    name = f"muster-test-{uuid.uuid4().hex}"
    open_to_all = Path("/var") / name
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (open_to_all / "file").write_text("before")
    (open_to_all / "file").chmod(0o666)
    try:
        text = await node.output(
            "sh", "-c", f"for d in /tmp /var/tmp /dev/shm {open_to_all}; do echo x > $d/{name} && echo wrote $d; done;"
            f"echo after > {open_to_all}/file; cat {open_to_all}/file; rm {open_to_all}/file;"
            f"echo x > /sys/{name}; ls {open_to_all}",
        )  # fmt: skip
        assert text.count("wrote ") == 4
        assert "after\n" in text
        assert (open_to_all / "file").read_text() == "before"
        assert sorted(os.listdir(open_to_all)) == ["file"]
        for place in ("/tmp", "/var/tmp", "/dev/shm"):
            assert not (Path(place) / name).exists()
    finally:
        (open_to_all / "file").unlink()
        open_to_all.rmdir()


async def test_a_planted_link_as_a_mount_point_stays_inside(node: ProcessNode) -> None:
    """The first container plants links in a shared volume; the second has mounts that lead over them."""
    place = Path("/var") / f"muster-test-{uuid.uuid4().hex}"
    place.mkdir()
    try:
        shared = volume(node, "pod-1", "shared")
        script = (
            f"ln -s {place} /data/link; ln -s ../../../../../../..{place} /data/dots; ln -s /proc/1/root{place} /data/magic"
        )
        await node.output("sh", "-c", script, mounts=(shared,), name="first")
        inner = volume(node, "pod-1", "inner", "content of the volume\n")

        for attempt, link in enumerate(("link", "dots", "magic")):
            mounts = (shared, Mount(target=f"/data/{link}/deep", source=inner.source))
            text = await node.output(
                "sh", "-c", f"cat {place}/deep/secret; echo end", mounts=mounts, name="second", attempt=attempt
            )
            assert text in ("content of the volume\nend\n", "")
            assert os.listdir(place) == [], link
    finally:
        for left in place.iterdir():
            left.rmdir()
        place.rmdir()


@pytest.mark.parametrize("link", ["/etc", "../../../other/volumes/secret", "..", "/proc/self/root/etc"])
async def test_a_planted_link_as_a_source_is_refused(node: ProcessNode, link: str) -> None:
    """subPath of a volume in which the task has put a link to somewhere else."""
    volume(node, "other", "secret", "token of another")
    shared = volume(node, "pod-1", "shared")
    await node.output("ln", "-s", link, "/data/sub", mounts=(shared,), name="first")

    ref = await node.start("sh", "-c", "ls -R /shown; cat /shown/*", name="second",
                           mounts=(Mount(target="/shown", source=f"{shared.source}/sub"),))  # fmt: skip

    exited = await node.ended(ref)
    assert exited.reason == "StartError"
    assert "leads out of its volume" in exited.message
    assert await node.log(ref) == b""


async def test_a_directory_of_the_host_that_has_become_a_link(node: ProcessNode) -> None:
    """It was checked, and swapped before it was mounted."""
    place = node.layout.data / "host"
    (place / "allowed").mkdir(parents=True)
    (place / "allowed" / "file").write_text("of the host\n")
    os.symlink("/etc", place / "swapped")

    assert (
        await node.output("cat", "/shown/file", mounts=(Mount(target="/shown", source=f"{place}/allowed"),)) == "of the host\n"
    )
    ref = await node.start("cat", "/shown/passwd", mounts=(Mount(target="/shown", source=f"{place}/swapped"),), attempt=1)
    exited = await node.ended(ref)

    assert exited.reason == "StartError"
    assert "swapped is a link" in exited.message


async def test_a_link_that_stays_in_its_volume_works(node: ProcessNode) -> None:
    """As config maps are laid out: the name is a link to the present version."""
    made = volume(node, "pod-1", "config")
    (Path(made.source) / "..v1").mkdir()
    (Path(made.source) / "..v1" / "key").write_text("value\n")
    os.symlink("..v1", Path(made.source) / "..data")
    os.symlink("..data/key", Path(made.source) / "key")

    text = await node.output("cat", "/etc/one/key", mounts=(Mount(target="/etc/one/key", source=f"{made.source}/key"),))

    assert text == "value\n"


async def test_the_agents_own_descriptors_and_environment_stay_with_it(node: ProcessNode) -> None:
    os.environ["MUSTER_TEST_SECRET"] = "do not tell"
    try:
        await node.again()
        text = await node.output("sh", "-c", "env; ls -l /proc/self/fd | awk '{print $9, $11}'")
    finally:
        del os.environ["MUSTER_TEST_SECRET"]
    assert "do not tell" not in text
    numbers = {line.split()[0] for line in text.splitlines() if line[:1].isdigit()}
    assert numbers <= {"0", "1", "2", "3"}, "3 is the directory that ls reads"


async def test_a_read_only_volume_stays_so(node: ProcessNode) -> None:
    made = volume(node, "pod-1", "config", "as it was")
    mount = Mount(target="/data", source=made.source, read_only=True)

    script = "echo x > /data/secret; rm /data/secret; mv /data/secret /data/b; touch /data/new"
    await node.output("sh", "-c", script, mounts=(mount,))

    assert os.listdir(made.source) == ["secret"]
    assert (Path(made.source) / "secret").read_text() == "as it was"


async def test_signals_go_to_that_process_only(node: ProcessNode) -> None:
    """A record with the pid of another process (reused, or forged) reaches nobody."""
    ref = await node.start("sleep", "1000")
    state = await node.reaches(ref, "running")
    assert state.started is not None
    victim = subprocess.Popen(["sleep", "1000"])
    try:
        path = node.run_dir(ref) / "started.json"
        path.write_text(path.read_text().replace(f'"pid":{state.started.pid}', f'"pid":{victim.pid}'))

        await node.runtime.signal(ref, signal.SIGTERM)

        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()
