"""Takes images away that nothing uses: when the disk fills up, when they have more than their share of it, or by age.

Concurrency: one task of the agent; what walks over directories is in a thread. `room_wanted` is pure. The thresholds are the
kubelet's: above the high one, images go until the low one is reached. An image that was used a moment ago stays, so that a
restart of its pod does not fetch it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from muster.agent.contracts import AgentError
from muster.objects.words import counted

log = logging.getLogger(__name__)

LOOK_S: Final = 60.0
KEPT_S: Final = 120.0
"""Whatever was used or fetched so short a time ago is not taken away for want of room."""


class Disk(msgspec.Struct, frozen=True):
    """The file system that the images are on, as unprivileged users may use it."""

    bytes: int
    free_bytes: int


def read_disk(path: str | os.PathLike[str]) -> Disk:
    found = os.statvfs(path)
    usable = found.f_blocks - (found.f_bfree - found.f_bavail)
    return Disk(usable * found.f_frsize, found.f_bavail * found.f_frsize)


def room_wanted(disk: Disk, high_percent: int, low_percent: int) -> int:
    """How many bytes are to become free: none while less than `high_percent` of the disk is used. Pure."""
    used = disk.bytes - disk.free_bytes
    if disk.bytes <= 0 or used * 100 < disk.bytes * high_percent:
        return 0
    return max(used - disk.bytes * low_percent // 100, 0)


async def keep_collecting(collect: Callable[[], Awaitable[Sequence[str]]], look_s: float = LOOK_S) -> None:
    """Until cancelled. `collect` gives the ids of the images that it took away."""
    told = ""
    while True:
        news = ""
        try:
            if gone := await collect():
                log.info("%s that nothing used taken away: %s", counted(len(gone), "image"), ", ".join(gone))
        except (AgentError, OSError) as error:
            news = f"images that nothing uses could not be taken away: {error}"
            if news != told:
                log.warning("%s", news)
        told = news
        await asyncio.sleep(look_s)
