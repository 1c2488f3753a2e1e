"""The process in which `--on engine` measures: `python -m muster.bench.engine_process DIRECTORY` prints an Outcome.

What is timed is `Engine.step` alone: taking in pods that are decoded already, deciding, and taking in what became of the
decisions (a placed pod is bound at once, a victim is gone at once). The first tenth of the pods is not timed. Most come in
batches and give the rate. The last tenth is decided one unit at a time and gives the percentiles. One thread; the only clock is
the one that times.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from muster.bench import processes
from muster.bench.handover import Handover
from muster.bench.lines import Outcome, percentile
from muster.bench.workload import CHURN_LABEL, MEASURED, NAMESPACE, Step, uid_of
from muster.controllers.long_runs import tune_for_long_runs
from muster.engine import events as ev
from muster.engine.configuration import default_configuration
from muster.engine.decisions import AnyDecision, Evict, Place, Release
from muster.engine.facts import NodeFacts, PodFacts
from muster.engine.machine import Engine
from muster.engine.registry import Registry

BATCH = 1000
SINGLES_MAX = 1000
IDLE_STEPS_MAX = 50
"""So many steps in a row without a placement end the run: what is left can't be placed."""
_PREFIX = f"{MEASURED}-"

_nodes = msgspec.json.Decoder(NodeFacts)
_pods = msgspec.json.Decoder(PodFacts)


def new_engine() -> Engine:
    """The engine as it comes: the default profile with all its plugins."""
    registry = Registry()
    return Engine(default_configuration(registry).build(registry))


class EngineRun:
    """One workload through one engine. `now` is a count of steps: the engine has no other clock here."""

    def __init__(self, engine: Engine, churn: Sequence[Step], nodes: dict[str, bytes]) -> None:
        """`nodes`: those that churn relabels, encoded."""
        self.engine = engine
        self.placed = 0
        """Measured pods that have a node."""
        self.timed_s = 0.0
        self.decision_s: list[float] = []
        self._churn = list(reversed(churn))
        self._nodes = nodes
        self._feedback: list[ev.AnyEvent] = []
        self._now = 0.0

    def load(self, events: Iterable[ev.AnyEvent]) -> None:
        """Not timed: what is there before the measured pods."""
        for batch in _batches(events, BATCH):
            self._take(self.engine.step([*self._due(), *batch], self._tick()))
        self._settle()

    def measure(self, pods: Iterator[PodFacts], count: int) -> None:
        """Timed in batches."""
        left = count
        while left > 0 and (batch := [ev.PodSeen(pod) for pod in itertools.islice(pods, min(BATCH, left))]):
            left -= len(batch)
            self._timed([*self._due(), *batch])
        self._settle(timed=True)

    def measure_singly(self, pods: Iterable[PodFacts]) -> None:
        """Timed unit by unit: the pods are taken in first, then the engine may try one unit per step."""
        self.engine.step([*self._due(), *(ev.PodSeen(pod) for pod in pods)], self._tick(), units_max=0)
        while self.engine.has_work:
            now, events = self._tick(), self._due()
            if events:
                self.engine.step(events, now, units_max=0)
            started = time.perf_counter()
            decisions = self.engine.step((), now, units_max=1)
            self.decision_s.append(time.perf_counter() - started)
            self._take(decisions)
        self._settle()

    def _timed(self, events: list[ev.AnyEvent]) -> None:
        now = self._tick()
        started = time.perf_counter()
        decisions = self.engine.step(events, now)
        self.timed_s += time.perf_counter() - started
        self._take(decisions)

    def _settle(self, *, timed: bool = False) -> None:
        """Until nothing follows any more. A unit that backs off gets its time."""
        idle = 0
        while (self._feedback or self.engine.has_work) and idle < IDLE_STEPS_MAX:
            before = self.placed
            if timed:
                self._timed(self._due())
            else:
                self._take(self.engine.step(self._due(), self._tick()))
            idle = 0 if self.placed > before else idle + 1

    def _take(self, decisions: Sequence[AnyDecision]) -> None:
        """What the world does about decisions."""
        for decision in decisions:
            match decision:
                case Place(pods=pods):
                    self.placed += sum(pod.name.startswith(_PREFIX) for pod in pods)
                    self._feedback += [ev.Bound(pod.uid) for pod in pods]
                case Evict(victims=victims):
                    self._feedback += [ev.PodGone(victim.uid) for victim in victims]
                case Release(pods=pods):
                    raise RuntimeError(
                        f"unit {decision.unit} gave up {len(pods)} pods, and nothing had failed: {decision.message}"
                    )
                case _:
                    pass

    def _due(self) -> list[ev.AnyEvent]:
        events, self._feedback = self._feedback, []
        while self._churn and self._churn[-1].after_bound <= self.placed:
            events += self._changes(self._churn.pop())
        return events

    def _changes(self, step: Step) -> Iterator[ev.AnyEvent]:
        for name in step.delete_pods:
            yield ev.PodGone(uid_of("Pod", NAMESPACE, name))
        for raw in step.create_nodes:
            yield ev.NodeSeen(msgspec.convert(raw, NodeFacts))
        for name in step.relabel_nodes:
            raw = msgspec.json.decode(self._nodes[name])
            raw["metadata"]["labels"][CHURN_LABEL] = str(step.after_bound)
            yield ev.NodeSeen(msgspec.convert(raw, NodeFacts))
        for raw in step.create_pods:
            yield ev.PodSeen(msgspec.convert(raw, PodFacts))

    def _tick(self) -> float:
        self._now += 1.0
        return self._now


def run(handover: Handover, make: Callable[[], Engine] = new_engine) -> Outcome:
    """`make` gives the engine that is measured."""
    churn = handover.churn()
    relabelled = {name for step in churn for name in step.relabel_nodes}
    nodes = {
        raw["metadata"]["name"]: msgspec.json.encode(raw)
        for raw in handover.raw("nodes")
        if raw["metadata"]["name"] in relabelled
    }
    engine_run = EngineRun(make(), churn, nodes)
    engine_run.load(ev.NodeSeen(_nodes.decode(line)) for line in handover.lines("nodes"))
    for part in ("running", "backlog"):
        engine_run.load(ev.PodSeen(_pods.decode(line)) for line in handover.lines(part))
    count = handover.count(MEASURED)
    singles = min(SINGLES_MAX, count // 10)
    gc.collect()
    pods = (_pods.decode(line) for line in handover.lines(MEASURED))
    # As on kubernetes, the rate is that of the steady state: the first tenth meets every shape for the first time.
    first = count // 10
    engine_run.load(ev.PodSeen(pod) for pod in itertools.islice(pods, first))
    before = engine_run.placed
    cpu_s = time.process_time()
    wall_s = time.perf_counter()
    engine_run.measure(pods, count - singles - first)
    cpu_share = (time.process_time() - cpu_s) / (time.perf_counter() - wall_s)
    in_batches = engine_run.placed - before
    if not in_batches:
        verdict = next(iter(engine_run.engine.verdicts.values()), None)
        raise RuntimeError(f"none of {count} pods was placed; the first verdict: {verdict}")
    engine_run.measure_singly(pods)
    decisions_us = [1e6 * taken_s for taken_s in engine_run.decision_s]
    return Outcome(
        pods_per_s=in_batches / engine_run.timed_s,
        rss_mb=processes.resident_mb([os.getpid()]),
        unbound=count - engine_run.placed,
        decision_p50_us=percentile(decisions_us, 0.5),
        decision_p99_us=percentile(decisions_us, 0.99),
        bound_by=f"one core of Python and NumPy, which it had for {cpu_share:.0%} of the time",
    )


def _batches(events: Iterable[ev.AnyEvent], size: int) -> Iterator[list[ev.AnyEvent]]:
    iterator = iter(events)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


if __name__ == "__main__":
    tune_for_long_runs()  # as every long-lived process of Muster does
    sys.stdout.buffer.write(msgspec.json.encode(run(Handover(Path(sys.argv[1])))) + b"\n")
