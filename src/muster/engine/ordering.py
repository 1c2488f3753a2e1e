"""The order as the engine calls it: one that raises is noted in `state.faults`, answers nothing, and stops nobody.

Pure, single-threaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.engine.order import Order, Ranking
from muster.objects.reasons import Verdict

if TYPE_CHECKING:
    from muster.engine.events import AnyEvent
    from muster.engine.plugin import Plugin, PostFilterHelper
    from muster.engine.state import State
    from muster.engine.units import Unit


class Guarded:
    """An `Order` around another. Its plugin, if it has one, observes the state from here on."""

    def __init__(self, order: Order, state: State) -> None:
        self.inner, self._state = order, state
        self._ask("attach", state)
        self.plugin: Plugin | None = order.plugin
        if self.plugin is not None:
            state.tell(self.plugin, "attach", state)
            state.observe(self.plugin)

    def attach(self, state: State) -> None:
        """Done in the beginning."""

    def event(self, event: AnyEvent) -> None:
        self._ask("event", event)

    def joined(self, unit: Unit) -> None:
        self._ask("joined", unit)

    def left(self, unit_id: str) -> None:
        self._ask("left", unit_id)

    def placing(self, names: Sequence[str], helper: PostFilterHelper) -> None:
        self._ask("placing", names, helper)

    def rank(self, now: float) -> Ranking | None:
        ranking: Ranking | None = self._ask("rank", now)
        return ranking

    def refuse(self, unit: Unit, now: float) -> Verdict | None:
        verdict: Verdict | None = self._ask("refuse", unit, now)
        return verdict

    def parked(self, unit: Unit, verdict: Verdict, now: float) -> None:
        self._ask("parked", unit, verdict, now)

    def wakes(self, now: float) -> Iterable[str]:
        return self._ask("wakes", now) or ()

    def next_look(self) -> float | None:
        time: float | None = self._ask("next_look")
        return time

    def checkpoint(self) -> Mapping[str, object]:
        return self._ask("checkpoint") or {}

    def restore(self, kept: Mapping[str, object]) -> None:
        self._ask("restore", kept)

    def _ask(self, point: str, *arguments: Any) -> Any:
        try:
            return getattr(self.inner, point)(*arguments)
        except Exception as error:  # noqa: BLE001 - work goes on without a policy, and somebody is told
            self._state.note_fault("the order of waiting work", f"failed at {point}: {type(error).__name__}: {error}")
            return None
