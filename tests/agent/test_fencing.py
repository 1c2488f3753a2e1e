"""Killing what runs by what the shims have written, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.agent.claim import Claim
from muster.agent.contact import Contact, since_boot_s
from muster.agent.fencing import _start_ticks, count_running, is_guarded, kill_runs
from muster.agent.measuring import identify
from tests.waiting import blocked_until

BOOT = identify().boot_id


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen(["sleep", "1000"])
    yield made
    made.kill()
    made.wait()


def write_run(pods: Path, pid: int, ticks: int, *, boot_id: str = BOOT, uid: str = "u1") -> Path:
    run = pods / uid / "containers" / "main" / "0"
    run.mkdir(parents=True)
    started = {"pid": pid, "start_ticks": ticks, "boot_id": boot_id, "at": 1.0, "shim_pid": pid, "shim_start_ticks": ticks}
    (run / "started.json").write_text(json.dumps(started))
    return run


def test_what_runs_is_killed(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    ticks = _start_ticks(process.pid)
    assert ticks is not None
    write_run(tmp_path, process.pid, ticks)
    assert count_running(tmp_path) == 1
    assert kill_runs(tmp_path, BOOT) == {"u1"}
    assert process.wait() == -9
    assert kill_runs(tmp_path, BOOT) == set()


@pytest.mark.parametrize("case", ["another process has the number", "of an earlier boot", "ended", "not readable"])
def test_nothing_else_is_killed(tmp_path: Path, process: subprocess.Popen[bytes], case: str) -> None:
    ticks = _start_ticks(process.pid)
    assert ticks is not None
    is_other, is_earlier = case.startswith("another"), case.startswith("of an")
    run = write_run(tmp_path, process.pid, ticks + is_other, boot_id="earlier" if is_earlier else BOOT)
    if case == "ended":
        (run / "exit.json").write_text("{}")
        assert count_running(tmp_path) == 0
    if case == "not readable":
        (run / "started.json").write_text("{")
    assert kill_runs(tmp_path, BOOT) == set()
    assert process.poll() is None


def test_process_one_is_never_killed(tmp_path: Path) -> None:
    write_run(tmp_path, 1, _start_ticks(1) or 0)
    assert kill_runs(tmp_path, BOOT) == set()


def test_without_any_pods(tmp_path: Path) -> None:
    assert kill_runs(tmp_path / "none", BOOT) == set()
    assert count_running(tmp_path / "none") == 0


# -- the guard -----------------------------------------------------------------------------------------------------------------


def contact(data: Path, *, age_s: float, fence_s: int, boot_id: str = BOOT) -> None:
    made = Contact(data, boot_id, lambda: since_boot_s() - age_s, fence_s=fence_s)
    made.write()


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen([sys.executable, "-m", "muster.agent.fencing", str(tmp_path), "--foreground"]))
        return made[-1]

    yield start
    for one in made:
        one.kill()
        one.wait()


def test_the_guard_kills_when_the_deadline_has_passed_and_goes(
    tmp_path: Path, process: subprocess.Popen[bytes], guard: Callable[[], subprocess.Popen[bytes]]
) -> None:
    run = write_run(tmp_path / "pods", process.pid, _start_ticks(process.pid) or 0)
    contact(tmp_path, age_s=100, fence_s=90)
    watching = guard()
    assert process.wait(60) == -9
    (run / "exit.json").write_text("{}")
    assert watching.wait(60) == 0


def test_the_guard_waits_for_the_deadline_while_something_runs(
    tmp_path: Path, process: subprocess.Popen[bytes], guard: Callable[[], subprocess.Popen[bytes]]
) -> None:
    write_run(tmp_path / "pods", process.pid, _start_ticks(process.pid) or 0)
    contact(tmp_path, age_s=0, fence_s=100_000)
    watching = guard()
    blocked_until(lambda: is_guarded(tmp_path))
    assert guard().wait(60) == 0, "a second one leaves it to the first"
    assert watching.poll() is None
    assert process.poll() is None
    contact(tmp_path, age_s=0, fence_s=0)
    assert watching.wait(60) == 0, "no deadline any more"
    assert process.poll() is None
    assert not is_guarded(tmp_path)


@pytest.mark.parametrize("case", ["of an earlier boot", "no contact", "nonsense", "nothing runs and no agent"])
def test_the_guard_goes_when_there_is_nothing_to_guard(
    tmp_path: Path, guard: Callable[[], subprocess.Popen[bytes]], case: str
) -> None:
    if case.startswith("of"):
        contact(tmp_path, age_s=0, fence_s=1, boot_id="earlier")
    if case == "nonsense":
        (tmp_path / "contact.json").write_text("[1]")
    if case.startswith("nothing"):
        contact(tmp_path, age_s=0, fence_s=1000)
    assert guard().wait(60) == 0


def test_the_guard_stays_with_an_agent_that_lives(tmp_path: Path, guard: Callable[[], subprocess.Popen[bytes]]) -> None:
    claim = Claim(tmp_path / "agent.lock")
    contact(tmp_path, age_s=0, fence_s=1000)
    watching = guard()
    blocked_until(lambda: is_guarded(tmp_path))
    assert watching.poll() is None
    claim.release()
    assert watching.wait(60) == 0


def test_what_is_fenced_is_marked(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    run = write_run(tmp_path, process.pid, _start_ticks(process.pid) or 0)
    assert kill_runs(tmp_path, BOOT, mark=True) == {"u1"}
    assert (run / "fenced").exists()
