"""The process in which `muster bench run history` measures: `python -m muster.bench.history_process DIRECTORY PAIRS`.

The same workload goes through two engines at once, step by step: one that records its steps into a directory and one that does
not; nothing else differs. Which of them goes first alternates from step to step. What is counted is CPU time, so that whatever
else the machine does meets both alike: that of the engine's thread for the ratio, which is what deciding is slowed down by, and
beside it with the recorder's own thread, which compresses and writes. The ratio of a run is its own; the median of them is
reported.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from muster.bench import engine_process
from muster.bench.handover import Handover, scratch
from muster.bench.workload import MEASURED
from muster.controllers.long_runs import tune_for_long_runs
from muster.engine import checkpoint as checkpoints
from muster.engine import events as ev
from muster.engine.configuration import default_configuration
from muster.engine.decisions import AnyDecision
from muster.engine.machine import Engine
from muster.engine.registry import Registry
from muster.history.recorder import Recorder
from muster.history.stores import DirectoryStore
from muster.objects.time import wall_clock


class HistoryLine(msgspec.Struct, kw_only=True):
    """One line of `muster bench run history --json`."""

    scenario: str = ""
    nodes: int = 0
    pods: int
    plain_per_s: float
    """Pods per second of the engine thread's CPU time, without recording and with it."""
    recorded_per_s: float
    ratio: float
    """Median over the pairs of the rate with recording to the rate without."""
    pairs: list[tuple[float, float]]
    """The two rates, run by run."""
    process_ratio: float
    """The same ratio when the CPU time of the recorder's thread counts too, as on a machine with one core."""
    cpu_share: float
    """Of the engine thread's CPU time, what goes into handing steps over. Does not depend on who else uses the machine."""
    bytes_per_pod: float
    rotation_ms: float
    """CPU time to take a checkpoint at the end of the run, and to go on with the engine of it."""
    checkpoint_bytes: int


class _Twinned(Engine):
    """Takes every step twice: as a plain engine does, and recorded. All times are CPU time of this thread."""

    plain: Engine
    recorder: Recorder
    plain_s = stepping_s = recording_s = 0.0
    _steps = 0

    def step(self, events: Sequence[ev.AnyEvent], now: float, *, units_max: int | None = None) -> list[AnyDecision]:
        self._steps += 1
        if self._steps % 2:
            expected = self._plainly(events, now, units_max)
            decisions = self._recorded(events, now, units_max)
        else:
            decisions = self._recorded(events, now, units_max)
            expected = self._plainly(events, now, units_max)
        if len(decisions) != len(expected):
            raise RuntimeError(f"step {self._steps}: {len(expected)} decisions, and {len(decisions)} when they are recorded")
        return decisions

    def _plainly(self, events: Sequence[ev.AnyEvent], now: float, units_max: int | None) -> list[AnyDecision]:
        began_s = time.thread_time()
        decisions = self.plain.step(events, now, units_max=units_max)
        self.plain_s += time.thread_time() - began_s
        return decisions

    def _recorded(self, events: Sequence[ev.AnyEvent], now: float, units_max: int | None) -> list[AnyDecision]:
        began_s = time.thread_time()
        decisions = super().step(events, now, units_max=units_max)
        decided_s = time.thread_time()
        self.recorder.step(now, units_max, events, decisions)
        self.stepping_s += decided_s - began_s
        self.recording_s += time.thread_time() - decided_s
        return decisions

    @property
    def recorded_s(self) -> float:
        return self.stepping_s + self.recording_s


def _same(engine: Engine) -> Engine:
    return engine


def run(handover: Handover, pairs: int) -> HistoryLine:
    registry = Registry()
    configuration = default_configuration(registry)
    count = handover.count(MEASURED)
    rates: list[tuple[float, float]] = []
    process_ratios: list[float] = []
    shares: list[float] = []
    written = rotation_s = 0.0
    checkpoint = b""
    for number in range(pairs):
        with scratch() as directory:
            engine = _Twinned(configuration.build(registry))
            engine.plain = Engine(configuration.build(registry))
            recorder = engine.recorder = Recorder(DirectoryStore(directory), clock=wall_clock)
            recorder.begin(configuration=configuration.raw)
            others_s = time.process_time() - time.thread_time()
            engine_process.run(handover, functools.partial(_same, engine))
            if recorder.trouble:
                raise RuntimeError(f"the recorder gave up: {recorder.trouble}")
            recorder.close()
            others_s = time.process_time() - time.thread_time() - others_s
            rates.append((count / engine.recorded_s, count / engine.plain_s))
            process_ratios.append(engine.plain_s / (engine.recorded_s + others_s))
            shares.append(engine.recording_s / engine.recorded_s)
            written = sum(one.stat().st_size for one in directory.iterdir())
            started_s = time.thread_time()
            kept = checkpoints.take(engine)
            checkpoints.restore(kept, Engine(configuration.build(registry)))
            checkpoint = checkpoints.encode(kept)
            rotation_s = time.thread_time() - started_s
        print(f"run {number + 1}: ratio {rates[-1][0] / rates[-1][1]:.2f}", file=sys.stderr, flush=True)
    return HistoryLine(
        pods=count,
        plain_per_s=statistics.median(plain for _, plain in rates),
        recorded_per_s=statistics.median(recorded for recorded, _ in rates),
        ratio=statistics.median(recorded / plain for recorded, plain in rates),
        pairs=rates,
        process_ratio=statistics.median(process_ratios),
        cpu_share=statistics.median(shares),
        bytes_per_pod=written / count,
        rotation_ms=1e3 * rotation_s,
        checkpoint_bytes=len(checkpoint),
    )


if __name__ == "__main__":
    tune_for_long_runs()
    sys.stdout.buffer.write(msgspec.json.encode(run(Handover(Path(sys.argv[1])), int(sys.argv[2]))) + b"\n")
