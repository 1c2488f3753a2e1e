"""Run one command to its end, beside a run (in its namespaces, as its user) or on the host. Standard library only.

A child of the zygote, for one command. The request comes, and the answer goes, over a stream socket of its own: 4 bytes of
length, then JSON; the answer is followed by the output. When the agent goes away the command is killed.

Commands with open streams (`holding`), connections into pods (`dialing`) and `probing` are asked for in the same way. These are
imported by the child that needs them: they are not in every shim's memory.
"""

from __future__ import annotations

import _socket
import os
import select
import struct
import time

from muster.agent.shim import container, files, light
from muster.agent.shim import namespaces as ns
from muster.agent.shim.grouping import Groups
from muster.agent.shim.light import ignoring, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OUTPUT_BYTES_MAX = 10 * 1024
REQUEST_BYTES_MAX = 8 * 2**20
_LENGTH = struct.Struct("!I")
_PIPE_READS = 17
"""So many reads empty a pipe, which holds 1 MiB at most."""


def serve(channel: _socket.socket) -> None:
    length = _LENGTH.unpack(_read(channel, 4))[0]
    if length > REQUEST_BYTES_MAX:
        return
    request = light.decode(_read(channel, length))
    if "hold" in request:
        from muster.agent.shim import holding

        return holding.serve(request["hold"], channel)
    if "dial" in request:
        from muster.agent.shim import dialing

        return dialing.serve(request["dial"], channel)
    answer: dict[str, Any]
    try:
        if "probe" in request:
            from muster.agent.shim import probing

            answer, output = probing.probe(request["probe"]), b""
        else:
            answer, output = _run(request, channel)
    except OSError as e:
        answer, output = {"error": e.strerror or str(e)}, b""
    data = light.encode(answer)
    channel.setblocking(True)
    channel.sendall(_LENGTH.pack(len(data)) + data + output)


def tell(channel: _socket.socket, answer: dict[str, Any], fds: list[int] | None = None) -> None:
    """A frame: an answer without output, with descriptors. Nothing happens when the agent is gone."""
    data = light.encode(answer)
    with ignoring(OSError):
        send_fds(channel, _LENGTH.pack(len(data)) + data, fds or [])


def send_fds(channel: _socket.socket, data: bytes, fds: list[int]) -> None:
    rights = struct.pack(f"{len(fds)}i", *fds)
    channel.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if fds else [])


def receive_fds(channel: _socket.socket, fds_max: int, bytes_max: int = 4096) -> tuple[bytes, list[int]]:
    """None of them is inherited by what this process executes."""
    data, extra, _, _ = channel.recvmsg(bytes_max, _socket.CMSG_SPACE(fds_max * 4), _socket.MSG_CMSG_CLOEXEC)
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
    packed = b"".join(part for level, kind, part in extra if (level, kind) == rights)
    return data, list(struct.unpack(f"{len(packed) // 4}i", packed[: len(packed) // 4 * 4]))


def pack(request: dict[str, Any]) -> bytes:
    data = light.encode(request)
    if len(data) > REQUEST_BYTES_MAX:
        raise ValueError(f"a command of {len(data)} bytes: at most {REQUEST_BYTES_MAX}")
    return _LENGTH.pack(len(data)) + data


def take(data: bytearray) -> dict[str, Any] | None:
    """The first frame, which is taken away; None: it is not whole yet."""
    if len(data) < 4 or len(data) < 4 + (length := _LENGTH.unpack_from(data)[0]):
        return None
    found: dict[str, Any] = light.decode(bytes(data[4 : 4 + length]))
    del data[: 4 + length]
    return found


def unpack(data: bytes) -> tuple[dict[str, Any], bytes] | None:
    """None: there is no whole answer."""
    if len(data) < 4 or len(data) < 4 + (length := _LENGTH.unpack_from(data)[0]):
        return None
    return light.decode(data[4 : 4 + length]), data[4 + length :]


def _read(channel: _socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = channel.recv(count - len(data))
        if not chunk:
            os._exit(0)
        data += chunk
    return data


def join(request: dict[str, Any]) -> int:
    """A pidfd of the container's first process; -1 where there is none to join. OSError when it is gone.

    The pid namespace is entered here, since it takes hold for children only; everything else in the child (`enter`)."""
    launch, wanted = request["launch"], request.get("join")
    if not wanted:
        return -1
    pid_fd = files.open_process(wanted["pid"], wanted["start_ticks"]) if wanted["boot_id"] == files.boot_id() else None
    if pid_fd is None:
        raise ProcessLookupError(3, "the container is not running")
    if "user" in launch["namespaces"]:
        ns.setns(pid_fd, ns.CLONE_NEWUSER, "user namespace")
    if "pid" in launch["namespaces"]:
        ns.setns(pid_fd, ns.CLONE_NEWPID, "pid namespace")
    return pid_fd


def enter(launch: dict[str, Any], pid_fd: int, groups: Groups) -> None:
    """By the child: a session of its own, in the container's groups and namespaces."""
    os.setsid()
    groups.enter_all()
    if pid_fd >= 0:
        flags = sum(ns.FLAGS[name] for name in launch["namespaces"] if name not in ("pid", "user"))
        flags |= ns.CLONE_NEWNET if launch.get("netns") else 0
        if flags:
            ns.setns(pid_fd, flags, "the container's namespaces")


def _run(request: dict[str, Any], channel: _socket.socket) -> tuple[dict[str, Any], bytes]:
    launch = request["launch"]
    deadline = time.monotonic() + request["timeout_s"]
    groups = Groups(launch.get("cgroupProcs", []))
    pid_fd = join(request)
    ns.become_subreaper()
    out, inner = os.pipe()
    mine, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    child = groups.fork()
    if child == 0:
        streams = container.Streams(theirs, null, inner, inner)
        container.guarded(streams, lambda: _become(launch, streams, pid_fd, groups))
    groups.close()
    os.close(inner)
    theirs.close()
    try:
        output, is_timeout = _watch(child, out, channel, deadline)
    finally:
        # What it leaves in its own session goes with it.
        with ignoring(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with ignoring(OSError):
        if problem := mine.recv(4096, _socket.MSG_DONTWAIT):
            return {"error": problem.decode(errors="replace").partition(" ")[2]}, b""
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return {"code": code, "is_timeout": is_timeout}, output


def _become(launch: dict[str, Any], streams: container.Streams, pid_fd: int, groups: Groups) -> None:
    enter(launch, pid_fd, groups)
    container.put_streams(streams.stdin, streams.stdout, streams.stderr, launch["user"], launch["group"])
    container.prepare(launch)
    container.execute(launch)


def _watch(child: int, out: int, channel: _socket.socket, deadline: float) -> tuple[bytes, bool]:
    """What it prints, at most so much of it, until it ends, its time is up, or nobody wants to know any more."""
    kept = bytearray()
    os.set_blocking(out, False)
    end_fd = os.pidfd_open(child)
    poll = select.poll()
    for fd in (out, end_fd, channel.fileno()):
        poll.register(fd, select.POLLIN)
    try:
        while True:
            left_s = deadline - time.monotonic()
            ready = [fd for fd, _ in poll.poll(max(0, left_s) * 1000)]
            if out in ready and not _keep(out, kept):
                poll.unregister(out)
            if end_fd in ready:
                # What it has left behind may print for ever; what it printed itself is in the pipe.
                for _ in range(_PIPE_READS):
                    if not _keep(out, kept):
                        break
                return bytes(kept), False
            if channel.fileno() in ready or left_s <= 0:
                return bytes(kept), True
    finally:
        os.close(end_fd)


def _keep(fd: int, kept: bytearray) -> bool:
    """False when there is no more, for now or for good."""
    try:
        data = os.read(fd, 65536)
    except BlockingIOError:
        return False
    kept += data[: OUTPUT_BYTES_MAX - len(kept)]
    return bool(data)
