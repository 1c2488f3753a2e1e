"""Fencing: what runs on this node ends when the control plane has been away for too long, also when the agent is dead.

Two parts. `kill_runs` ends everything that runs for the pods below a directory, by what the shims have written: a run is known
by `started.json` without `exit.json`. Its first process and its shim are killed by handles that are checked against their start
times, so no other process is ever hit; when the shim is gone its container dies with it, and the agent later finds the run
`Lost`.

`python -m muster.agent.fencing DATA` is the guard: a process of its own, in a session of its own, that outlives the agent (it
leaves its parent by a fork, unless `--foreground` is given). Every second it reads `contact.json`, which says when the control
plane was last reached and after how long work is to be fenced. It ends when nothing is to be fenced any more: no deadline is
set, or the agent is gone and nothing runs. One guard per directory (flock on `fence.lock`). The agent fences too while it
lives; whoever comes first.

Standard library only: a guard should cost little. Blocking; any thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

LOOK_S = 1.0
CONTACT = "contact.json"
LOCK = "fence.lock"
FENCED = "fenced"
_STARTED, _EXIT = "started.json", "exit.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def count_running(pods: Path) -> int:
    """How many pods have a run that has not ended, as their files say."""
    return len({path.relative_to(pods).parts[0] for path in _begun(pods)})


def kill_runs(pods: Path, boot_id: str, *, mark: bool = False) -> set[str]:
    """The uids of pods in which something was killed. `mark` leaves a file `fenced` with each run before it is killed: its pod
    is over then, whatever its restart policy says, since it may run elsewhere by now."""
    killed = set()
    for started in _begun(pods):
        run = _read(started)
        if run.get("boot_id") != boot_id:
            continue
        pairs = (("pid", "start_ticks"), ("init_pid", "init_start_ticks"), ("shim_pid", "shim_start_ticks"))
        if mark:
            with contextlib.suppress(OSError):
                (started.parent / FENCED).touch()
        for pid, ticks in pairs:
            if _kill(run.get(pid), run.get(ticks)):
                killed.add(started.relative_to(pods).parts[0])
    return killed


def _begun(pods: Path) -> list[Path]:
    found = sorted(pods.glob(f"*/containers/*/*/{_STARTED}"))
    return [path for path in found if not (path.parent / _EXIT).exists()]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _kill(pid: object, start_ticks: object) -> bool:
    if not isinstance(pid, int) or pid <= 1:
        return False
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The handle is fixed to one process; only now is it known which.
        if _start_ticks(pid) != start_ticks:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        return True
    finally:
        os.close(handle)


def _start_ticks(pid: int) -> int | None:
    """Field 22 of its stat; the name in brackets before it may hold anything."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


# -- the guard -----------------------------------------------------------------------------------------------------------------


def guard(data: Path) -> None:
    """See the module. Returns when there is nothing to guard."""
    try:
        lock = os.open(data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # another one is at it, or the directory is gone
    boot_id = _BOOT_ID.read_text().strip()
    while (fence_s := _deadline(data, boot_id)) is not None:
        if fence_s <= 0:
            kill_runs(data / "pods", boot_id, mark=True)
        if not _is_held(data / "agent.lock") and not count_running(data / "pods"):
            return
        time.sleep(LOOK_S)


def _deadline(data: Path, boot_id: str) -> float | None:
    """How long until work is to be fenced, 0 or less: now; None when there is nothing to fence."""
    contact = _read(data / CONTACT)
    at_s, fence_s = contact.get("at_s"), contact.get("fence_s")
    if contact.get("boot_id") != boot_id or not isinstance(at_s, int | float) or not isinstance(fence_s, int) or fence_s <= 0:
        return None
    return at_s + fence_s - time.clock_gettime(time.CLOCK_BOOTTIME)


def _is_held(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def is_guarded(data: Path) -> bool:
    return _is_held(data / LOCK)


if __name__ == "__main__":
    if "--foreground" not in sys.argv and os.fork():
        os._exit(0)
    guard(Path(sys.argv[1]))
