"""The data directory's disk (space, kind, speed of a durable write), open files, clock, Python and SQLite."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from muster.cli.doctor.model import Finding, error, ok, warning

SPACE_WARN_BYTES = 1 << 30
SPACE_MIN_BYTES = 64 << 20
SYNC_SLOW_MS = 10.0
SYNC_ROUNDS = 20
SYNC_BLOCK = bytes(4096)
OPEN_FILES_WANTED = 4096
OPEN_FILES_MIN = 256
SQLITE_FIXED = (3, 51, 3)
"""The first SQLite without the write-ahead-log reset bug, which could corrupt a database written by two connections."""
PYTHON_MIN = (3, 11)
VOLATILE = ("tmpfs", "ramfs")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph", "glusterfs")
_STA_UNSYNC = 0x0040


def existing_parent(path: Path) -> Path:
    """`path`, or the nearest directory above it that exists: where it would be made."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def filesystem_of(path: Path, mounts: str) -> str:
    """The kind of file system that `path` stands on: the last mount whose target is the longest prefix."""
    best, kind = "", "unknown"
    target = str(path.resolve())
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        where = words[1].replace("\\040", " ")
        if (target == where or target.startswith(where.rstrip("/") + "/")) and len(where) >= len(best):
            best, kind = where, words[2]
    return kind


def judge_disk(path: Path, kind: str, free_bytes: int, writable: bool) -> Finding:
    facts = {"path": str(path), "filesystem": kind, "freeBytes": free_bytes}
    found = f"{path}: {free_bytes / (1 << 30):.1f} GiB free on {kind}"
    if not writable:
        return error(
            "data-dir",
            f"{path}: cannot be written by this user",
            "'muster up' has nowhere to store anything",
            "choose another directory with --data-dir, or change its owner",
            **facts,
        )
    if free_bytes < SPACE_MIN_BYTES:
        return error(
            "data-dir",
            found,
            "the store would fill the disk at once",
            "free at least 1 GiB, or choose another --data-dir",
            **facts,
        )
    if kind in VOLATILE:
        return warning(
            "data-dir",
            found,
            "everything stored is gone after a reboot",
            "choose a directory on a disk with --data-dir",
            **facts,
        )
    if kind in REMOTE:
        return warning(
            "data-dir",
            found,
            "file locks and durable writes over the network are slow and not to be relied on",
            "choose a local disk",
            **facts,
        )
    if free_bytes < SPACE_WARN_BYTES:
        return warning(
            "data-dir", found, "the store has little room to grow; a full disk stops all writes", "free some space", **facts
        )
    return ok("data-dir", found, **facts)


def measure_sync_ms(directory: Path) -> float:
    """Median time of a 4 KiB append that is forced to the disk."""
    times = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(SYNC_ROUNDS):
            begin = time.perf_counter()
            os.write(file.fileno(), SYNC_BLOCK)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - begin) * 1000)
    return statistics.median(times)


def judge_sync(sync_ms: float) -> Finding:
    found = f"a durable write takes {sync_ms:.2f} ms"
    if sync_ms > SYNC_SLOW_MS:
        return warning(
            "fsync",
            found,
            f"about {1000 / sync_ms:.0f} lone writes per second; many writers together fare better",
            "put the data directory on an SSD with --data-dir",
            medianMs=round(sync_ms, 3),
        )
    return ok("fsync", found, medianMs=round(sync_ms, 3))


def probe_disk(data_dir: Path) -> list[Finding]:
    parent = existing_parent(data_dir)
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        mounts = ""
    writable = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
    findings = [judge_disk(data_dir, filesystem_of(parent, mounts), shutil.disk_usage(parent).free, writable)]
    if writable:
        try:
            findings.append(judge_sync(measure_sync_ms(parent)))
        except OSError as e:
            findings.append(
                error("fsync", f"{parent}: {e.strerror}", "nothing can be stored durably", "choose another --data-dir")
            )
    return findings


def judge_open_files(soft: int, hard: int) -> Finding:
    facts = {"soft": soft, "hard": hard}
    best = hard if hard != resource.RLIM_INFINITY else 1 << 30
    if best < OPEN_FILES_MIN:
        return error(
            "open-files", f"at most {best}", "the server cannot hold its connections", "raise it: ulimit -n 4096", **facts
        )
    if best < OPEN_FILES_WANTED:
        return warning(
            "open-files",
            f"at most {best}",
            "fewer watchers and tasks at once",
            "raise the hard limit: ulimit -Hn 65536",
            **facts,
        )
    return ok("open-files", f"{soft} now, up to {hard if hard != resource.RLIM_INFINITY else 'any'}", **facts)


def judge_clock(synchronised: bool | None) -> Finding:
    if synchronised is None:
        return ok("clock", "whether the clock is synchronised cannot be told here")
    if synchronised:
        return ok("clock", "synchronised")
    return warning(
        "clock",
        "the kernel says that nothing synchronises the clock",
        "leases, certificates and tokens between machines or parties fail when their clocks differ; one machine alone is fine",
        "run chrony or systemd-timesyncd",
    )


def probe_clock() -> Finding:
    if sys.platform != "linux":
        return judge_clock(None)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        timex = ctypes.create_string_buffer(512)  # larger than struct timex; modes = 0 only reads
        if libc.adjtimex(timex) < 0:
            return judge_clock(None)
        # After modes (int, padded), offset, freq, maxerror and esterror (long each) comes status.
        status = int.from_bytes(timex.raw[5 * ctypes.sizeof(ctypes.c_long) :][:4], sys.byteorder)
    except (OSError, AttributeError):
        return judge_clock(None)
    return judge_clock(not status & _STA_UNSYNC)


def judge_python(version: Sequence[int], implementation: str) -> Finding:
    text = ".".join(map(str, version[:3]))
    if tuple(version[:2]) < PYTHON_MIN:
        return error(
            "python", f"{implementation} {text}", "Muster does not run on it", "install Python 3.11 or newer", version=text
        )
    return ok("python", f"{implementation} {text}", version=text)


def judge_sqlite(version: str) -> Finding:
    if not version:
        return error(
            "sqlite",
            "the apsw module cannot be loaded",
            "there is no store on this machine",
            "pip install --force-reinstall apsw",
        )
    if tuple(int(p) for p in version.split(".")[:3]) < SQLITE_FIXED:
        return error(
            "sqlite",
            version,
            "this SQLite can corrupt a database (write-ahead-log reset bug)",
            "pip install --upgrade apsw",
            version=version,
        )
    return ok("sqlite", version, version=version)


def probe_software() -> list[Finding]:
    try:
        import apsw

        sqlite = apsw.sqlite_lib_version()
    except ImportError:
        sqlite = ""
    return [judge_python(sys.version_info[:3], platform.python_implementation()), judge_sqlite(sqlite)]


def probe_limits() -> list[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [judge_open_files(soft, hard), probe_clock()]
