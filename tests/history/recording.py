"""Recorded runs, for tests: engines with a configuration, stores in a directory, histories and scenarios that leave a log."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster.engine import checkpoint as checkpoints
from muster.engine import decisions as de
from muster.engine import events as ev
from muster.engine.configuration import default_configuration, read
from muster.engine.machine import Engine
from muster.engine.registry import Registry
from muster.history.reader import Log
from muster.history.recorder import HistoryLimits, Recorder
from muster.history.recording import Recorded, factors_of
from muster.history.replaying import MakeEngine, engines, known_orders
from muster.history.segments import Sink
from muster.history.stores import DirectoryStore
from muster.policy.order import PolicyOrder
from tests.engine.histories import Move, Run

REGISTRY = Registry()
CONFIGURATION = default_configuration(REGISTRY).raw
NEVER = HistoryLimits(flush_s=60.0)
"""Segments end only when a test says so."""


def make_engine(document: Mapping[str, Any] | None = None) -> Engine:
    """As the scheduler makes it."""
    raw = CONFIGURATION if document is None else document
    engine = Engine(read(raw, REGISTRY).build(REGISTRY), configure=lambda later: read(later, REGISTRY).build(REGISTRY))
    engine.configuration = raw
    return engine


def make_ordered(document: Mapping[str, Any] | None = None) -> Engine:
    """The same, with the order of work that the scheduler uses."""
    raw = CONFIGURATION if document is None else document
    configure = lambda later: read(later, REGISTRY).build(REGISTRY)  # noqa: E731
    engine = Engine(read(raw, REGISTRY).build(REGISTRY), configure=configure, order=PolicyOrder())
    engine.configuration = raw
    return engine


def maker() -> MakeEngine:
    return engines(REGISTRY, known_orders())


class Ticking:
    """A clock that a test moves."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@contextmanager
def recording(path: Path, limits: HistoryLimits = NEVER, clock: Callable[[], float] | None = None) -> Iterator[Recorder]:
    recorder = Recorder(DirectoryStore(path), clock=clock or Ticking(), limits=limits)
    try:
        yield recorder
    finally:
        recorder.close()


class RecordedEngine(Engine):
    """An engine that records its own steps, and takes up its own checkpoint before each step of a number in `renew_at`."""

    recorder: Recorder
    renew_at: Sequence[int] = ()
    _steps = 0
    _now_in: Engine | None = None

    @classmethod
    def begun(cls, recorder: Recorder, renew_at: Sequence[int] = ()) -> RecordedEngine:
        engine = cls(read(CONFIGURATION, REGISTRY).build(REGISTRY))
        engine.configuration, engine.recorder, engine.renew_at = CONFIGURATION, recorder, renew_at
        recorder.begin(configuration=CONFIGURATION, holder="test")
        return engine

    def step(self, events: Sequence[ev.AnyEvent], now: float, *, units_max: int | None = None) -> list[de.AnyDecision]:
        self._steps += 1
        if self._steps in self.renew_at:
            kept = checkpoints.take(self)
            fresh = RecordedEngine(read(CONFIGURATION, REGISTRY).build(REGISTRY))
            fresh.configuration, fresh.recorder = CONFIGURATION, self.recorder
            fresh.renew_at, fresh._steps = self.renew_at, self._steps
            # Whoever holds this one goes on with what is in the other.
            self.__dict__ = checkpoints.restore(kept, fresh).__dict__
            self._rebind(fresh)
            self.recorder.rotate(kept)
        decisions = super().step(events, now, units_max=units_max)
        self.recorder.step(now, units_max, events, decisions)
        return decisions

    def _rebind(self, fresh: Engine) -> None:
        """The parts of `fresh` that ask their engine now ask this one."""
        self._holds._cycle_of = self._cycle_of
        self._roster._serves = self._serves


def play_recorded(
    history: list[Move],
    path: Path,
    *,
    cuts: Sequence[int] = (),
    make: Callable[[], Engine] = make_engine,
    first: Sequence[ev.AnyEvent] = (),
) -> Run:
    """A history, recorded; after the steps `cuts` the log goes on in another segment. `first` comes before it."""
    with recording(path) as recorder:
        recorded = Recorded(make(), recorder, lambda _document: make())
        recorded.step(first, 0.0)
        run = Run(recorded.engine)

        def after(run: Run, made: list[de.AnyDecision]) -> None:
            after.steps += 1  # type: ignore[attr-defined]
            recorder.step(run.now, None, run.batch, made, factors_of(run.engine, made))
            if after.steps in cuts:  # type: ignore[attr-defined]
                kept = checkpoints.take(run.engine)
                run.engine = checkpoints.restore(kept, make())
                recorder.rotate(kept)

        after.steps = 0  # type: ignore[attr-defined]
        run.after = after
        return run.play(history)


def log_at(path: Path) -> Log:
    return Log(DirectoryStore(path))


class MemorySink:
    """For segments that only a test sees."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def sync(self) -> None: ...
    def close(self) -> None: ...

    def file(self) -> io.BytesIO:
        return io.BytesIO(self.data)


def _is_sink(sink: MemorySink) -> Sink:
    return sink
