"""Why a unit sleeps: the numbers in the column `refusal` of the table. Written by the gate, through `Book.mark`. Pure."""

from __future__ import annotations

import enum
from typing import Final


class Refusal(enum.IntEnum):
    NONE = 0
    HELD = 1
    NO_QUEUE = 2
    STOPPED = 3
    LIMIT = 4
    PASSING = 5
    """Strict: nobody passes who stands before."""
    DELAYING = 6
    """It would delay somebody's planned start, or somebody before it has room and is to be tried first."""


REFUSED_BY_PLAN: Final = int(Refusal.PASSING)
"""From this on, it is the line and its plans that keep a unit from being tried, and no rule of its own: it wakes when these are
others, and a policy may have others make way for it."""
