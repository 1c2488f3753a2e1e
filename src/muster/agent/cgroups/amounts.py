"""What was granted, in the kernel's numbers. Pure.

The formulas are Kubernetes': shares = max(2, milli * 1024 / 1000), quota = milli * period / 1000 and at least 1 ms per period,
and for the unified hierarchy weight = 1 + (shares - 2) * 9999 / 262142, which maps 2..262144 onto 1..10000. A limit of 0 is
no limit, as there.
"""

from __future__ import annotations

import mmap
from typing import Final

PERIOD_US: Final = 100_000
QUOTA_MIN_US: Final = 1_000
SHARES_MIN: Final = 2
SHARES_MAX: Final = 262_144
PIDS_MAX: Final = 4_194_304
"""The kernel's own bound on process ids."""
PAGE_BYTES: Final = mmap.PAGESIZE


def shares(milli: int) -> int:
    return min(max(SHARES_MIN, milli * 1024 // 1000), SHARES_MAX)


def weight(shares_: int) -> int:
    """`cpu.weight` for `cpu.shares`."""
    return 1 + (min(max(shares_, SHARES_MIN), SHARES_MAX) - SHARES_MIN) * 9999 // (SHARES_MAX - SHARES_MIN)


def quota_us(milli: int | None) -> int | None:
    """Microseconds in each `PERIOD_US`; None: no limit."""
    return max(QUOTA_MIN_US, milli * PERIOD_US // 1000) if milli else None


def memory_bytes(limit_bytes: int | None) -> int | None:
    """In whole pages, as the kernel keeps it; None: no limit."""
    if not limit_bytes:
        return None
    return max(limit_bytes // PAGE_BYTES, 1) * PAGE_BYTES


def pids(most: int | None) -> str:
    return str(min(most, PIDS_MAX)) if most else "max"
