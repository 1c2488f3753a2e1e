"""Says when decisions are not recorded any more, and when they are again: an Event on the namespace of the system.

The scheduler goes on without its log (see `history.recorder`), so nothing that waits or runs would show it. Metrics and
`muster status` tell the state; the Event tells the moment, to whoever looks at events.

Concurrency: called on the scheduler's task after each step. Says each change once.
"""

from __future__ import annotations

from typing import Final

from muster.objects.names import NAMESPACE_SYSTEM
from muster.objects.reasons import Reason
from muster.objects.status import Raw
from muster.store.events import NORMAL, WARNING, EventRecorder

_REGARDING: Final[Raw] = {"apiVersion": "v1", "kind": "Namespace", "name": NAMESPACE_SYSTEM}


class LogWatch:
    def __init__(self, recorder: EventRecorder | None) -> None:
        self._recorder = recorder
        self._is_told = False
        """That nothing is recorded."""

    def look(self, trouble: str, *, is_recording: bool) -> None:
        """`trouble` is why nothing is recorded; "" while all is well, or a new try is under way."""
        if self._recorder is None or (self._is_told and not is_recording) or (not self._is_told and not trouble):
            return
        self._is_told = not self._is_told
        if self._is_told:
            message = f"the decision log can't be written: {trouble}; work is scheduled as ever, and what is decided meanwhile "
            message += "will be missing from history and replay; make room, or mend the place that --history names"
            self._recorder.event(_REGARDING, WARNING, Reason.DECISIONS_NOT_RECORDED.value, message)
        else:
            message = "decisions are recorded again, in a new segment that says how many are missing before it"
            self._recorder.event(_REGARDING, NORMAL, Reason.DECISIONS_RECORDED.value, message)
