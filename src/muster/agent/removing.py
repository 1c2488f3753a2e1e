"""Takes away directories of runs and pods that are over. Nobody works in them any more, so nothing changes under the hands.

For the agent's event loop; the work is done in a thread, since disks may take their time over it. What is small, as most of
them are, is removed with few calls; what turns out to be large or to resist goes the long way (`trees`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Final

from muster.agent import trees

SMALL_ENTRIES_MAX: Final = 64


async def remove_tree(path: Path | str) -> None:
    """As much of it as can be removed; nothing is said about the rest, or when it was not there. Links are not followed."""
    await asyncio.to_thread(_remove, os.fspath(path))


def _remove(path: str) -> None:
    if _remove_small(path, SMALL_ENTRIES_MAX) < 0:
        with contextlib.suppress(OSError):
            trees.remove(Path(path))


def _remove_small(path: str, left: int) -> int:
    """How many of the `left` entries may still be removed; negative when it is not gone."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return left
    except OSError:
        pass
    else:
        return left - 1
    left -= 1  # before what is inside: directories may be nested deeper than the stack
    if left < 0:
        return left
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left = _remove_small(entry.path, left)
                else:
                    os.unlink(entry.path)
                    left -= 1
                if left < 0:
                    return left
        os.rmdir(path)
    except OSError:
        return -1
    return left
