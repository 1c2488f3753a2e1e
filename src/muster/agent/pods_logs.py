"""The end of a run's log, for its status. Reading logs for users is `log_files`."""

from __future__ import annotations

import os
from pathlib import Path

from muster.agent.shim.launching import LOG

_READ_BYTES = 16 * 1024
_LINES_MAX = 80
_BYTES_MAX = 2048


def last_words(run_dir: Path) -> bytes:
    """At most 80 lines and 2 KiB, without times and streams."""
    try:
        with open(run_dir / LOG / "0.log", "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _READ_BYTES))
            lines = file.read(_READ_BYTES).split(b"\n")
    except OSError:
        return b""
    if size > _READ_BYTES:
        lines = lines[1:]
    text = bytearray()
    for line in lines[-_LINES_MAX - 1 :]:
        parts = line.split(b" ", 3)
        if len(parts) == 4:
            text += parts[3] + (b"\n" if parts[2] == b"F" else b"")
    return bytes(text[-_BYTES_MAX:]).strip(b"\n")
