"""The process of `muster bench run queues --on embedded`: `python -m muster.bench.queues_embedded_process QUEUES PER_QUEUE
NODES POLICY`.

Everything of `muster up` but the command line: the server with its admission, the store on disk, all controllers, the decision
log. Jobs are created through the store with the server's admission, as many at once as SUBMITTERS; simulated nodes on the wall
clock run their pods, as `muster up --simulated-nodes` does. Agents and submitters share the process and its one core, so their
work is in the figures.

A workload is admitted when its pod's binding is on disk. The clock runs from the first creation to the last admission; then
the rest is let run to its end, and every Job must have succeeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource as limits
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from muster.bench import processes
from muster.bench.lines import percentile
from muster.bench.queues_workload import CLASSES, NAMESPACE, NODE_AMOUNTS, job_manifest, queue_manifests
from muster.bench.sampling import Sampler
from muster.controllers import embedded_controllers
from muster.controllers.long_runs import tune_for_long_runs
from muster.controllers.manager import Manager
from muster.history.recorder import Recorder
from muster.history.stores import DirectoryStore
from muster.objects.labels import Muster
from muster.objects.meta import labels_of
from muster.objects.status import Raw
from muster.objects.time import wall_clock
from muster.server.accounting import AccountedPods
from muster.server.config import ServerConfig
from muster.server.run import Server
from muster.sim.agent import SimAgent
from muster.sim.machine import Machine, PodScript
from muster.store.contract import EventType
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.collection import Collection
from muster.store.embedded.records import Event, Record
from muster.store.events import DROPPED

SUBMITTERS: Final = 32
STALL_S: Final = 120.0
SAY_EVERY_S: Final = 10.0
_POLL_S: Final = 0.05
_RUNS: Final = {each.name: PodScript(pull_s=0.0, start_s=0.0, run_s=each.runs_s) for each in CLASSES}
_OWNERS: Final = {
    "sim.agent": "agents",
    "store.embedded.record_writes": "submission",
    "controllers.actions": "writes side by side",
    "store.embedded.committer": "committer",
    "store.informer": "informers",
    "store.events": "events",
    "controllers.job": "job",
    "controllers.places": "places",
    "controllers.queues": "queues",
    "controllers.pools": "node-pools",
    "controllers.policies": "policies",
    "controllers.pod_gc": "pod-gc",
    "controllers.job_cleanup": "job-cleanup",
    "controllers.ledger": "ledger",
    "controllers.scheduler_term": "scheduler",
    "controllers.scheduler_binding": "scheduler",
    "controllers.scheduler_reporting": "scheduler",
    "controllers.scheduler_feed": "scheduler",
    "controllers.scheduler_running": "scheduler",
}


class QueuesEmbeddedLine(msgspec.Struct, kw_only=True):
    """One line of `muster bench run queues --on embedded --json`."""

    on: str = "embedded"
    queues: int
    workloads: int
    nodes: int
    policy: str
    per_s: float
    """Workloads admitted per second, from the first submission to the last admission."""
    per_cpu_s: float
    """The same per second of CPU time of the whole process."""
    wall_s: float
    cpu_s: float
    finish_s: float
    """From the first submission until the last pod had ended."""
    succeeded: int
    to_admission_s: dict[str, float]
    """Mean seconds from a job's creation to its binding, by class."""
    to_admission_p99_s: float
    rss_peak_mb: float
    writes_per_workload: float
    writes: dict[str, float]
    """Per workload, by kind and type of change, where it is 0.01 or more. Until the last pod had ended."""
    events_dropped: float
    """Occurrences per workload that the recorder of Events gave up, because it writes one after the other and was behind."""
    parts: dict[str, float]
    """Whose work the event loop did until the last admission, as shares of its time, by sampling."""
    packages: dict[str, float]
    """The same by the code that ran."""
    cpu_ms: float
    """CPU time of the process per workload, until the last admission."""
    evicted: int


class _Watch:
    """Sees each change when it is on disk. It has to be quick: the time that it takes counts."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.created_s: dict[str, float] = {}
        self.waits_s: dict[str, list[float]] = {each.name: [] for each in CLASSES}
        self.admitted: set[str] = set()
        self.ended: set[str] = set()
        self.evicted = 0
        self.first_s = self.last_admitted_s = self.last_ended_s = self.moved_s = 0.0
        self.cpu_at_first_s = self.cpu_at_last_s = 0.0
        self.changes: Counter[tuple[str, str]] = Counter()
        self.is_admitted = asyncio.Event()

    def note(self, collection: Collection, event: Event) -> None:
        self.changes[collection.id, event.type.value] += 1
        if collection.id == "jobs.muster.dev" and event.type is EventType.ADDED:
            self.created_s[event.record.name] = time.monotonic()
        elif collection.id == "pods" and event.type is EventType.MODIFIED:
            self._note_pod(event.record, event.previous)

    def _note_pod(self, record: Record, before: Record | None) -> None:
        job = record.labels.get(Muster.JOB, "")
        if _field(record, "spec.nodeName") and not _field(before, "spec.nodeName"):
            now_s = self.moved_s = time.monotonic()
            if job in self.admitted:
                return
            self.admitted.add(job)
            self.waits_s[record.labels[Muster.ROLE]].append(now_s - self.created_s[job])
            if len(self.admitted) == self.count:
                self.last_admitted_s, self.cpu_at_last_s = now_s, time.process_time()
                self.is_admitted.set()
        elif record.deleting and not _is_leaving(before) and _field(record, "status.phase") != "Succeeded":
            self.evicted += 1
        elif _field(record, "status.phase") == "Succeeded" and _field(before, "status.phase") != "Succeeded":
            self.ended.add(job)
            self.last_ended_s = self.moved_s = time.monotonic()


def _is_leaving(before: Record | None) -> bool:
    return before is not None and before.deleting


def _field(record: Record | None, path: str) -> str:
    return record.fields.get(path, "") if record is not None else ""


async def run(queues: int, per_queue: int, nodes: int, policy: str) -> QueuesEmbeddedLine:
    with tempfile.TemporaryDirectory(prefix="muster-bench-queues-") as directory:
        recorder = Recorder(DirectoryStore(Path(directory) / "history"), clock=wall_clock)
        server = Server(ServerConfig(data_dir=Path(directory) / "data", port=0))
        server.extra_hooks.append(AccountedPods())
        await server.start()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, recorder.close)
            stack.push_async_callback(server.stop)
            controllers = embedded_controllers(ca_pem=server.pki.ca_pem.decode(), history=recorder)
            manager = Manager(server.store, controllers, clock=wall_clock)
            manager.start()
            stack.push_async_callback(manager.stop)
            machines = [Machine(f"node-{number}", capacity=dict(NODE_AMOUNTS)) for number in range(nodes)]
            agents = [asyncio.create_task(_agent(server.store, machine)) for machine in machines]
            stack.push_async_callback(_cancelled, agents)
            await _until_running(manager)
            await _create_all(server.store, iter([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}]))
            await _create_all(server.store, iter(queue_manifests(queues, nodes, policy)))
            await _until_registered(server.store, nodes)
            line = await _measure(server.store, queues, per_queue, nodes, policy)
            if recorder.trouble:
                raise RuntimeError(f"the recorder gave up: {recorder.trouble}")
            return line


async def _measure(store: EmbeddedStore, queues: int, per_queue: int, nodes: int, policy: str) -> QueuesEmbeddedLine:
    count = queues * per_queue
    watch = _Watch(count)
    sampler = Sampler(_OWNERS, threading.get_ident())
    store.listeners.append(watch.note)
    jobs = (job_manifest(queue, number) for number in range(per_queue) for queue in range(queues))
    watch.first_s = watch.moved_s = time.monotonic()
    watch.cpu_at_first_s = time.process_time()
    sampler.start()
    submission = asyncio.create_task(_create_all(store, jobs))
    try:
        await _progress(watch, submission)
        await submission
    finally:
        submission.cancel()
        sampler.stop()
    await _ends(watch)
    await asyncio.sleep(2 * _POLL_S)
    wall_s, cpu_s = watch.last_admitted_s - watch.first_s, watch.cpu_at_last_s - watch.cpu_at_first_s
    writes = {f"{kind} {type_.lower()}": number / count for (kind, type_), number in watch.changes.most_common()}
    waits_s = [each for some in watch.waits_s.values() for each in some]
    return QueuesEmbeddedLine(
        queues=queues,
        workloads=count,
        nodes=nodes,
        policy=policy,
        per_s=count / wall_s,
        per_cpu_s=count / cpu_s,
        wall_s=wall_s,
        cpu_s=cpu_s,
        finish_s=watch.last_ended_s - watch.first_s,
        succeeded=await _succeeded(store, count),
        to_admission_s={name: sum(some) / len(some) for name, some in watch.waits_s.items() if some},
        to_admission_p99_s=percentile(waits_s, 0.99) or 0.0,
        rss_peak_mb=limits.getrusage(limits.RUSAGE_SELF).ru_maxrss / 1024,
        writes_per_workload=sum(watch.changes.values()) / count,
        writes={name: round(number, 2) for name, number in writes.items() if number >= 0.01},
        events_dropped=_dropped_events() / count,
        parts={name: round(share, 3) for name, share in sampler.shares(sampler.by_owner).items() if share >= 0.002},
        packages={name: round(share, 3) for name, share in sampler.shares(sampler.by_package).items() if share >= 0.002},
        cpu_ms=1e3 * cpu_s / count,
        evicted=watch.evicted,
    )


def _dropped_events() -> float:
    found = (sample for metric in DROPPED.collect() for sample in metric.samples)
    return sum(sample.value for sample in found if sample.name.endswith("_total"))


async def _progress(watch: _Watch, submission: asyncio.Task[None]) -> None:
    """Until all are admitted; says how far it is, and fails when nothing moves."""
    said_s = watch.first_s
    while not watch.is_admitted.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(watch.is_admitted.wait(), 0.5)
        if submission.done():
            submission.result()
        now_s = time.monotonic()
        if now_s - said_s >= SAY_EVERY_S:
            said_s = now_s
            _say(
                f"{now_s - watch.first_s:.0f} s: {len(watch.created_s):,} submitted, {len(watch.admitted):,} admitted, "
                f"{len(watch.ended):,} ended, {processes.resident_mb([os.getpid()]):,.0f} MB"
            )
        if now_s - watch.moved_s > STALL_S and submission.done():
            raise RuntimeError(f"{watch.count - len(watch.admitted)} workloads wait, and none was bound for {STALL_S:.0f} s")


async def _ends(watch: _Watch) -> None:
    while len(watch.ended) < watch.count:
        await asyncio.sleep(_POLL_S)
        if time.monotonic() - watch.moved_s > STALL_S:
            raise RuntimeError(f"{watch.count - len(watch.ended)} pods do not end: none has for {STALL_S:.0f} s")


async def _succeeded(store: EmbeddedStore, count: int) -> int:
    """The controller may be behind the last pod: it gets a moment."""
    resource = store.catalog.by_kind("muster.dev", "Job")
    deadline_s = time.monotonic() + STALL_S
    while True:
        found = store.list_records(resource, NAMESPACE).records
        done = sum(1 for record in found if (record.raw().get("status") or {}).get("phase") == "Succeeded")
        if done == count or time.monotonic() > deadline_s:
            return done
        await asyncio.sleep(1.0)


async def _create_all(store: EmbeddedStore, objects: Iterator[Raw]) -> None:
    async def some() -> None:
        for raw in objects:
            group, _, _version = str(raw["apiVersion"]).rpartition("/")
            await store.create_record(store.catalog.by_kind(group, str(raw["kind"])), raw, raw["metadata"].get("namespace"))

    await asyncio.gather(*(some() for _ in range(SUBMITTERS)))


async def _agent(store: EmbeddedStore, machine: Machine) -> None:
    def script(pod: Raw) -> PodScript:
        return _RUNS.get(labels_of(pod).get(Muster.ROLE, ""), PodScript())

    await SimAgent(store, machine, clock=wall_clock, script_for=script).run()


async def _until_running(manager: Manager) -> None:
    while any(runner.state != "running" for runner in manager.runners):  # noqa: ASYNC110 - states, no event
        await asyncio.sleep(_POLL_S)


async def _until_registered(store: EmbeddedStore, count: int) -> None:
    nodes = store.catalog.by_kind("", "Node")
    while len(store.list_records(nodes).records) < count:  # noqa: ASYNC110 - as a user would look
        await asyncio.sleep(_POLL_S)


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(queues: str, per_queue: str, nodes: str, policy: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    tune_for_long_runs()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        line = runner.run(run(int(queues), int(per_queue), int(nodes), policy))
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
