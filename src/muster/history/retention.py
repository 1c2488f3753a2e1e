"""Which segments go, and that they do: the oldest first, by age, number and size. Blocking; called by the recorder's thread."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.history.records import SegmentName
from muster.history.stores import SegmentStore, Stored

if TYPE_CHECKING:
    from muster.history.recorder import HistoryLimits

log = logging.getLogger(__name__)


def superfluous(segments: Sequence[Stored], limits: HistoryLimits, now: float) -> list[SegmentName]:
    """Names of segments to remove, from all that there are in order. Room is left for one more. Pure.

    A segment is as old as the beginning of the next one, up to which it may reach; the last one is never too old. Time goes on
    from the last one by no more than a segment may last: a clock that has jumped ahead does not take all that there is with it.
    """
    now = min(now, segments[-1].name.instant + limits.segment_s_max) if segments else now
    gone: list[SegmentName] = []
    left, size_bytes = len(segments), sum(one.size_bytes for one in segments)
    ends = [*(one.name.instant for one in segments[1:]), now]
    for one, end in zip(segments, ends, strict=False):
        is_old = now - end > limits.keep_s_max
        is_over = left + 1 > limits.keep_segments_max or size_bytes + limits.segment_bytes_max > limits.keep_bytes_max
        if not is_old and not is_over:
            break
        gone.append(one.name)
        left -= 1
        size_bytes -= one.size_bytes
    return gone


def retire(store: SegmentStore, limits: HistoryLimits, now: float) -> int:
    """Remove what is superfluous; how many. One that can't be removed is left for the next time."""
    removed = 0
    try:
        for name in superfluous(store.segments(), limits, now):
            store.remove(name)
            removed += 1
    except OSError as error:
        log.warning("old segments of the decision log at %s could not be removed: %s", store.where, error)
    return removed
