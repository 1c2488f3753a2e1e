"""How a shim tells the agent: one that is behind is waited for, and not asked in circles."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.agent.shim import shim
from tests.waiting import WAIT_S, blocked_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Longer than the address of a socket may be."""
    directory = tmp_path / ("long" * 30)
    directory.mkdir()
    return directory / "events"


@pytest.fixture
def agent(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as made:
        dir_fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        made.bind(f"/proc/self/fd/{dir_fd}/{path.name}")
        os.close(dir_fd)
        yield made


def said(agent: socket.socket) -> list[str]:
    found = []
    try:
        while True:
            found.append(agent.recv(4096).decode())
    except BlockingIOError:
        return found


def is_asleep(pid: int) -> bool:
    looks = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for _ in range(30)]
    return set(looks) == {"S"}


def test_it_is_told(agent: socket.socket, path: Path) -> None:
    shim.tell(str(path), "/a/run")
    assert said(agent) == ["/a/run"]


def test_nobody_listens(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        shim.tell(str(path), "/a/run")


def test_an_agent_that_is_behind(agent: socket.socket, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim, "_TELL_TIMEOUT", struct.pack("ll", int(WAIT_S), 0))
    monkeypatch.chdir(path.parent)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        early = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sender.sendto(b"early", path.name)
                early += 1
    pid = os.fork()
    if pid == 0:
        try:
            shim.tell(str(path), "late")
        finally:
            os._exit(0)
    try:
        blocked_until(lambda: is_asleep(pid))
        heard = said(agent)
        os.waitpid(pid, 0)
        pid = 0
        assert [*heard, *said(agent)] == [*["early"] * early, "late"]
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
