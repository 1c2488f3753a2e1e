"""The one writer of kernel settings: files under cgroup and /proc/sys, and later resctrl.

Every file that is written has one owner (a short text such as `limits`); a second owner is refused, so that two parts never
pull one setting to and fro. Two kinds of writing:

    put       into a group that the owner made itself: the value goes when the group goes, so nothing is remembered
    change    into a file that was there before: its old value is noted durably first, then the new one is written; `restore`
              writes the old one back, also in a later process after a crash

Nothing is written when the file already says the value. All paths are inside `root`, so that a temporary directory will do.

Each executor has its own root and journal, and is called in one thread: the cgroups' on the agent's event loop, the network's
in the network's thread. Every operation is a few short system calls.

Invariants: a note is kept before the write that it is about; after `restore` of all owners the files say what they said
before the first `change`; the journal never has more lines than twice the files noted, plus a constant.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, Protocol

import msgspec
from prometheus_client import Counter, Gauge

from muster.agent.contracts import AgentError

WRITES = Counter("muster_agent_kernel_writes", "Kernel settings written, by part.", ["owner"])
FAILURES = Counter(
    "muster_agent_kernel_write_failures", "Kernel settings that could not be written, by part and error.", ["owner", "error"]
)
NOTED = Gauge("muster_agent_kernel_changes", "Kernel settings that are changed now and will be put back.")

VALUE_BYTES_MAX: Final = 4096
"""What a kernel file takes in one write."""
CHANGES_MAX: Final = 100_000
READ_BYTES_MAX: Final = 64 * 1024
JOURNAL_LINES_SLACK: Final = 256

_ADVICE: Final = {
    errno.EACCES: "the agent lacks the rights; run it as root or delegate the group to its user",
    errno.EPERM: "the agent lacks the rights; run it as root or delegate the group to its user",
    errno.EROFS: "the file system is mounted read-only; mount cgroup read-write",
    errno.ENOENT: "the kernel has no such setting, or the group is gone",
    errno.EINVAL: "the kernel does not take this value",
    errno.ERANGE: "the kernel does not take a value of this size",
    errno.EBUSY: "the kernel is using what would change; end the processes there, or ask for more than they use",
    errno.ENODEV: "the group has been removed",
    errno.ENOSPC: "the kernel has no room for more groups; raise cgroup.max.descendants or remove groups",
    errno.ENOMEM: "the kernel has no memory for it",
}


class KernelFileError(AgentError):
    """A setting that could not be written or read: file, value and the kernel's reason."""

    def __init__(self, verb: str, path: Path | str, value: str, error: OSError, reason: str = "CgroupError") -> None:
        self.errno = error.errno or 0
        name = errno.errorcode.get(self.errno, str(self.errno))
        shown = f" {value[:80]!r} to" if value else ""
        advice = _ADVICE.get(self.errno, "look into the kernel's log")
        super().__init__(reason, f"can't {verb}{shown} {path}: {os.strerror(self.errno)} ({name}): {advice}")


class FileOwnedError(AgentError):
    def __init__(self, path: Path | str, owner: str, other: str, reason: str = "CgroupError") -> None:
        super().__init__(reason, f"{path} belongs to {other!r}; {owner!r} must not write it")


class Note(msgspec.Struct, frozen=True):
    """A file that was changed, and what it said before. `words`: a set that is changed by `+word` and `-word`."""

    file: str
    owner: str
    old: str
    is_words: bool = False
    is_done: bool = False
    """The last line about a file that has been put back."""


class Journal(Protocol):
    """Keeps notes for as long as what they are about may stay changed."""

    def load(self) -> Iterable[Note]:
        """Those that count, of earlier processes. KernelFileError."""
        ...

    def append(self, note: Note) -> None:
        """Kept when it returns. `is_done`: the one about this file counts no longer. KernelFileError."""
        ...


class Executor:
    def __init__(self, root: Path, journal: Path | Journal | None = None, *, reason: str = "CgroupError") -> None:
        """`journal` keeps the notes: a file, or somewhere else; without one they live as long as this process. `reason` is what
        its errors are called."""
        self.root = root
        self._prefix = f"{root}{os.sep}"
        self._journal = FileJournal(journal) if isinstance(journal, Path) else journal
        self._reason = reason
        self._notes: dict[str, Note] = {}
        self._owners: dict[str, dict[str, str]] = {}
        """By directory: file name to owner. Goes when the directory goes."""
        if self._journal is not None:
            self._take_up(self._journal.load())

    # -- reading -----------------------------------------------------------------------------------------------------------

    def read(self, path: Path) -> str:
        """What the file says, without the last newline. KernelFileError."""
        try:
            return read_text(path)
        except OSError as e:
            raise KernelFileError("read", path, "", e, self._reason) from e

    # -- groups that are ours ------------------------------------------------------------------------------------------------

    def make(self, directory: Path | str) -> bool:
        """Make a group; False when it is there already."""
        try:
            os.mkdir(self._inside(directory), 0o755)
        except FileExistsError:
            return False
        except OSError as e:
            FAILURES.labels("groups", errno.errorcode.get(e.errno or 0, "other")).inc()
            raise KernelFileError("make", directory, "", e, self._reason) from e
        return True

    def put(self, path: Path | str, value: str, owner: str, *, reads_as: str | None = None, is_fresh: bool = False) -> bool:
        """Set a file in a group that we made. `reads_as`: how the kernel writes the value. True when it was written."""
        self._own(path, owner)
        if not is_fresh:
            wanted = value if reads_as is None else reads_as
            try:
                if read_text(path) == wanted:
                    return False
            except OSError:
                pass  # Write-only or gone: writing tells.
        self.command(path, value, owner)
        return True

    def command(self, path: Path | str, value: str, owner: str) -> None:
        """Write to a file that does something and keeps nothing: `cgroup.procs`, `cgroup.kill`, `devices.deny`."""
        if len(value) > VALUE_BYTES_MAX:
            raise AgentError(self._reason, f"{path}: a value of {len(value)} bytes; the kernel takes {VALUE_BYTES_MAX}")
        try:
            _write(self._inside(path), value)
        except OSError as e:
            FAILURES.labels(owner, errno.errorcode.get(e.errno or 0, "other")).inc()
            raise KernelFileError("write", path, value, e, self._reason) from e
        WRITES.labels(owner).inc()

    def unmake(self, directory: Path | str) -> bool:
        """Remove a group that has no groups inside. False while something keeps it."""
        try:
            os.rmdir(self._inside(directory))
        except FileNotFoundError:
            pass
        except OSError as e:
            if e.errno != errno.ENODEV:
                return False
        self.drop(directory)
        return True

    def drop(self, directory: Path | str) -> None:
        """The group is gone: nobody owns its files, and there is nothing to put back in them."""
        self._owners.pop(str(directory), None)
        if self._notes:
            prefix = self._name(directory) + os.sep
            for name in [name for name in self._notes if name.startswith(prefix)]:
                self._close(self._notes[name])

    # -- files that were there before ----------------------------------------------------------------------------------------

    def change(self, path: Path, value: str, owner: str, *, reads_as: str | None = None, before: str | None = None) -> bool:
        """Set a file of the machine's, and remember what it said. True when it was written.

        `before`: what it said before another agent, which remembers that too, changed it for itself.
        """
        self._own(path, owner)
        old = self.read(path)
        is_there = old == (value if reads_as is None else reads_as)
        if not is_there or before is not None:
            self._note(Note(self._name(path), owner, old if before is None else before))
        if is_there:
            return False
        self.command(path, value, owner)
        return True

    def add_words(self, path: Path, words: Iterable[str], owner: str) -> bool:
        """`cgroup.subtree_control`: have these words in the set; only what was added is taken out again."""
        self._own(path, owner)
        old = self.read(path)
        new = [word for word in words if word not in old.split()]
        if not new:
            return False
        self._note(Note(self._name(path), owner, old, is_words=True))
        self.command(path, " ".join("+" + word for word in new), owner)
        return True

    def changed(self, owner: str | None = None) -> list[Path]:
        """Files that are changed now, by this process or an earlier one."""
        return [self.root / note.file for note in self._notes.values() if owner in (None, note.owner)]

    def restore(self, owner: str | None = None, *, leave: Collection[Path] = ()) -> list[AgentError]:
        """Put back what `owner` (None: anybody) changed, last change first. What can't be put back stays noted, and is told.

        `leave`: files that another agent still needs as they are, and will put back itself; here they are forgotten.
        """
        problems: list[AgentError] = []
        for note in reversed(list(self._notes.values())):
            if owner is not None and note.owner != owner:
                continue
            path = self.root / note.file
            try:
                if path not in leave:
                    self._put_back(path, note)
            except KernelFileError as e:
                if e.errno not in (errno.ENOENT, errno.ENODEV):
                    problems.append(e)
                    continue
            self._close(note)
            owners = self._owners.get(str(path.parent))
            if owners is not None:
                owners.pop(path.name, None)
        return problems

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _put_back(self, path: Path, note: Note) -> None:
        now = self.read(path)
        if not note.is_words:
            if now != note.old:
                self.command(path, note.old, note.owner)
            return
        added = [word for word in now.split() if word not in note.old.split()]
        if added:
            self.command(path, " ".join("-" + word for word in added), note.owner)

    def _inside(self, path: Path | str) -> str:
        """Nothing outside of the root is ever written, whatever a name says."""
        text = str(path)
        if not text.startswith(self._prefix) or "/../" in text or text.endswith("/.."):
            raise AgentError(self._reason, f"{path} is not under {self.root}; it is not written")
        return text

    def _name(self, path: Path | str) -> str:
        return os.path.relpath(path, self.root)

    def _own(self, path: Path | str, owner: str) -> None:
        directory, _, name = str(path).rpartition(os.sep)
        other = self._owners.setdefault(directory, {}).setdefault(name, owner)
        if other != owner:
            raise FileOwnedError(path, owner, other, self._reason)

    def _note(self, note: Note) -> None:
        """Keep the first old value: later ones are our own."""
        if note.file in self._notes:
            return
        if len(self._notes) >= CHANGES_MAX:
            raise AgentError(self._reason, f"{note.file}: {CHANGES_MAX} settings are changed already; it is left as it is")
        if self._journal is not None:
            self._journal.append(note)
        self._notes[note.file] = note
        NOTED.inc()

    def _close(self, note: Note) -> None:
        if self._notes.pop(note.file, None) is not None:
            NOTED.dec()
        if self._journal is not None:
            self._journal.append(msgspec.structs.replace(note, is_done=True))

    def _take_up(self, notes: Iterable[Note]) -> None:
        for note in notes:
            self._notes[note.file] = note
            path = self.root / note.file
            self._owners.setdefault(str(path.parent), {})[path.name] = note.owner
        NOTED.inc(len(self._notes))


class FileJournal:
    """One line for each note. A line that was begun and never finished is none: its setting was not written yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._notes: dict[str, Note] = {}
        self._lines = 0

    def load(self) -> list[Note]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as e:
            raise KernelFileError("read", self._path, "", e) from e
        for line in data.split(b"\n"):
            try:
                note = msgspec.json.decode(line, type=Note)
            except (msgspec.DecodeError, ValueError):
                continue
            if note.is_done:
                self._notes.pop(note.file, None)
            else:
                self._notes.setdefault(note.file, note)
        self._rewrite()
        return list(self._notes.values())

    def append(self, note: Note) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, msgspec.json.encode(note) + b"\n")
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as e:
            raise KernelFileError("note the old value of", self._path, note.file, e) from e
        self._lines += 1
        if not note.is_done:
            self._notes[note.file] = note
            return
        self._notes.pop(note.file, None)
        if self._lines > 2 * len(self._notes) + JOURNAL_LINES_SLACK:
            self._rewrite()

    def _rewrite(self) -> None:
        """Only what still counts. A crash leaves the old file or the new one."""
        fresh = self._path.with_name(self._path.name + ".new")
        with fresh.open("wb") as f:
            f.writelines(msgspec.json.encode(note) + b"\n" for note in self._notes.values())
            f.flush()
            os.fsync(f.fileno())
        os.replace(fresh, self._path)
        self._lines = len(self._notes)


def read_text(path: Path | str) -> str:
    """A kernel file in one read. OSError. Faster than `Path.read_text`, and usage reads thousands."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, READ_BYTES_MAX).decode("utf-8", "replace").rstrip("\n")
    finally:
        os.close(fd)


def _write(path: Path | str, value: str) -> None:
    # One write, no truncation needed by the kernel; O_TRUNC makes a plain file of a test behave like one.
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
