"""What predictions begin with in a new term: runs that ended before it, read from the decision log.

Concurrency: the log is read in a thread, while the scheduler works already. Imports the history only when it is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.controllers.scheduler import Past

if TYPE_CHECKING:
    from muster.engine.facts import RunFacts
    from muster.history.recorder import Recorder

log = logging.getLogger(__name__)


def past_in(history: Recorder | None) -> Past | None:
    """The runs in the log that is written to. A log that can't be read is no reason not to schedule."""
    if history is None:
        return None

    async def past(until: float) -> Sequence[RunFacts]:
        from muster.history.queries import recent_runs
        from muster.history.reader import Log
        from muster.history.segments import SegmentDamaged

        try:
            return await asyncio.to_thread(recent_runs, Log(history.store), until)
        except (OSError, SegmentDamaged) as error:
            log.warning("predictions begin without the runs of the past, as the decision log can't be read: %s", error)
            return ()

    return past
