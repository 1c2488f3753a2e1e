"""Unprivileged users for pods: each has one of its own, so that what one writes another can't read. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from muster.agent.contracts import AgentError


def allot(uid: str, user_range: tuple[int, int], taken: Collection[int]) -> int:
    """A user for the pod `uid` that is not in `taken`; the same for the same pod while that one is free.

    The place in the range follows from the uid, not from the order of arrival: a user is seldom handed on soon after its last
    pod is gone, so a file left behind somewhere finds no new owner. AgentError `TooManyPods` when all are taken.
    """
    first, last = user_range
    count = last - first + 1
    used = {user for user in taken if first <= user <= last}
    if len(used) >= count:
        raise AgentError(
            "TooManyPods", f"process.userRange: [{first}, {last}]: all {count} users are taken; name a larger range"
        )
    place = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big") % count
    while first + place in used:
        place = (place + 1) % count
    return first + place
