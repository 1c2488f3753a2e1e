"""Users for the pods of one agent among several on a machine. Pure.

They follow from the path of the agent's data directory, so that agents of one machine have different ones, and an agent has
the same after every start.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

USERS_EACH: Final = 4096
FIRST: Final = 2_000_000_000
LAST: Final = 2_199_999_999
"""Above it lie the users inside of containers (`runtimes.runc_users`)."""


def users_of(directory: Path) -> tuple[int, int]:
    places = (LAST + 1 - FIRST) // USERS_EACH
    place = int.from_bytes(hashlib.sha256(str(directory.absolute()).encode()).digest()[:8], "big") % places
    first = FIRST + place * USERS_EACH
    return first, first + USERS_EACH - 1
