"""Commands with their streams open, beside real containers of both runtimes: one suite for both."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.agent.contracts import AgentError, ContainerRuntime, ExecSession, ExecWant, Limits, RunRef
from muster.agent.shim import sessions
from muster.agent.shim.client import Shims
from tests.agent.process_node import a_process_node, needs_root
from tests.agent.runc_node import a_node, need_runc
from tests.agent.talking import descriptors, finished, gone, processes, read, read_all, read_until, ready, write
from tests.waiting import WAIT_S

pytestmark = needs_root
INTERRUPT = b"\x03"


class Place:
    """A container that runs, and commands beside it."""

    def __init__(self, runtime: ContainerRuntime, shims: Shims, ref: RunRef, user: str) -> None:
        self.runtime = runtime
        self.shims = shims
        self.ref = ref
        self.user = user
        """As it is inside."""
        self.opened: list[ExecSession] = []

    async def open(self, *argv: str, **want: Any) -> ExecSession:
        made = await self.runtime.open_exec(self.ref, ExecWant(argv=argv, **want))
        self.opened.append(made)
        return made

    async def shell(self, script: str, **want: Any) -> ExecSession:
        return await self.open("sh", "-c", script, **want)

    async def output(self, script: str, **want: Any) -> tuple[int, bytes, bytes]:
        return await finished(await self.shell(script, **want))


@pytest.fixture(params=["process", pytest.param("runc", marks=pytest.mark.slow)])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    limits = Limits(memory_limit_bytes=128 * 2**20, pids_max=100)
    env = (("WORD", "hello"),)
    if request.param == "process":
        async with a_process_node() as process:
            ref = await process.start("sleep", "1000", env=env, limits=limits)
            await process.reaches(ref, "running")
            made = Place(process.runtime, process.shims, ref, str(process.sandbox().user))
            yield made
            await _close(made)
        return
    need_runc()
    async with a_node(tmp_path) as node:
        image = node.load({"User": "app", "WorkingDir": "/tmp"})
        ref = await node.start(node.sandbox(), image, "/bin/sleep", "1000", env=env, limits=limits)
        await node.state(ref, "running")
        made = Place(node.runtime, node.shims, ref, "1000")
        yield made
        await _close(made)


async def _close(place: Place) -> None:
    for session in place.opened:
        await session.close()


# -- pipes ---------------------------------------------------------------------------------------------------------------------


async def test_streams_apart_and_the_code(place: Place) -> None:
    assert await place.output("echo out; echo err >&2; exit 7") == (7, b"out\n", b"err\n")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param("exit 0", 0, id="success"),
        pytest.param("exit 255", 255, id="the largest"),
        pytest.param("kill -TERM $$", 143, id="a signal"),
        pytest.param("kill -KILL $$", 137, id="killed"),
        pytest.param("no-such-program", 127, id="the shell finds none"),
    ],
)
async def test_codes(place: Place, script: str, code: int) -> None:
    assert (await place.output(script))[0] == code


@pytest.mark.parametrize(
    ("program", "text"),
    [
        pytest.param("no-such-program", "no-such-program", id="not there"),
        pytest.param("/no/such/program", "/no/such/program", id="no such path"),
        pytest.param("/etc/passwd", "ermission denied", id="not a program"),
    ],
)
@pytest.mark.parametrize("has_tty", [False, True], ids=["pipes", "terminal"])
async def test_what_can_not_be_executed_is_told_before(place: Place, program: str, text: str, has_tty: bool) -> None:
    before = descriptors()

    with pytest.raises(AgentError, match=text) as e:
        await place.open(program, has_tty=has_tty, has_stdin=True)

    assert e.value.reason == "ExecFailed"
    assert "\n" not in e.value.message
    assert descriptors() <= before


async def test_it_is_the_container_that_it_runs_in(place: Place) -> None:
    session = await place.shell("id -u; hostname; echo $WORD; grep NoNewPrivs /proc/self/status; exec cat", has_stdin=True)
    text = await read_until(session.stdout, b"NoNewPrivs:\t1\n")
    started = place.runtime.observe(place.ref)
    assert started is not None
    assert started.started is not None
    beside = started.started.pid
    await gone(lambda: not _named("cat", beside))
    (pid,) = _named("cat", beside)

    assert text.decode().split()[:1] == [place.user]
    assert text.decode().split()[2] == "hello"
    for name in ("cgroup", "ns/pid", "ns/mnt", "ns/ipc", "ns/uts", "ns/net"):
        theirs, its = (_of(f"/proc/{one}/{name}") for one in (beside, pid))
        assert its == theirs, name
    for key in ("Uid", "Gid", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp"):
        assert _status(pid, key) == _status(beside, key), key
    assert sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"], "its streams, and nothing of the agent's"


def _of(path: str) -> str:
    return os.readlink(path) if "/ns/" in path else Path(path).read_text()


def _status(pid: int, key: str) -> str:
    return next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{key}:"))


def _named(name: str, beside: int) -> list[int]:
    """What executes this program in the container of that process."""
    namespace, found = os.readlink(f"/proc/{beside}/ns/pid"), []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "comm").read_text().strip() == name and os.readlink(path / "ns/pid") == namespace:
                found.append(int(path.name))
    return found


async def test_megabytes_through_it_with_a_slow_reader(place: Place) -> None:
    data = os.urandom(5 * 2**20)
    session = await place.open("cat", has_stdin=True)

    async def feed() -> None:
        await write(session.stdin, data)
        session.close_stdin()

    feeding = asyncio.create_task(feed())
    assert await read_all(session.stdout, 3000) == data
    await feeding
    assert await session.wait() == 0
    assert session.stdin == -1
    session.close_stdin()


async def test_without_input_it_reads_nothing(place: Place) -> None:
    session = await place.open("cat")

    assert session.stdin == -1
    assert await finished(session) == (0, b"", b"")


async def test_streams_can_be_opened_again_by_name(place: Place) -> None:
    session = await place.shell("cat /dev/stdin; echo more > /dev/stdout; echo err > /dev/stderr", has_stdin=True)
    await write(session.stdin, b"some\n")
    session.close_stdin()

    assert await finished(session) == (0, b"some\nmore\n", b"err\n")


async def test_the_code_is_known_while_something_holds_the_streams(place: Place) -> None:
    mark = f"10{uuid.uuid4().int % 10**6:06}"
    session = await place.shell(f"sleep {mark} & echo begun")

    assert await session.wait() == 0
    assert await session.wait() == 0
    assert await read(session.stdout) == b"begun\n"
    await gone(lambda: not processes(f"sleep {mark}"))  # while it is being executed it has no command line
    await session.close()
    assert not processes(f"sleep {mark}")


# -- terminals -----------------------------------------------------------------------------------------------------------------


async def test_a_terminal(place: Place) -> None:
    code, out, _ = await place.output("tty; echo $TERM; echo err >&2; : > /dev/tty && exit 3", has_tty=True)

    name, term, err = out.decode().split()
    assert code == 3
    assert name.startswith(("/dev/pts/", "/dev/console"))
    assert (term, err) == ("xterm", "err"), "one stream"


async def test_its_size_and_what_changes_it(place: Place) -> None:
    script = "read word; stty size; trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.05; done"
    session = await place.shell(script, has_tty=True, has_stdin=True)
    assert session.stdin == session.stdout
    assert session.stderr == -1
    session.resize(80, 24)
    await write(session.stdin, b"go\n")
    assert b"24 80" in await read_until(session.stdout, b"ready")

    session.resize(132, 50)

    await read_until(session.stdout, b"50 132")
    assert await session.wait() == 4
    for columns, rows in ((-1, 10**9), (0, 0), (2**70, -(2**70))):
        session.resize(columns, rows)


async def test_an_interrupt(place: Place) -> None:
    session = await place.shell("trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.05; done",
                                has_tty=True, has_stdin=True)  # fmt: skip
    await read_until(session.stdout, b"ready")

    await write(session.stdin, INTERRUPT)

    await read_until(session.stdout, b"interrupted")
    assert await session.wait() == 9


async def test_the_end_of_input_is_a_character(place: Place) -> None:
    session = await place.open("cat", has_tty=True, has_stdin=True)
    session.close_stdin()
    await write(session.stdin, b"line\n\x04")

    code, out, _ = await finished(session)

    assert (code, out) == (0, b"line\r\nline\r\n"), "as typed, and as told"


async def test_job_control(place: Place) -> None:
    session = await place.open("sh", "-i", has_tty=True, has_stdin=True)
    await write(session.stdin, b"sleep 1009\n")
    await gone(lambda: not processes("sleep 1009"))
    await write(session.stdin, INTERRUPT)
    await gone(lambda: processes("sleep 1009"))
    await write(session.stdin, b"echo sti''ll-here; exit 5\n")

    await read_until(session.stdout, b"still-here")
    assert await session.wait() == 5


# -- ends ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_tty", [False, True], ids=["pipes", "terminal"])
async def test_close_kills_what_still_runs(place: Place, has_tty: bool) -> None:
    """Also what ignores the hangup, and what a shell has put into groups of their own."""
    mark = f"10{uuid.uuid4().int % 10**6:06}"
    session = await place.shell(
        f"set -m; trap '' HUP TERM; sleep {mark} & (sleep {mark} & sleep {mark}) & echo ready; while :; do sleep {mark}; done",
        has_tty=has_tty,
        has_stdin=True,
    )
    await read_until(session.stdout, b"ready")
    await gone(lambda: len(processes(f"sleep {mark}")) < 4)

    await session.close()
    await session.close()

    assert not processes(f"{mark}")
    assert await session.wait() == 137
    assert _is_running(place)


async def test_its_container_ends(place: Place) -> None:
    session = await place.open("cat", has_stdin=True)

    await place.runtime.signal(place.ref, signal.SIGKILL)

    async with asyncio.timeout(WAIT_S):
        assert await session.wait() == 137
    assert await read_all(session.stdout) == b""
    await session.close()
    await gone(lambda: _is_running(place))
    with pytest.raises(AgentError) as e:
        await place.open("true")
    assert e.value.reason == "ExecFailed"


async def test_who_does_not_read_keeps_no_container_from_ending(place: Place) -> None:
    """Nor does one who has not heard yet that the command has ended: what is not reaped keeps its pid namespace."""
    session = await place.shell("yes")
    await ready(session.stdout)

    await place.runtime.signal(place.ref, signal.SIGKILL)

    await gone(lambda: _is_running(place))


def _is_running(place: Place) -> bool:
    found = place.runtime.observe(place.ref)
    return found is not None and found.state == "running"


async def test_nothing_stays_open(place: Place) -> None:
    await place.output("true")
    before, tasks = descriptors(), asyncio.all_tasks()

    for has_tty in (False, True):
        sessions = [await place.open("cat", has_stdin=True, has_tty=has_tty) for _ in range(3)]
        assert len(descriptors() - before) == 3 * (2 if has_tty else 4)
        for fd in (fd for one in sessions for fd in (one.stdin, one.stdout) if fd >= 0):
            assert not os.get_blocking(fd)
            assert not os.get_inheritable(fd)
        await asyncio.gather(*(session.close() for session in sessions))

    assert descriptors() <= before
    assert asyncio.all_tasks() <= tasks


async def test_whoever_asks_goes_away_before_it_is_open(place: Place) -> None:
    mark = f"10{uuid.uuid4().int % 10**6:06}"
    await place.output("true")
    before, tasks = descriptors(), asyncio.all_tasks()

    for turns in range(12):
        asking = asyncio.create_task(place.runtime.open_exec(place.ref, ExecWant(argv=("sleep", mark), has_tty=turns % 2 == 0)))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        if not asking.cancelled() and asking.exception() is None:
            await asking.result().close()

    await gone(lambda: processes(f"sleep {mark}"))
    assert descriptors() <= before
    assert asyncio.all_tasks() <= tasks


async def test_a_close_that_is_cancelled_closes_all_the_same(place: Place) -> None:
    mark = f"10{uuid.uuid4().int % 10**6:06}"
    await place.output("true")
    before = descriptors()
    session = await place.open("sleep", mark)
    closing = asyncio.create_task(session.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)

    await gone(lambda: processes(f"sleep {mark}"))
    assert descriptors() <= before


async def test_there_are_only_so_many(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 2)
    one, _ = await place.open("cat", has_stdin=True), await place.open("cat", has_stdin=True)

    with pytest.raises(AgentError, match="2 commands are open on this node"):
        await place.open("true")
    await one.close()
    assert (await finished(await place.open("true")))[0] == 0


async def test_no_room_for_more_descriptors(place: Place) -> None:
    mark = f"10{uuid.uuid4().int % 10**6:06}"
    await place.output("true")
    before = descriptors()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers = [os.open("/dev/null", os.O_RDONLY)]
    while fillers[-1] < max(int(one.split()[0]) for one in before):
        fillers.append(os.open("/dev/null", os.O_RDONLY))
    # For a pair of sockets, one of which is given away again, there is room; for three streams there is not.
    resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 3, limits[1]))
    try:
        with pytest.raises(AgentError, match="too much open") as e:
            await place.runtime.open_exec(place.ref, ExecWant(argv=("sleep", mark), has_stdin=True))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in fillers:
            os.close(fd)

    assert e.value.reason == "ExecFailed"
    await gone(lambda: processes(mark))
    assert descriptors() <= before


async def test_no_room_for_a_socket(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked is told, also of a port."""

    def none(*_: object) -> object:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for asked in (place.runtime.open_exec(place.ref, ExecWant(argv=("true",))), place.shims.sessions.dial("", 1)):
        with monkeypatch.context() as patched:
            patched.setattr(socket, "socketpair", none)
            with pytest.raises(AgentError, match="Too many open files") as e:
                await asked
        assert e.value.reason == "ExecFailed"


async def test_its_holder_is_killed(place: Place) -> None:
    """By the kernel for memory, say: then nobody knows the code."""
    session = await place.open("cat", has_stdin=True)
    (holder,) = _children(place.shims.zygote_pid)
    os.kill(holder, signal.SIGKILL)

    async with asyncio.timeout(WAIT_S):
        assert await session.wait() == 137


def _children(parent: int | None) -> list[int]:
    """Those that are no shims: these have sessions of other names."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        is_child = text.rpartition(")")[2].split()[1] == str(parent)
        if is_child and "(muster-zygote)" in text:
            found.append(int(path.parent.name))
    return found


async def test_the_agent_stops_in_order(place: Place) -> None:
    mark = f"10{uuid.uuid4().int % 10**6:06}"
    await place.open("sleep", mark)

    await place.shims.sessions.close()

    assert not processes(f"sleep {mark}")
