"""The process in which `--on embedded` measures: `python -m muster.bench.embedded_process DIRECTORY` prints an Outcome.

Store and scheduler share the process and its event loop, as in `muster up`; no HTTP in between. Objects are created first. The
clock runs from the start of the scheduler, with its caches empty, until the last binding is on disk: what is not is not shown
by the store. Memory is that of both.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import uvloop

from muster.bench import processes
from muster.bench.filling import NODES, PODS, resource_of
from muster.bench.handover import Handover
from muster.bench.lines import Outcome
from muster.bench.scheduling import Timed, scheduler_controllers
from muster.bench.workload import CHURN_LABEL, MEASURED, NAMESPACE, ROLE, Step
from muster.controllers.long_runs import tune_for_long_runs
from muster.controllers.manager import Manager
from muster.objects.status import NotFound, Raw
from muster.objects.time import wall_clock
from muster.store.contract import EventType, Operation
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.collection import Collection
from muster.store.embedded.records import Event, Record

CHUNK = 200
STALL_S = 60.0


async def run(handover: Handover) -> Outcome:
    # On the disk, not in memory: that a binding is durable is what this place is about.
    with tempfile.TemporaryDirectory(prefix="muster-bench-store-") as directory:
        store = await EmbeddedStore.open(Path(directory), clock=wall_clock)
        try:
            started = time.monotonic()
            for part in ("namespaces", "priority_classes", "nodes", "running", "backlog", MEASURED):
                await _create(store, handover.raw(part))
            _say(f"created everything in {time.monotonic() - started:.1f} s")
            return await _measure(store, handover)
        finally:
            await store.close()


async def _measure(store: EmbeddedStore, handover: Handover) -> Outcome:
    count = handover.count(MEASURED)
    timed = Timed()
    manager = Manager(store, scheduler_controllers(timed), clock=wall_clock)
    counter = _Counter(store, handover.churn())
    counting = asyncio.create_task(counter.run(), name="bound pods")
    await asyncio.sleep(0)
    cpu_s, started = time.process_time(), time.monotonic()
    manager.start()
    try:
        while counter.bound_len < count and await counter.moved():
            pass
        took_s = (counter.last_s if counter.bound_len else time.monotonic()) - started
        cpu_share = (time.process_time() - cpu_s) / (time.monotonic() - started)
        resident_mb = processes.resident_mb([os.getpid()])
    finally:
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        await manager.stop()
    if not counter.bound_len:
        raise RuntimeError(f"none of {count} pods was bound in {STALL_S:.0f} s; health: {manager.health()}")
    times = timed.times()
    return Outcome(
        pods_per_s=counter.bound_len / took_s,
        rss_mb=resident_mb,
        unbound=count - counter.bound_len,
        decision_p50_us=times.p50_us,
        decision_p99_us=times.p99_us,
        bound_by=f"one core of Python, busy for {cpu_share:.0%} of the time; {timed.total_s / took_s:.0%} of it deciding",
    )


class _Counter:
    """Counts measured pods as their bindings become durable, and makes the changes that churn asks for."""

    def __init__(self, store: EmbeddedStore, churn: list[Step]) -> None:
        self.bound_len = 0
        self.last_s = 0.0
        """When the last of them was bound."""
        self._store = store
        self._churn = list(reversed(churn))
        self._changed = asyncio.Event()
        self._due = asyncio.Event()

    async def moved(self) -> bool:
        """Whether another pod was bound before the patience ended."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), STALL_S)
        return self._changed.is_set()

    async def run(self) -> None:
        """Until cancelled."""
        self._store.listeners.append(self._note)
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                while self._churn and self._churn[-1].after_bound <= self.bound_len:
                    await self._make(self._churn.pop())
        finally:
            self._store.listeners.remove(self._note)

    def _note(self, collection: Collection, event: Event) -> None:
        """Called for each change when it is on disk, so it has to be quick: the time that it takes counts."""
        if collection.id != PODS.qualified or event.type is not EventType.MODIFIED:
            return
        if event.record.labels.get(ROLE) != MEASURED or _node(event.record) == "" or _node(event.previous) != "":
            return
        self.bound_len += 1
        self.last_s = time.monotonic()
        self._changed.set()
        if self._churn:
            self._due.set()

    async def _make(self, step: Step) -> None:
        for name in step.delete_pods:
            with contextlib.suppress(NotFound):
                await self._store.delete(PODS, name, NAMESPACE, grace_period_s=0)
        await _create(self._store, iter([*step.create_nodes, *step.create_pods]))
        for name in step.relabel_nodes:
            await self._store.patch(NODES, name, {"metadata": {"labels": {CHURN_LABEL: str(step.after_bound)}}})


async def _create(store: EmbeddedStore, objects: Iterator[Raw]) -> None:
    while chunk := list(itertools.islice(objects, CHUNK)):
        await store.transaction_records([_creation(raw) for raw in chunk])


def _node(record: Record | None) -> str:
    return record.fields.get("spec.nodeName", "") if record is not None else ""


def _creation(raw: Raw) -> Operation:
    metadata = {key: value for key, value in raw["metadata"].items() if key in ("name", "namespace", "labels", "annotations")}
    plain = {**raw, "metadata": metadata}
    return Operation(
        verb="create", resource=resource_of(raw), name=metadata["name"], namespace=metadata.get("namespace"), object=plain
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    tune_for_long_runs()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(run(Handover(Path(sys.argv[1]))))
    sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
