"""How a long-lived process runs: how often it looks for reference cycles, what memory it gives back, and how soon its threads
take turns.

Called once, from the process's own start. The interpreter's defaults suit short scripts: with caches of a hundred thousand
objects that hold no cycles, a good part of the scheduler's time goes into looking through them again and again.

The C library's defaults suit programs whose large pieces are alike. It takes a piece of memory from the system by itself only
when it is larger than all such pieces that were given back before: a server that was once sent a body of three megabytes puts
all smaller ones between its small objects from then on, and what lies below something small that stays is not given back. Fixed
bounds end that: large pieces always come and go by themselves.

The interpreter lets a thread wait for five milliseconds for its turn beside one that computes, each time it comes back from
a call into SQLite or a socket. The thread that commits needs the interpreter for some tens of microseconds between two such
calls, so a busy event loop made a commit of half a millisecond one of five.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Final

_THRESHOLDS = (50_000, 20, 50)
"""Allocations before the young are looked at; then how often before the older ones are."""
_SWITCH_S: Final = 0.0001
_LARGE_BYTES: Final = 256 << 10
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Of `mallopt`, in glibc's malloc.h."""


def tune_for_long_runs() -> None:
    gc.set_threshold(*_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_S)
    give_back_large_pieces()


def give_back_large_pieces() -> bool:
    """Whether the C library could be told; elsewhere than with glibc it does as it likes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(option, _LARGE_BYTES) == 1 for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD))
