"""How busy the loop's thread is, for those who can do the same in fewer, larger pieces when it has little time.

What is gathered for longer costs less: a batch of writes, or of events for a watch, has a price of its own however long it is.
While the thread has time to spare there is nothing to save, and nobody waits.

On the loop only: it is the CPU time of its thread that is looked at, and a busy wait of others for the processor is no work of
this one. Nothing is decided by it but when things happen.
"""

from __future__ import annotations

import time
from typing import Final

LOOK_EVERY_S: Final = 0.05
"""Shorter than it takes a line to form that anybody would notice, longer than a large list takes."""
SPARE: Final = 0.5
"""Up to this part of the time, work is done as it comes."""
FULL: Final = 0.95
"""From this part on, it is gathered for as long as its owner allows."""


class LoopLoad:
    def __init__(self) -> None:
        self._looked_s = time.monotonic()
        self._cpu_s = time.thread_time()
        self._busy = 0.0

    def busy(self) -> float:
        """The part of the time just past, 0 to 1, in which the thread has worked."""
        now = time.monotonic()
        past_s = now - self._looked_s
        if past_s >= LOOK_EVERY_S:
            cpu_s = time.thread_time()
            self._busy = min(1.0, (cpu_s - self._cpu_s) / past_s)
            self._looked_s, self._cpu_s = now, cpu_s
        return self._busy

    def stretched(self, least_s: float, most_s: float) -> float:
        """How long to gather: `least_s` while there is time to spare, up to `most_s` as that goes."""
        share = (self.busy() - SPARE) / (FULL - SPARE)
        return least_s + (most_s - least_s) * min(1.0, max(0.0, share))
