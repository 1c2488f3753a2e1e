"""Whose names an answer tells: work of others that a reader may not see is counted, and not named. Pure.

Texts that are written on objects (conditions, events) name no other work at all: whoever reads the object may not be allowed to
read the rest. Answers are given to somebody, and name what that one may see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from muster.objects.reasons import Holder, Shortfall, Verdict

HIDDEN: Final = "(not yours to see)"
Sees = Callable[[str], bool]
"""Whether whoever asks may see this work, by `Kind/namespace/name`."""


def everything(_: str) -> bool:
    return True


def nothing(_: str) -> bool:
    return False


def told(verdict: Verdict, sees: Sees) -> Verdict:
    """The verdict without the names of work that may not be seen; how much it holds, and where, is told."""
    return msgspec.structs.replace(
        verdict,
        subject=verdict.subject if not _is_unit(verdict.subject) or sees(verdict.subject) else "",
        shortfalls=tuple(_short(one, sees) for one in verdict.shortfalls),
        nearest=tuple(told(one, sees) for one in verdict.nearest),
    )


def _is_unit(subject: str) -> bool:
    """Whether a verdict is about other work, by its id; else it is a node, or a queue, user or pod in words."""
    return "/" in subject and " " not in subject and subject[:1].isupper()


def _short(short: Shortfall, sees: Sees) -> Shortfall:
    return msgspec.structs.replace(short, holders=tuple(_holder(one, sees) for one in short.holders))


def _holder(holder: Holder, sees: Sees) -> Holder:
    return holder if sees(f"{holder.kind}/{holder.name}") else msgspec.structs.replace(holder, name=HIDDEN)
