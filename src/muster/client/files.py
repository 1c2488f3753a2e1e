"""Files that hold secrets: written whole or not at all, and never readable by others, not even for a moment.

Blocking; any thread. A crash leaves the old file or the new one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int = 0o600, *, owner: tuple[int, int] | None = None) -> None:
    """Put `content` at `path` in one step, durably. OSError when it can't be; then nothing has changed. `owner`: user and group
    that the file is to have, where that is not who runs this."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask says
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    flush_directory(path.parent)


def flush_directory(path: Path) -> None:
    """Make the names in a directory as durable as what is in its files. OSError when that can't be."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def key_file(content: bytes) -> Iterator[str]:
    """The path of a file with `content` for as long as the block lasts: OpenSSL's Python binding loads keys from files only.

    An anonymous memory file where the system has them (Linux), otherwise a temporary one with mode 0600.
    """
    memory = getattr(os, "memfd_create", None)
    if memory is not None and os.path.isdir("/proc/self/fd"):
        descriptor = memory("key", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp(prefix="muster-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            yield path
    finally:
        if not path.startswith("/proc/"):
            os.unlink(path)
