"""The process of `muster bench run queues`: `python -m muster.bench.queues_process QUEUES PER_QUEUE NODES POLICY`.

Workloads of three classes (small, medium, large) wait in queues, six of which share a parent; all are there in the beginning.
The engine, with the default profile and the order of queues and policies, places them on simulated nodes; each runs for as long
as its class does, and ends. The clock is the CPU time that the engine has used: what ends while it thinks is told with its next
step, as in a real cluster, and other processes on the machine change nothing. While there is nothing to do the clock is put
forward, which does not count.
"""

from __future__ import annotations

import gc
import heapq
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from muster.bench.lines import percentile
from muster.bench.queues_workload import NAMESPACE, NODE_AMOUNTS, Class, class_of, queue_manifests, queue_name
from muster.controllers.long_runs import tune_for_long_runs
from muster.engine import events as ev
from muster.engine.configuration import DEFAULT_NAME, default_configuration
from muster.engine.decisions import AnyDecision, Evict, Place
from muster.engine.facts import NodeFacts, PodFacts, PolicyFacts, QueueFacts
from muster.engine.machine import Engine
from muster.engine.registry import Registry
from muster.engine.work import Work, encode_work
from muster.objects.labels import Muster
from muster.policy.builtin import builtin_policies
from muster.policy.order import PolicyOrder

BATCH: Final = 1000
ORDERINGS: Final = 9
SAY_EVERY_S: Final = 10.0


class QueuesLine(msgspec.Struct, kw_only=True):
    """One line of `muster bench run queues --json`."""

    on: str = "engine"
    queues: int
    workloads: int
    nodes: int
    policy: str
    per_s: float
    """Workloads admitted per second of CPU time, from the first arrival until all have been placed."""
    cpu_s: float
    steps: int
    step_p50_ms: float
    step_p99_ms: float
    step_max_ms: float
    order_len: int
    """Units that wait when all have arrived."""
    order_ms: float
    """To put all of them in order, by every factor of the policy: the median of a few times."""
    evicted: int


class _Run:
    def __init__(self, queues: int, per_queue: int, nodes: int, policy: str) -> None:
        registry = Registry()
        self._order = PolicyOrder()
        self._engine = Engine(default_configuration(registry).build(registry), order=self._order)
        self._cpu_s = self._skipped_s = self._said_s = 0.0
        self._ends: list[tuple[float, str]] = []
        self._running: dict[str, tuple[float, str]] = {}
        self._runs_s: dict[str, float] = {}
        self._pods: dict[str, PodFacts] = {}
        self._again: list[ev.AnyEvent] = []
        self._admitted: set[str] = set()
        self._count = queues * per_queue
        self._evicted = 0
        self._steps: list[float] = []
        self._load(queues, nodes, policy)
        for number in range(per_queue):
            for queue in range(queues):
                self._add(queue, number)
        self._line = QueuesLine(
            queues=queues,
            workloads=self._count,
            nodes=nodes,
            policy=policy,
            per_s=0.0,
            cpu_s=0.0,
            steps=0,
            step_p50_ms=0.0,
            step_p99_ms=0.0,
            step_max_ms=0.0,
            order_len=0,
            order_ms=0.0,
            evicted=0,
        )

    def _load(self, queues: int, nodes: int, policy: str) -> None:
        """Not timed: nodes, the policy and the queues."""
        made: list[ev.AnyEvent] = [ev.NodeSeen(_node(number)) for number in range(nodes)]
        made.append(ev.PolicySeen(msgspec.convert(builtin_policies()[policy], PolicyFacts)))
        made += [ev.QueueSeen(msgspec.convert(raw, QueueFacts)) for raw in queue_manifests(queues, nodes, policy)]
        for batch in _batches(made):
            self._engine.step(batch, 0.0)

    def _add(self, queue: int, number: int) -> None:
        kind = class_of(queue, number)
        pod = _pod(f"q{queue}-{kind.name}-{number}", queue_name(queue), kind)
        self._pods[pod.metadata.uid] = pod
        self._runs_s[pod.metadata.uid] = kind.runs_s

    def run(self) -> QueuesLine:
        arrivals = _batches([ev.PodSeen(pod) for pod in self._pods.values()])
        gc.collect()
        arrived = 0
        while len(self._admitted) < self._count:
            new = next(arrivals, ())
            events: list[ev.AnyEvent] = [*self._again, *new]
            self._again = []
            events += self._ended()
            if not events:
                if not self._ends:
                    raise RuntimeError(self._stuck())
                # Nothing to do until the next one ends.
                self._skipped_s += max(self._ends[0][0] - self._now, 0.0)
                continue
            self._step(events)
            if arrived < self._count <= (arrived := arrived + len(new)):
                self._time_ordering()
            if self._cpu_s - self._said_s >= SAY_EVERY_S:
                self._said_s = self._cpu_s
                print(f"{self._cpu_s:.0f} s of CPU: {len(self._admitted):,} admitted", file=sys.stderr, flush=True)
        steps = [1e3 * taken_s for taken_s in self._steps]
        return msgspec.structs.replace(
            self._line,
            per_s=self._count / self._cpu_s,
            cpu_s=self._cpu_s,
            steps=len(steps),
            step_p50_ms=percentile(steps, 0.5),
            step_p99_ms=percentile(steps, 0.99),
            step_max_ms=max(steps),
            evicted=self._evicted,
        )

    @property
    def _now(self) -> float:
        return self._cpu_s + self._skipped_s

    def _ended(self) -> Iterator[ev.AnyEvent]:
        now = self._now
        while self._ends and self._ends[0][0] <= now:
            end, uid = heapq.heappop(self._ends)
            if self._running.get(uid) == (end, uid):
                del self._running[uid]
                yield ev.PodGone(uid)

    def _step(self, events: Sequence[ev.AnyEvent]) -> None:
        now = self._now
        started_s = time.process_time()
        decisions = self._engine.step(events, now)
        taken_s = time.process_time() - started_s
        self._cpu_s += taken_s
        self._steps.append(taken_s)
        if self._engine.state.faults:
            raise RuntimeError(f"the engine noted a fault: {self._engine.state.faults}")
        for decision in decisions:
            self._take(decision)

    def _time_ordering(self) -> None:
        """Not a part of the run: its time is not counted, and it changes nothing."""
        order, taken_ms = self._order, list[float]()
        for _ in range(ORDERINGS):
            started_s = time.process_time()
            ranked = order.ranker.rank(order.book.line, self._now, order.views.of)
            taken_ms.append(1e3 * (time.process_time() - started_s))
        self._line = msgspec.structs.replace(self._line, order_len=len(ranked.rows), order_ms=percentile(taken_ms, 0.5))

    def _take(self, decision: AnyDecision) -> None:
        match decision:
            case Place(pods=pods):
                for placed in pods:
                    self._admitted.add(placed.uid)
                    entry = self._running[placed.uid] = (self._now + self._runs_s[placed.uid], placed.uid)
                    heapq.heappush(self._ends, entry)
                    self._again.append(ev.Bound(placed.uid))
            case Evict(victims=victims):
                for victim in victims:
                    self._evicted += 1
                    del self._running[victim.uid]
                    self._again += [ev.PodGone(victim.uid), ev.PodSeen(self._pods[victim.uid])]
            case _:
                pass

    def _stuck(self) -> str:
        verdict = next(iter(self._engine.verdicts.items()), None)
        return f"{self._count - len(self._admitted)} workloads wait, and nothing runs; the first verdict: {verdict}"


def _batches(events: Sequence[ev.AnyEvent]) -> Iterator[Sequence[ev.AnyEvent]]:
    for first in range(0, len(events), BATCH):
        yield events[first : first + BATCH]


def _node(number: int) -> NodeFacts:
    name = f"node-{number}"
    raw = {"metadata": {"name": name, "uid": name}, "status": {"capacity": NODE_AMOUNTS, "allocatable": NODE_AMOUNTS}}
    return msgspec.convert(raw, NodeFacts)


def _pod(name: str, queue: str, kind: Class) -> PodFacts:
    work = encode_work(Work(queue=queue, level=kind.level, estimate_s=kind.runs_s, submitted=1e-3))
    spec = {
        "schedulerName": DEFAULT_NAME,
        "containers": [{"name": "main", "resources": {"requests": {"cpu": str(kind.cpus)}}}],
    }
    meta = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "annotations": {Muster.WORK: work}}
    return msgspec.convert({"metadata": meta, "spec": spec}, PodFacts)


def run(queues: int, per_queue: int, nodes: int, policy: str) -> QueuesLine:
    return _Run(queues, per_queue, nodes, policy).run()


if __name__ == "__main__":
    tune_for_long_runs()
    found = run(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
