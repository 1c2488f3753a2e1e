"""The engine as it was at a past moment: the segment that covers it, replayed up to then.

Blocking, single-threaded. Nothing is compared: `replaying` does that.
"""

from __future__ import annotations

from muster.engine.machine import Engine
from muster.history.reader import Log
from muster.history.replaying import MakeEngine, begin


def engine_at(log: Log, make: MakeEngine, instant: float) -> Engine | None:
    """With all that was decided and seen up to `instant`; None when the log has nothing from before it."""
    for name in reversed(log.between(None, instant)):
        with log.open(name) as segment:
            engine = begin(segment, make)
            if engine is None or engine.state.now > instant:
                continue  # nothing is in it, or it goes on from a later moment
            has_begun = segment.checkpoint() is not None
            for step in segment.steps():
                if step.now > instant:
                    break
                engine.step(step.events, step.now, units_max=step.units_max)
                has_begun = True
            if has_begun:
                return engine
    return None
