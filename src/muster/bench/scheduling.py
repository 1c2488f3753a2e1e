"""Muster's scheduler as benchmarks run it: the real controller, with a stopwatch around the engine's steps.

A step of the shell decides many units at once, so the time of one decision is its step's divided by the number of them; the
percentiles are over decisions. Only steps that decided something count. One event loop, no locks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from muster.bench.lines import DecisionTimes, percentile
from muster.controllers.runtime import Runnable
from muster.controllers.scheduler import Scheduler
from muster.engine import events as ev
from muster.engine.configuration import default_configuration, read
from muster.engine.decisions import AnyDecision
from muster.engine.machine import Engine
from muster.engine.registry import Registry


class Timed:
    """The stopwatch. `total_s` holds all steps, those that only took events in included."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._decision_us: list[float] = []

    def add(self, taken_s: float, decisions: int) -> None:
        self.total_s += taken_s
        if decisions:
            self._decision_us += [1e6 * taken_s / decisions] * decisions

    def times(self) -> DecisionTimes:
        return DecisionTimes(
            decisions=len(self._decision_us),
            p50_us=percentile(self._decision_us, 0.5),
            p99_us=percentile(self._decision_us, 0.99),
        )


class _TimedEngine(Engine):
    timed: Timed

    def step(self, events: Sequence[ev.AnyEvent], now: float, *, units_max: int | None = None) -> list[AnyDecision]:
        started = time.perf_counter()
        decisions = super().step(events, now, units_max=units_max)
        self.timed.add(time.perf_counter() - started, len(decisions))
        return decisions


def scheduler_controllers(timed: Timed) -> list[Runnable]:
    """What a `Manager` is to run: the scheduler with its default profile. Loads the plugins' code, before any clock runs."""
    registry = Registry()
    configuration = default_configuration(registry)
    configuration.build(registry)

    def engine() -> Engine:
        made = _TimedEngine(configuration.build(registry), configure=lambda document: read(document, registry).build(registry))
        made.timed = timed
        return made

    return [Scheduler(engine=engine)]
