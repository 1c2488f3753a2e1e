"""An engine whose steps are recorded, and how the log goes on to the next segment.

When a segment is full, the engine that runs is replaced by one that is made from its own checkpoint, which is what the next
segment begins with. So live and replay start from the same values, by construction and not by care.

Called from the thread that steps the engine; nothing here waits for a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.engine import checkpoint as checkpoints
from muster.engine.decisions import AnyDecision, Evict, Hold, Place
from muster.engine.events import AnyEvent
from muster.engine.machine import Engine
from muster.history.recorder import Recorder

Renew = Callable[[Mapping[str, Any] | None], Engine]
"""A fresh engine with the profiles of this configuration; None: with those that the first one was made with."""


class Recorded:
    def __init__(self, engine: Engine, recorder: Recorder, renew: Renew, *, epoch: int = 0, holder: str = "") -> None:
        """Begins a term: `engine` is empty."""
        self.engine = engine
        self._recorder, self._renew = recorder, renew
        order = type(engine.order.inner).__name__ if engine.order is not None else ""
        recorder.begin(epoch=epoch, holder=holder, configuration=engine.configuration, order=order)

    @property
    def trouble(self) -> str:
        return self._recorder.trouble

    @property
    def is_recording(self) -> bool:
        return self._recorder.is_recording

    def renew_if_due(self) -> bool:
        """Go over to the next segment, and to the engine that it begins with, when it is time; whether it was."""
        if not self._recorder.is_due or (self.engine.has_work and not self._recorder.is_pressing):
            return False
        kept = checkpoints.take(self.engine)
        self.engine = checkpoints.restore(kept, self._renew(kept.configuration))
        self._recorder.rotate(kept)
        return True

    def step(self, events: Sequence[AnyEvent], now: float, *, units_max: int | None = None) -> list[AnyDecision]:
        decisions = self.engine.step(events, now, units_max=units_max)
        self._recorder.step(now, units_max, events, decisions, factors_of(self.engine, decisions))
        return decisions

    def finish(self) -> None:
        self._recorder.finish()


def factors_of(engine: Engine, decisions: Sequence[AnyDecision]) -> Mapping[str, Mapping[str, float]] | None:
    """What the order says about the units that were just given something, if it can say."""
    if engine.order is None or not decisions:
        return None
    ask = getattr(engine.order.inner, "factors_of", None)
    units = [decision.unit for decision in decisions if isinstance(decision, Place | Hold | Evict)]
    if ask is None or not units:
        return None
    try:
        found: Mapping[str, Mapping[str, float]] = ask(units)
    except Exception as error:  # noqa: BLE001 - what explains must not stop what decides
        engine.state.note_fault("the order of waiting work", f"failed at factors_of: {type(error).__name__}: {error}")
        return None
    return found or None
