"""The data directory of `muster up`: where it is, who runs on it.

    D/kubeconfig    credentials for the server on this machine, mode 0600
    D/muster.pid    process id of the running server, which holds a lock on this file for as long as it lives
    D/server.json   what that process is: address, version, parts
    D/store, D/pki  owned by the server

The lock is the truth and the files are its explanation: the kernel drops the lock with the process, however that died, and
tells whose it is, so `muster down` never signals a process that merely reuses an old number.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from muster.cli.errors import CliError, ExitCode

PID_FILE = "muster.pid"
RECORD_FILE = "server.json"
KUBECONFIG_FILE = "kubeconfig"
_KERNEL_TELLS = sys.platform == "linux"
_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, length, pid


class ServerRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """What the running server says of itself."""

    pid: int
    url: str
    version: str
    started_at: str
    parts: list[str]
    left_out: list[str] = []


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """`$MUSTER_DATA_DIR`, or `muster` under the user's data home (XDG)."""
    if environ.get("MUSTER_DATA_DIR"):
        return Path(environ["MUSTER_DATA_DIR"])
    base = environ.get("XDG_DATA_HOME", "")
    # The XDG specification has relative paths ignored.
    root = Path(base) if base.startswith("/") else Path(environ.get("HOME") or "~").expanduser() / ".local" / "share"
    return root / "muster"


def prepare(path: Path) -> None:
    """Make the directory, closed to others, and see that it can be written."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}"
        probe.write_bytes(b"muster")
        probe.unlink()
    except (FileExistsError, NotADirectoryError) as e:
        raise CliError(f"data directory {path}: a file is where a directory must be; choose another with --data-dir") from e
    except OSError as e:
        raise unwritable(path, e) from e


def unwritable(path: Path, error: OSError) -> CliError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CliError(f"data directory {path}: the disk is full; free some space, or choose another with --data-dir")
    return CliError(f"data directory {path}: cannot be written ({error.strerror}); choose another with --data-dir")


def holder_of(path: Path) -> int | None:
    """The process that holds the directory's lock; None when nobody does, 0 when it is outside this pid namespace."""
    try:
        fd = os.open(path / PID_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError as e:
        raise CliError(f"{path / PID_FILE}: permission denied; the server belongs to another user", ExitCode.FORBIDDEN) from e
    try:
        if _KERNEL_TELLS:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
            return None if kind == fcntl.F_UNLCK else max(int(pid), 0)
        return _holder_by_trying(fd)
    finally:
        os.close(fd)


def _holder_by_trying(fd: int) -> int | None:
    """Where the kernel does not say who holds a lock: if it is held, its holder wrote the number that the file shows."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else 0
    return None


class Claim:
    """The lock on a data directory, held from construction until `release` or the end of the process.

    POSIX locks vanish when the process closes *any* descriptor of the file, so nothing else in it may open `muster.pid`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = self._lock()
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as e:
            os.close(self._fd)
            raise unwritable(path, e) from e

    def _lock(self) -> int:
        while True:
            try:
                fd = os.open(self._path / PID_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as e:
                raise unwritable(self._path, e) from e
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Between open and lock, a server that stopped may have removed the file: then this lock guards nothing.
                if os.path.samestat(os.fstat(fd), (self._path / PID_FILE).stat()):
                    return fd
            except FileNotFoundError:
                pass
            except OSError as e:
                os.close(fd)
                raise (self._taken() if e.errno in (errno.EACCES, errno.EAGAIN) else unwritable(self._path, e)) from e
            os.close(fd)

    def _taken(self) -> CliError:
        pid = holder_of(self._path)
        who = f"process {pid}" if pid else "another process"
        return CliError(
            f"data directory {self._path}: {who} runs a server on it; stop that with 'muster down --data-dir {self._path}', "
            "or choose another with --data-dir"
        )

    def publish(self, record: ServerRecord) -> None:
        """Say what runs; replaced whole, so a reader never sees half of it."""
        target = self._path / RECORD_FILE
        draft = self._path / f".{RECORD_FILE}.new"
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
        draft.replace(target)

    def release(self) -> None:
        """Remove the traces first: while the lock is held, nobody else can have written them."""
        if self._fd < 0:
            return
        (self._path / RECORD_FILE).unlink(missing_ok=True)
        (self._path / PID_FILE).unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def read_record(path: Path) -> ServerRecord | None:
    """What the last server wrote of itself; None when there is nothing readable. Trust it only while `holder_of` agrees."""
    try:
        return msgspec.json.decode((path / RECORD_FILE).read_bytes(), type=ServerRecord)
    except (OSError, msgspec.DecodeError):
        return None
