"""The process in which `muster bench run history` measures: `python -m muster.bench.history_process DIRECTORY PAIRS`.

The same workload goes through two engines in turn, one that records its steps into a directory and one that does not; nothing
else differs. What is timed is as in `engine_process`, plus, for the first, the handing over of each step. Compression and
writing happen in a thread of the recorder's own, beside. The ratio of a pair is its own; the median of them is reported.
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
    recorded_per_s: float
    ratio: float
    """Median over the pairs of the rate with recording to the rate without."""
    pairs: list[tuple[float, float]]
    cpu_share: float
    """Of the engine thread's CPU time, what goes into handing steps over. Does not depend on who else uses the machine."""
    bytes_per_pod: float
    rotation_ms: float
    """CPU time to take a checkpoint at the end of the run, and to go on with the engine of it."""
    checkpoint_bytes: int


class _Recording(Engine):
    recorder: Recorder
    stepping_s = recording_s = 0.0
    """CPU time of this thread."""

    def step(self, events: Sequence[ev.AnyEvent], now: float, *, units_max: int | None = None) -> list[AnyDecision]:
        began_s = time.thread_time()
        decisions = super().step(events, now, units_max=units_max)
        decided_s = time.thread_time()
        self.recorder.step(now, units_max, events, decisions)
        self.stepping_s += decided_s - began_s
        self.recording_s += time.thread_time() - decided_s
        return decisions


def _same(engine: Engine) -> Engine:
    return engine


def run(handover: Handover, pairs: int) -> HistoryLine:
    registry = Registry()
    configuration = default_configuration(registry)
    count = handover.count(MEASURED)
    rates: list[tuple[float, float]] = []
    written = rotation_s = cpu_share = 0.0
    checkpoint = b""
    for number in range(pairs):
        both: dict[bool, float] = {}
        for is_recorded in (True, False) if number % 2 else (False, True):
            if not is_recorded:
                both[is_recorded] = engine_process.run(handover, lambda: Engine(configuration.build(registry))).pods_per_s
                continue
            with scratch() as directory:
                recorder = Recorder(DirectoryStore(directory), clock=wall_clock)
                engine = _Recording(configuration.build(registry))
                engine.recorder = recorder
                recorder.begin(configuration=configuration.raw)
                both[is_recorded] = engine_process.run(handover, functools.partial(_same, engine)).pods_per_s
                if recorder.trouble:
                    raise RuntimeError(f"the recorder gave up: {recorder.trouble}")
                recorder.close()
                cpu_share = engine.recording_s / (engine.recording_s + engine.stepping_s)
                written = sum(one.stat().st_size for one in directory.iterdir())
                started = time.thread_time()
                kept = checkpoints.take(engine)
                checkpoints.restore(kept, Engine(configuration.build(registry)))
                checkpoint = checkpoints.encode(kept)
                rotation_s = time.thread_time() - started
        rates.append((both[True], both[False]))
    return HistoryLine(
        pods=count,
        plain_per_s=statistics.median(plain for _, plain in rates),
        recorded_per_s=statistics.median(recorded for recorded, _ in rates),
        ratio=statistics.median(recorded / plain for recorded, plain in rates),
        pairs=rates,
        cpu_share=cpu_share,
        bytes_per_pod=written / count,
        rotation_ms=1e3 * rotation_s,
        checkpoint_bytes=len(checkpoint),
    )


if __name__ == "__main__":
    tune_for_long_runs()
    sys.stdout.buffer.write(msgspec.json.encode(run(Handover(Path(sys.argv[1])), int(sys.argv[2]))) + b"\n")
