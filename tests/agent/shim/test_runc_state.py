"""What runc's `start` and `delete` come to, on directories as runc leaves them, and on others."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.agent.shim import runc_state


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Of a container that was created: its first process waits for somebody to read."""
    directory = tmp_path / "id"
    directory.mkdir()
    groups = {"cpu": str(tmp_path / "cpu"), "cpuacct": str(tmp_path / "cpu"), "": str(tmp_path / "unified")}
    (directory / "state.json").write_text(json.dumps({"cgroup_paths": groups, "intel_rdt_path": ""}))
    os.mkfifo(directory / "exec.fifo")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "unified").mkdir()
    return directory


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[], None]], int]]:
    """Does something in a process of its own."""
    made: list[int] = []

    def fork(do: Callable[[], None]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                do()
            finally:
                os._exit(7)
        made.append(pid)
        return pid

    yield fork
    for pid in made:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_container_is_let_go(state: Path, child: Callable[[Callable[[], None]], int]) -> None:
    heard, tell = os.pipe()

    def init() -> None:
        fd = os.open(state / "exec.fifo", os.O_WRONLY)  # waits for a reader, as runc's does
        os.write(fd, b"0")
        os.close(fd)
        os.write(tell, b"executes")

    assert runc_state.let_go(str(state), child(init))
    assert os.read(heard, 100) == b"executes"
    assert os.listdir(state) == ["state.json"], "so runc takes it for running"


@pytest.mark.parametrize("has_opened", [False, True], ids=["before it listens", "before it says a word"])
def test_a_container_that_ends_before(state: Path, child: Callable[[Callable[[], None]], int], has_opened: bool) -> None:
    def init() -> None:
        if has_opened:
            os.open(state / "exec.fifo", os.O_WRONLY)
        os._exit(3)

    assert runc_state.let_go(str(state), child(init)), "how it ended says what happened"
    assert (state / "exec.fifo").exists()


@pytest.mark.parametrize("lacking", ["state.json", "exec.fifo", "."])
def test_others_are_left_to_their_command(state: Path, lacking: str) -> None:
    """crun's fifo is read from the other side: to wait there would be for ever."""
    if lacking == ".":
        assert not runc_state.let_go(str(state.with_name("other")), os.getpid())
        assert not runc_state.let_go("", os.getpid())
        return
    (state / lacking).unlink()
    assert not runc_state.let_go(str(state), os.getpid())


def test_a_container_is_forgotten(state: Path) -> None:
    assert runc_state.forget(str(state))
    assert not state.exists()
    assert os.listdir(state.parent) == []


def _busy_group(state: Path) -> None:
    (state.parent / "unified" / "inside").mkdir()


def _unknown_file(state: Path) -> None:
    (state / "checkpoint").touch()


def _other_state(state: Path) -> None:
    (state / "state.json").write_text("{}")


def _no_state(state: Path) -> None:
    (state / "state.json").unlink()


def _broken_state(state: Path) -> None:
    (state / "state.json").write_text("[")


def _resource_control(state: Path) -> None:
    (state / "state.json").write_text(json.dumps({"cgroup_paths": {}, "intel_rdt_path": "/sys/fs/resctrl/id"}))


@pytest.mark.parametrize("spoil", [_busy_group, _unknown_file, _other_state, _no_state, _broken_state, _resource_control])
def test_what_resists_is_left_to_the_command(state: Path, spoil: Callable[[Path], None]) -> None:
    spoil(state)
    assert not runc_state.forget(str(state))
    assert state.exists(), "so the next agent sees that there is something to do"


def test_nothing_to_forget(tmp_path: Path) -> None:
    assert not runc_state.forget(str(tmp_path / "never"))
    assert not runc_state.forget("")
