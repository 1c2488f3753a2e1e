"""Real containers: what they see, how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import stat
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from muster.agent.config import Runc
from muster.agent.contracts import AgentError, Image, Limits, Mount, Security
from tests.agent.runc_node import IMAGE, Node, a_node, kill


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with a_node(tmp_path) as node:
        yield node


@pytest.fixture
def image(node: Node) -> Image:
    return node.load()


@pytest.mark.parametrize(("script", "code"), [("true", 0), ("exit 3", 3), ("exec /none", 127)])
async def test_exit_codes(node: Node, image: Image, script: str, code: int) -> None:
    exited, _ = await node.shell(image, script)
    assert (exited.code, exited.signal, exited.reason) == (code, 0, "")


async def test_killed_by_a_signal(node: Node, image: Image) -> None:
    ref = await node.start(node.sandbox(), image, "/bin/sleep", "1000")
    await node.state(ref, "running")
    await node.runtime.signal(ref, signal.SIGKILL)
    exited = await node.end(ref)
    assert (exited.code, exited.signal, exited.oom_killed) == (137, 9, False)


async def test_a_signal_reaches_the_first_process(node: Node, image: Image) -> None:
    ref = await node.start(
        node.sandbox(), image, "/bin/sh", "-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done"
    )
    await node.printed(ref, "up")
    await node.runtime.signal(ref, signal.SIGTERM)
    assert (await node.end(ref)).code == 7
    assert node.log(ref).splitlines() == ["up", "bye"]


@pytest.mark.parametrize(
    ("settings", "command", "args", "prints"),
    [
        pytest.param({"Entrypoint": ["/bin/echo", "e"], "Cmd": ["c"]}, (), (), "e c", id="all of the image's"),
        pytest.param({"Entrypoint": ["/bin/echo", "e"], "Cmd": ["c"]}, (), ("a",), "e a", id="arguments replace the image's"),
        pytest.param(
            {"Entrypoint": ["/bin/echo", "e"], "Cmd": ["c"]}, ("/bin/echo", "x"), (), "x", id="a command replaces both"
        ),
        pytest.param({"Entrypoint": ["/bin/false"]}, ("/bin/echo", "x"), ("y",), "x y", id="command and arguments"),
        pytest.param({"Cmd": ["echo", "found"]}, (), (), "found", id="found by PATH"),
        pytest.param({"Cmd": ["sh", "-c", "pwd"], "WorkingDir": "/var/made"}, (), (), "/var/made", id="working directory"),
    ],
)
async def test_what_is_run(
    node: Node, settings: dict[str, object], command: tuple[str, ...], args: tuple[str, ...], prints: str
) -> None:
    exited, log = await node.run(node.load(settings), *command, args=args)
    assert (exited.code, log) == (0, prints)


async def test_nothing_to_run(node: Node, image: Image) -> None:
    with pytest.raises(AgentError, match="no entry point") as e:
        await node.run(image)
    assert e.value.reason == "CreateContainerConfigError"


async def test_a_program_that_is_not_there(node: Node, image: Image) -> None:
    exited, _ = await node.run(image, "/no/such/program")
    assert exited.reason == "StartError"
    assert exited.code in (127, 128)
    assert "/no/such/program" in exited.message
    assert "level=" not in exited.message


async def test_environment_and_host_name(node: Node) -> None:
    image = node.load({"Env": ["A=image", "B=image"]})
    _, log = await node.shell(image, "echo $A $B $C; hostname; echo $HOSTNAME", env=(("B", "pod"), ("C", "x y")))
    assert log.splitlines() == ["image pod x y", "box", "box"]


@pytest.mark.parametrize(
    ("user", "security", "shows"),
    [
        pytest.param("", Security(), "uid=0(root) gid=0(root) groups=0(root)", id="root"),
        pytest.param("app", Security(), "uid=1000(app) gid=1001(app) groups=50(staff),1001(app)", id="by name"),
        pytest.param("1000", Security(), "uid=1000(app) gid=1001(app) groups=50(staff),1001(app)", id="by number"),
        pytest.param("app:wheel", Security(), "uid=1000(app) gid=10(wheel) groups=10(wheel),50(staff)", id="with group"),
        pytest.param("app", Security(user=4000, group=77), "uid=4000 gid=77 groups=77", id="the pod's wins"),
        pytest.param("", Security(user=1234567, group=9, groups=(8,)), "uid=1234567 gid=9 groups=8,9", id="a large id"),
    ],
)
async def test_users(node: Node, user: str, security: Security, shows: str) -> None:
    _, log = await node.run(node.load({"User": user}), "/bin/id", security=security)
    first, _, groups = log.partition(" groups=")
    wanted, _, wanted_groups = shows.partition(" groups=")
    assert first == wanted
    assert set(groups.split(",")) == set(wanted_groups.split(","))


@pytest.mark.parametrize(("user", "says"), [("nobody-here", "/etc/passwd"), ("app:nogroup", "/etc/group")])
async def test_unknown_users(node: Node, user: str, says: str) -> None:
    with pytest.raises(AgentError, match=says):
        await node.run(node.load({"User": user}), "/bin/id")


async def test_files_written_are_the_runs_own(node: Node, image: Image) -> None:
    sandbox = node.sandbox()
    exited, _ = await node.shell(image, "echo x > /bin/new; echo y > /etc/passwd; rm /bin/ls", sandbox=sandbox)
    assert exited.code == 0
    _, log = await node.shell(image, "ls /bin/new; ls /bin/ls; head -n 1 /etc/passwd", sandbox=sandbox, attempt=1)
    assert "root:x:0:0" in log
    assert "/bin/ls" in log
    assert "No such file" in log
    assert not (Path(image.root) / "bin/new").exists()


async def test_a_read_only_root(node: Node, image: Image) -> None:
    security = Security(read_only_root=True)
    mounts = (Mount(target="/scratch", kind="tmpfs", size_bytes=2**20),)
    exited, log = await node.shell(
        image, "echo a > /x; echo b > /scratch/y && cat /scratch/y", security=security, mounts=mounts
    )
    assert exited.code == 0
    assert "Read-only file system" in log
    assert "b" in log.splitlines()


async def test_mounts(node: Node, image: Image) -> None:
    sandbox = node.sandbox()
    volumes = node.layout.pod(sandbox.uid) / "volumes"
    for name in ("data", "config"):
        (volumes / name).mkdir(parents=True)
        os.chown(volumes / name, sandbox.user, sandbox.user)
    (volumes / "config/key").write_text("value")
    host = node.layout.data / "host,with:odd"
    host.write_text("from the host")
    mounts = (
        Mount(target="/data", source=str(volumes / "data")),
        Mount(target="/etc/app/key", source=str(volumes / "config/key"), read_only=True),
        Mount(target="/host", source=str(host), read_only=True),
    )
    script = "cat /etc/app/key /host; echo; echo no > /etc/app/key; echo no > /host; echo yes > /data/out; id -u"
    exited, log = await node.shell(image, script, sandbox=sandbox, mounts=mounts)
    assert exited.code == 0
    assert log.splitlines()[0] == "valuefrom the host"
    assert log.count("Read-only file system") == 2
    assert (volumes / "data/out").read_text() == "yes\n"
    assert (volumes / "data/out").stat().st_uid == sandbox.user, "root inside is the pod's own user outside"


async def test_a_link_in_a_volume_never_leads_out_of_it(node: Node, image: Image) -> None:
    sandbox = node.sandbox()
    volume = node.layout.pod(sandbox.uid) / "volumes" / "shared"
    volume.mkdir(parents=True)
    (volume / "out").symlink_to("/etc")
    (volume / "up").symlink_to("../../pod.json")
    for name in ("out", "up", "out/passwd"):
        attempt = len(node.refs)
        (node.layout.pod(sandbox.uid) / "pod.json").write_text("secret")
        mounts = (Mount(target="/m", source=str(volume / name)),)
        exited, log = await node.shell(image, "ls /m; cat /m", sandbox=sandbox, attempt=attempt, mounts=mounts)
        assert exited.reason == "StartError", log
        assert "cross-device" in exited.message.lower()
        assert log == ""


async def test_a_directory_of_the_host_is_opened_without_links(node: Node, image: Image, tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed/f").write_text("shown")
    (tmp_path / "allowed").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "allowed")
    sandbox = node.sandbox()
    mounts = (Mount(target="/m", source=str(tmp_path / "allowed"), read_only=True),)
    assert (await node.shell(image, "cat /m/f", sandbox=sandbox, mounts=mounts))[1] == "shown"
    mounts = (Mount(target="/m", source=str(tmp_path / "link"), read_only=True),)
    exited, log = await node.shell(image, "cat /m/f", sandbox=sandbox, attempt=1, mounts=mounts)
    assert (exited.reason, log) == ("StartError", "")


@pytest.mark.parametrize(
    ("mount", "says"),
    [
        (Mount(target="relative", source="/etc"), "absolute"),
        (Mount(target="/a/../../x", source="/etc"), "without"),
        (Mount(target="/", source="/etc"), "own"),
        (Mount(target="/proc/sys", source="/etc"), "own"),
        (Mount(target="/sys", source="/etc"), "own"),
        (Mount(target="/x", source="etc"), "absolute"),
        (Mount(target="/x", source="/does/not/exist"), "does not exist"),
    ],
)
async def test_refused_mounts(node: Node, image: Image, mount: Mount, says: str) -> None:
    with pytest.raises(AgentError, match=says) as e:
        await node.run(image, "/bin/true", mounts=(mount,))
    assert e.value.reason == "CreateContainerConfigError"


async def test_termination_message(node: Node) -> None:
    image = node.load({"User": "app"})
    ref = await node.start(node.sandbox(), image, "/bin/sh", "-c", "echo why > /dev/termination-log; exit 1")
    assert (await node.end(ref)).code == 1
    assert (node.run_dir(ref) / "termination-log").read_text() == "why\n"


async def test_exec(node: Node) -> None:
    image = node.load({"User": "app", "Env": ["A=b"]})
    ref = await node.start(node.sandbox(), image, "/bin/sleep", "1000")
    await node.state(ref, "running")
    result = await node.runtime.exec(ref, ["/bin/sh", "-c", "id -u; echo $A; hostname; exit 4"], 30)
    assert (result.code, result.output.decode().split(), result.is_timeout) == (4, ["1000", "b", "box"], False)
    long = await node.runtime.exec(ref, ["/bin/sh", "-c", "yes | head -c 1000000"], 30)
    assert (long.code, len(long.output)) == (0, 10 * 1024)
    slow = await node.runtime.exec(ref, ["/bin/sh", "-c", "sleep 1000 & sleep 1000"], 0.5)
    assert slow.is_timeout
    left = await node.runtime.exec(ref, ["/bin/ps"], 30)
    assert left.output.count(b"sleep 1000") == 1, "only the container's own"
    missing = await node.runtime.exec(ref, ["/none"], 30)
    assert missing.code != 0
    await node.runtime.signal(ref, signal.SIGKILL)
    await node.end(ref)
    with pytest.raises(AgentError, match="exited"):
        await node.runtime.exec(ref, ["/bin/true"], 30)


async def test_starting_twice_starts_once(node: Node, image: Image) -> None:
    sandbox = node.sandbox()
    volume = node.layout.pod(sandbox.uid) / "volumes" / "v"
    volume.mkdir(parents=True)
    volume.chmod(0o777)
    mounts = (Mount(target="/v", source=str(volume)),)
    for _ in range(3):
        ref = await node.start(sandbox, image, "/bin/sh", "-c", "echo once >> /v/starts", mounts=mounts)
        await node.end(ref)
    assert (volume / "starts").read_text() == "once\n"


async def test_a_new_agent_finds_what_runs(node: Node, image: Image) -> None:
    ref = await node.start(
        node.sandbox(), image, "/bin/sh", "-c", "echo one; while [ ! -e /go ]; do sleep 0.05; done; echo two; exit 5"
    )
    await node.printed(ref, "one")
    await node.stop()
    await node.begin()
    state = await node.state(ref, "running")
    assert state.state == "running"
    assert (await node.runtime.exec(ref, ["/bin/touch", "/go"], 30)).code == 0
    assert (await node.end(ref)).code == 5
    assert node.log(ref) == "one\ntwo"


async def test_an_end_without_an_agent_is_known_afterwards(node: Node, image: Image) -> None:
    sandbox = node.sandbox()
    volume = node.layout.pod(sandbox.uid) / "volumes" / "v"
    volume.mkdir(parents=True)
    mounts = (Mount(target="/v", source=str(volume)),)
    script = "echo up; while [ ! -e /v/go ]; do sleep 0.05; done; echo end; exit 6"
    ref = await node.start(sandbox, image, "/bin/sh", "-c", script, mounts=mounts)
    await node.printed(ref, "up")
    await node.stop()
    (volume / "go").touch()
    while not (node.run_dir(ref) / "exit.json").exists():
        pass
    await node.begin()
    assert (await node.end(ref)).code == 6
    assert node.log(ref) == "up\nend"


async def test_a_container_whose_shim_was_killed_is_lost(node: Node, image: Image) -> None:
    ref = await node.start(node.sandbox(), image, "/bin/sh", "-c", "echo up; sleep 1000")
    await node.printed(ref, "up")
    state = await node.state(ref, "running")
    assert state.started is not None
    kill(state.started.shim_pid)
    exited = await node.end(ref)
    assert (exited.reason, exited.code) == ("Lost", 137)
    assert not Path(f"/proc/{state.started.pid}/root/bin/sleep").exists()


async def test_removing_a_running_container_ends_it(node: Node, image: Image) -> None:
    sandbox = node.sandbox()
    ref = await node.start(sandbox, image, "/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done")
    await node.printed(ref, "up")
    await node.runtime.remove(sandbox, ref)
    state = node.runtime.observe(ref)
    assert state is not None
    assert state.exited is not None
    assert state.exited.code == 137
    assert node.log(ref) == "up"
    assert not (node.run_dir(ref) / "root").exists()
    await node.runtime.remove(sandbox, ref)


async def test_changes_are_told(node: Node, image: Image) -> None:
    ref = await node.start(node.sandbox(), image, "/bin/true")
    async for found in node.runtime.changed():
        assert found == ref
        if (await node.state(found, "running")).exited is not None:
            break


async def test_without_a_user_namespace(tmp_path: Path) -> None:
    async with a_node(tmp_path, Runc(user_namespace="never")) as node:
        assert "user namespaces" in [m.feature for m in node.runtime.missing()]
        exited, log = await node.shell(
            node.load(), "cat /proc/self/uid_map; grep CapEff /proc/self/status; touch /x; mount -t tmpfs x /tmp"
        )
        assert exited.code != 0
        assert log.split()[:3] == ["0", "0", "4294967295"]
        assert "permission denied" in log
        assert "00000000000405fb" in log


async def test_a_runtime_that_does_not_work_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="no-such-runc: not installed"):
        async with a_node(tmp_path, Runc(binary="no-such-runc")):
            pass


async def test_image_of_the_store_is_kept_while_used(node: Node, image: Image) -> None:
    sandbox = node.sandbox()
    ref = await node.start(sandbox, image, "/bin/sleep", "1000")
    await node.state(ref, "running")
    with pytest.raises(AgentError, match="used by a container"):
        node.runtime.store.remove(IMAGE)
    await node.runtime.remove(sandbox, ref)
    node.runtime.store.remove(IMAGE)


async def test_devices(node: Node, image: Image) -> None:
    script = "test -c /dev/fuse && echo there; ls /dev | wc -l; cat /dev/kmsg; mknod /tmp/sda b 8 0; cat /tmp/sda"
    sandbox = node.sandbox()
    _, log = await node.shell(image, script, sandbox=sandbox)
    assert "there" not in log
    assert log.count("can't open") == 2
    if stat.S_ISCHR(os.stat("/dev/fuse").st_mode):
        limits = Limits(devices=("/dev/fuse",))
        _, log = await node.shell(image, "test -c /dev/fuse && echo there", sandbox=sandbox, attempt=1, limits=limits)
        assert log == "there"
    with pytest.raises(AgentError, match="device node"):
        await node.shell(image, "true", sandbox=sandbox, attempt=2, limits=Limits(devices=("/etc/passwd",)))


async def test_a_reference_of_nothing(node: Node) -> None:
    for reference, policy, reason in (
        ("none:1", "Never", "ErrImageNeverPull"),
        (f"sha256:{uuid.uuid4().hex * 2}", "Always", "ErrImageNeverPull"),
        ("dir:/etc", "", "InvalidImageName"),
        ("oci-archive:/etc/shadow", "IfNotPresent", "InvalidImageName"),
        ("UPPER", "", "InvalidImageName"),
    ):
        with pytest.raises(AgentError) as e:
            await node.runtime.image(reference, policy)
        assert e.value.reason == reason
