"""`replay(log) == log`: the recorded events through the engine again, and every decision compared.

Each segment is replayed on its own: an engine is made from the configuration in its header, filled from its checkpoint if it
has one, and stepped with exactly the events, times and bounds that were recorded. Decisions are equal when their bytes are
(`decisions.encode`). The first that is not ends the replay, and is shown beside what came out now.

Blocking, single-threaded. The engine is the real one; nothing here decides anything.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from muster import __version__
from muster.engine import checkpoint as checkpoints
from muster.engine import decisions as de
from muster.engine.configuration import ConfigurationInvalid, read
from muster.engine.machine import Engine
from muster.engine.order import Order
from muster.engine.registry import Registry, discover
from muster.history import records
from muster.history.reader import Finding, Log, Segment
from muster.history.records import Step
from muster.objects.time import format_micro_time

MakeEngine = Callable[[Mapping[str, Any] | None, str], Engine]
"""An empty engine for a configuration (None: whatever the caller's own engines have) and the name of an order ("" for none)."""

_DIFF_LINES_MAX = 200
_PROGRESS_STEPS = 100


class NotReplayable(Exception):
    """The log is whole, and this program can't run it; the message says why and what to do."""


class Difference(msgspec.Struct, frozen=True):
    """The first step that came out otherwise."""

    segment: str
    step: int
    """Its number in the segment, from 1."""
    now: float
    recorded: tuple[de.AnyDecision, ...]
    replayed: tuple[de.AnyDecision, ...]
    events: int

    def text(self) -> str:
        """For people: what was recorded and what came out, line by line."""
        lines = difflib.unified_diff(
            list(_shown(self.recorded)), list(_shown(self.replayed)), "recorded", "replayed", lineterm="", n=2
        )
        shown = [line for _, line in zip(range(_DIFF_LINES_MAX), lines, strict=False)]
        at = format_micro_time(self.now) if self.now > 1e6 else f"{self.now:g}"
        head = f"{self.segment}: step {self.step}, at {at}, with {self.events} events, decides otherwise:"
        return "\n".join([head, *shown])


def _shown(decisions: Sequence[de.AnyDecision]) -> Iterator[str]:
    for number, decision in enumerate(decisions, 1):
        yield f"decision {number}: {type(decision).__name__} {decision.unit}"
        yield from msgspec.json.format(de.encode(decision), indent=2).decode().splitlines()


class Outcome(msgspec.Struct, frozen=True):
    """Of a whole replay. `difference` is None when every decision was equal."""

    difference: Difference | None
    segments: int
    steps: int
    events: int
    decisions: int
    findings: tuple[Finding, ...]

    @property
    def is_equal(self) -> bool:
        return self.difference is None


class Progress(msgspec.Struct):
    """So far, for whoever watches."""

    segment: str = ""
    segments: int = 0
    segments_in_all: int = 0
    steps: int = 0
    events: int = 0
    decisions: int = 0


Watch = Callable[[Progress], None]


def engines(registry: Registry | None = None, orders: Mapping[str, Callable[[], Order]] | None = None) -> MakeEngine:
    """Makes engines as the scheduler does, from a recorded configuration."""
    known = registry or discover()

    def make(document: Mapping[str, Any] | None, order: str) -> Engine:
        if document is None:
            raise NotReplayable("the log was written by an engine that was made without a configuration, which is not in it")
        if order and order not in (orders or {}):
            raise NotReplayable(
                f"the work was ranked by {order!r}, which this program does not have; use the release that wrote it"
            )
        try:
            profiles = read(document, known).build(known)
        except ConfigurationInvalid as error:
            raise NotReplayable(f"the recorded configuration can't be used here: {'; '.join(error.errors)}") from error
        engine = Engine(
            profiles,
            configure=lambda later: read(later, known).build(known),
            order=orders[order]() if orders and order else None,
        )
        engine.configuration = document
        return engine

    return make


def known_orders() -> Mapping[str, Callable[[], Order]]:
    """Orders of waiting work that this release has, by the name in the header."""
    from muster.policy.order import PolicyOrder, UnlearnedOrder

    return {PolicyOrder.__name__: PolicyOrder, UnlearnedOrder.__name__: UnlearnedOrder}


def begin(segment: Segment, make: MakeEngine) -> Engine | None:
    """The engine as it was at the beginning of the segment; None when nothing of it can be replayed."""
    if not segment.is_usable:
        return None
    engine = make(segment.header.configuration, segment.header.order)
    kept = segment.checkpoint()
    return checkpoints.restore(kept, engine) if kept is not None else engine


def replay(
    log: Log, make: MakeEngine, *, start: float | None = None, stop: float | None = None, watch: Watch | None = None
) -> Outcome:
    """Replay all segments that may have steps from `start` to `stop`; steps after `stop` are left out. SegmentDamaged and
    NotReplayable when it can't go on."""
    progress = Progress()
    findings: list[Finding] = list(log.gaps())
    names = log.between(start, stop)
    progress.segments_in_all = len(names)
    difference: Difference | None = None
    for name in names:
        progress.segments += 1
        progress.segment = str(name)
        with log.open(name) as segment:
            if segment.is_usable and segment.header.muster != __version__:
                text = f"was written by muster {segment.header.muster}, and this is {__version__}"
                findings.append(Finding(str(name), text, is_loss=False))
            difference = _replay_segment(segment, make, stop, progress, watch)
            findings += segment.findings
        if difference is not None:
            break
    if watch is not None:
        watch(progress)
    return Outcome(difference, progress.segments, progress.steps, progress.events, progress.decisions, tuple(findings))


def _replay_segment(
    segment: Segment, make: MakeEngine, stop: float | None, progress: Progress, watch: Watch | None
) -> Difference | None:
    if segment.header.is_aside:
        return None
    engine = begin(segment, make)
    if engine is None:
        segment.findings.append(Finding(segment.name, segment.nothing_in_it, is_loss=False))
        return None
    for number, step in enumerate(segment.steps(), 1):
        if stop is not None and step.now > stop:
            break
        made = engine.step(step.events, step.now, units_max=step.units_max)
        if not is_equal(step, made):
            return Difference(segment.name, number, step.now, tuple(step.decisions), tuple(made), len(step.events))
        progress.steps += 1
        progress.events += len(step.events)
        progress.decisions += len(made)
        if watch is not None and progress.steps % _PROGRESS_STEPS == 0:
            watch(progress)
    return None


def is_equal(step: Step, made: Sequence[de.AnyDecision]) -> bool:
    """To the byte, once both have gone through the log: it knows no difference between 2 and 2.0 where a float is meant."""
    if len(made) != len(step.decisions):
        return False
    again = records.as_recorded(made)
    return all(de.encode(mine) == de.encode(recorded) for mine, recorded in zip(again, step.decisions, strict=True))
