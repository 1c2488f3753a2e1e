"""What a write did to an object of Muster's, in a few words: for those who later ask who did what. Pure.

Acts on a job's place are told as acts (`objects.acts`), the stage of a KusciaJob by its name, and of the other kinds each value
of the spec that changed, with what it was before. Of a KusciaJob no values are told: its tasks may carry what is private.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from muster.objects.acts import acts_between, standing_of
from muster.objects.labels import KusciaLabel
from muster.objects.meta import labels_of
from muster.objects.status import Raw

JOBS: Final = frozenset({"Job", "KusciaJob"})
KINDS: Final = JOBS | {"Queue", "SchedulingPolicy", "User", "UserGroup", "NodePool"}
TOLD_MAX: Final = 6
"""Values that are told of one write."""
VALUE_CHARS_MAX: Final = 60
_ABSENT: Final = object()


def told_change(kind: str, before: Raw, after: Raw) -> str:
    """From `before` to `after`, both of `kind`; "" where nothing is worth telling."""
    if kind not in KINDS:
        return ""
    told = list(_told(kind, before, after))
    more = len(told) - TOLD_MAX
    return "; ".join(told[:TOLD_MAX]) + (f"; and {more} more" if more > 0 else "")


def _told(kind: str, before: Raw, after: Raw) -> Iterator[str]:
    if kind in JOBS:
        for act in acts_between(*(standing_of({**raw, "kind": kind}) for raw in (before, after))):
            yield str(act)
    if kind == "KusciaJob":
        stage, old = (labels_of(raw).get(KusciaLabel.JOB_STAGE, "") for raw in (after, before))
        if stage and stage != old:
            yield f"stage {stage:.{VALUE_CHARS_MAX}}"
        return
    for path, old_value, value in _differences(before.get("spec") or {}, after.get("spec") or {}, "spec"):
        if not (kind == "Job" and path == "spec.queue"):  # told as a move
            yield f"{path}: {_shown(old_value)} -> {_shown(value)}"


def _differences(before: Any, after: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Lists that differ are told whole."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from _differences(before.get(key, _ABSENT), after.get(key, _ABSENT), f"{path}.{key}")
    elif isinstance(after, dict) and before is _ABSENT:
        yield from _differences({}, after, path)
    elif isinstance(before, dict) and after is _ABSENT:
        yield from _differences(before, {}, path)
    elif before is not after and before != after:
        yield path, before, after


def _shown(value: Any) -> str:
    if value is _ABSENT or value is None:
        return "nothing"
    text = str(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 3] + "..."
