"""The scheduler: the shell around the engine. Informers feed events in, decisions come out and are carried out.

    informers -> Feed -> Engine.step -> Binder (bindings in flight), Plans (units of several pods), Evictor, Board (reports)
                  ^                          |
                  +--- Bound, BindFailed, EvictFailed

Concurrency: everything runs on one event loop. One task takes events and steps the engine, a bounded number of units at a time,
so that the loop breathes; it sleeps until something happens or the engine's next deadline. Binder, plans, evictions and reports
have tasks of their own, and talk back through the feed.

Invariants:
- all that the engine knows comes from the objects: a run begins with an empty engine and the caches, so that a restart or a new
  leader needs nothing but the store; half-bound plans of the last one are finished or undone first;
- a new leader decides nothing before its caches hold all that was bound before (`catch_up`);
- what was decided stays counted until its binding has a certain outcome;
- only pods that name one of our profiles are bound. Where no other scheduler is (`is_sole`), pods that name none are ours too,
  and one that names a scheduler that there is not is told so;
- a profile in shadow mode writes events and nothing else. The engine keeps counting its decision until the pod is seen on the
  node where its real scheduler put it, so that the decisions after it are those that a real run would make.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from muster.objects.time import Clock

if TYPE_CHECKING:
    from muster.controllers.scheduler_binding import CustomBinder
    from muster.controllers.scheduler_running import SchedulerRunner
    from muster.engine.facts import RunFacts
    from muster.engine.machine import Engine
    from muster.history.recorder import Recorder
    from muster.store.events import EventRecorder
    from muster.store.hub import InformerHub


Past = Callable[[float], Awaitable[Sequence["RunFacts"]]]
"""Runs that ended before an instant, oldest first: what predictions begin with."""


class SchedulerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`units_max` and `events_max` per step; beyond `bindings_max` pods under way nothing new is decided."""

    units_max: int = 256
    events_max: int = 4_096
    bindings_max: int = 8_192
    missing_kinds_s: float = 60.0
    """How often to ask for kinds that the store did not serve."""


class Scheduler:
    """What a manager is given. Importing this is cheap: the engine comes with the first runner.

    `file_text` is the configuration in force where there is no ConfigMap; `is_sole` says that nobody else schedules; `engine`,
    for tests and experiments, replaces configuration altogether. `binders` are plugins' own ways of binding, by plugin. With
    `history`, every step is recorded there; whoever made the recorder closes it. `past` is asked once in each term for runs
    that ended before it, and must not fail.
    """

    name = "scheduler"

    def __init__(
        self,
        *,
        file_text: str | None = None,
        is_sole: bool = False,
        engine: Callable[[], Engine] | None = None,
        limits: SchedulerLimits | None = None,
        binders: Mapping[str, CustomBinder] | None = None,
        history: Recorder | None = None,
        past: Past | None = None,
    ) -> None:
        self.file_text = file_text
        self.is_sole = is_sole
        self.engine = engine
        self.limits = limits or SchedulerLimits()
        self.binders = binders or {}
        self.history = history
        self.past = past
        self._runner: SchedulerRunner | None = None

    def runner(self, hub: InformerHub, *, clock: Clock, recorder: EventRecorder | None = None) -> SchedulerRunner:
        """Raises ConfigurationInvalid when `file_text` is wrong."""
        from muster.controllers.scheduler_running import SchedulerRunner

        self._runner = SchedulerRunner(self, hub, clock=clock, recorder=recorder)
        return self._runner

    def live_engine(self) -> Engine | None:
        """See `SchedulerRunner.live_engine`."""
        return self._runner.live_engine if self._runner is not None else None
