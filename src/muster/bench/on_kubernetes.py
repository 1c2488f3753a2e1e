"""`--on kubernetes`: real etcd and kube-apiserver; kube-scheduler and Muster drain the same backlog in turn, several pairs.

Nodes are created once. For each run the pods are created first, with nobody to schedule them; then one scheduler starts. The
rate is taken between a tenth and 95 % of the bindings, so that neither its start nor its tail counts. The sides take turns in
going first, because a machine that is shared drifts. etcd keeps its data in memory where there is /dev/shm: a flush would bound
both sides alike and hide them. Each side owes an event per pod: the time that they take after the last binding counts too. One
event loop; the schedulers and servers are processes of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence

from muster.bench import processes
from muster.bench.counting import Counter
from muster.bench.filling import NODES, PODS, connected, create_all, delete_all, in_parallel
from muster.bench.handover import scratch
from muster.bench.kubernetes import ControlPlane, find_assets
from muster.bench.lines import Outcome, Say, SchedulingLine
from muster.bench.scenario import Scenario
from muster.bench.sides import KUBE_SCHEDULER, KubeSchedulerSide, MusterSide, Side, SideMaker
from muster.bench.workload import CHURN_LABEL, NAMESPACE, Step, Workload, generate
from muster.client.api import ApiClient
from muster.objects.catalog import CATALOG
from muster.objects.crd import crds_for
from muster.objects.status import ApiError, Raw, Timeout

_EVENTS = CATALOG.by_kind("", "Event")
STALL_S = 90.0
"""With nothing bound for this long a run is over, complete or not."""

_SERVED_ATTEMPTS = 50


def run(
    scenario: Scenario,
    nodes: int,
    pods: int,
    *,
    seed: int,
    pairs: int,
    say: Say,
    ours: SideMaker = MusterSide,
    theirs: SideMaker = KubeSchedulerSide,
) -> SchedulingLine:
    """Measure one scenario at one size. NotAvailable when there are no binaries."""
    assets = find_assets(build=False)
    with scratch() as work_dir, ControlPlane(assets, work_dir, controllers=False, bare_nodes=True) as plane:
        bench = _Bench(plane, scenario, nodes, pods, seed=seed, say=say)
        outcomes = asyncio.run(bench.run([ours(plane), theirs(plane)], pairs))
    return _line(bench, outcomes)


def _line(bench: _Bench, outcomes: Sequence[tuple[Outcome, Outcome]]) -> SchedulingLine:
    def median(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    ours, theirs = [pair[0] for pair in outcomes], [pair[1] for pair in outcomes]
    best = max(ours, key=lambda one: one.pods_per_s)
    return SchedulingLine(
        scenario=bench.scenario.name,
        on="kubernetes",
        nodes=bench.nodes,
        pods=bench.pods,
        pods_per_s=statistics.median(one.pods_per_s for one in ours),
        decision_p50_us=median([one.decision_p50_us for one in ours]),
        decision_p99_us=median([one.decision_p99_us for one in ours]),
        rss_mb=max(one.rss_mb for one in ours),
        peer=KUBE_SCHEDULER,
        peer_pods_per_s=statistics.median(one.pods_per_s for one in theirs),
        peer_rss_mb=max(one.rss_mb for one in theirs),
        ratio=statistics.median(a.pods_per_s / b.pods_per_s for a, b in outcomes),
        pairs=[(round(a.pods_per_s, 1), round(b.pods_per_s, 1)) for a, b in outcomes],
        events_per_pod=min(one.events for one in ours) / bench.pods,
        event_lag_s=max(one.event_lag_s for one in ours),
        peer_events_per_pod=min(one.events for one in theirs) / bench.pods,
        peer_event_lag_s=max(one.event_lag_s for one in theirs),
        drain_s=statistics.median(one.drain_s for one in ours),
        peer_drain_s=statistics.median(one.drain_s for one in theirs),
        unbound=max(one.unbound for one in ours),
        seed=bench.seed,
        bound_by=best.bound_by,
        note="; ".join(_notes(bench, ours, theirs)),
    )


def _notes(bench: _Bench, ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Iterator[str]:
    if bench.scenario.peer_note:
        yield bench.scenario.peer_note
    if left := max(one.unbound for one in theirs):
        yield f"the peer left {left} pods unbound"
    for name, side in (("Muster", ours), (KUBE_SCHEDULER, theirs)):
        fewest = min(one.events for one in side)
        if fewest < bench.pods:
            # The ratio is not worth much then: an event costs the server as much as a binding.
            yield f"{name} wrote only {fewest} events for {bench.pods} pods"


class _Bench:
    """One control plane, one scenario. `run` once."""

    def __init__(self, plane: ControlPlane, scenario: Scenario, nodes: int, pods: int, *, seed: int, say: Say) -> None:
        self.plane = plane
        self.scenario = scenario
        self.nodes, self.pods, self.seed = nodes, pods, seed
        self._say = say

    async def run(self, sides: Sequence[Side], pairs: int) -> list[tuple[Outcome, Outcome]]:
        """The outcomes of each pair, in the order of `sides`."""
        workloads = [
            generate(self.scenario, self.nodes, self.pods, self.seed, scheduler_name=side.scheduler_name) for side in sides
        ]
        outcomes: list[tuple[Outcome, Outcome]] = []
        async with connected(self.plane.kubeconfig_path) as client:
            await _install(client)
            await self._timed("nodes", client, [*workloads[0].namespaces, *workloads[0].priority_classes, *workloads[0].nodes])
            # The first backlog that a fresh API server sees drains a third slower than later ones, whoever drains it.
            self._say("warming up, not measured")
            await self._one(client, sides[1], workloads[1])
            for number in range(pairs):
                found: dict[int, Outcome] = {}
                for index in (0, 1) if number % 2 else (1, 0):
                    side = sides[index]
                    self._say(f"pair {number + 1} of {pairs}: {side.name}")
                    found[index] = await self._one(client, side, workloads[index])
                outcomes.append((found[0], found[1]))
        return outcomes

    async def _timed(self, what: str, client: ApiClient, objects: Sequence[Raw]) -> None:
        started = time.monotonic()
        await create_all(client, objects)
        took_s = time.monotonic() - started
        self._say(f"  created {len(objects):,} objects ({what}) in {took_s:.1f} s")

    async def _one(self, client: ApiClient, side: Side, workload: Workload) -> Outcome:
        await self._timed("pods", client, [*workload.running, *workload.backlog, *workload.measured])
        counter = Counter(self.plane, side.accept)
        async with counter.counting():
            outcome = await self._drain(client, side, workload, counter)
        self._say(
            f"  {counter.bound.total:,} of {len(workload.measured):,} bound, {counter.bound.steady_per_s():,.0f} pods/s; "
            f"{outcome.events:,} events, the last {outcome.event_lag_s:.1f} s later: {outcome.pods_per_s:,.0f} with them; "
            f"{outcome.drain_s:.1f} s from start to end; {outcome.rss_mb:.0f} MB; {outcome.bound_by}"
        )
        await self._clean(client, workload)
        return outcome

    async def _drain(self, client: ApiClient, side: Side, workload: Workload, counter: Counter) -> Outcome:
        churn = _Churn(client, workload.churn)
        counter.on_count = churn.reached
        usage = _Usage(self.plane, side)
        counter_task = asyncio.create_task(churn.run(), name="churn")
        events = _Events(client)
        await events.begin()
        started_s = time.monotonic()
        try:
            await asyncio.to_thread(side.start)
            sampler = asyncio.create_task(usage.sample(), name="usage")
            is_complete = await counter.wait(len(workload.measured), stall_s=STALL_S)
            sampler.cancel()
            await asyncio.gather(sampler, return_exceptions=True)
            await events.settle(counter.bound.total)
            if not side.is_running:
                raise RuntimeError(f"{side.name} ended by itself; its log ends:\n{side.log_tail()}")
            resident_mb = processes.resident_mb([side.pid])
        finally:
            counter_task.cancel()
            await asyncio.gather(counter_task, return_exceptions=True)
            times = await asyncio.to_thread(side.stop)
        bound = counter.bound
        if bound.total < max(10, len(workload.measured) // 2):
            raise RuntimeError(
                f"{side.name} bound {bound.total} of {len(workload.measured)} pods in {STALL_S:.0f} s without progress; "
                f"its log ends:\n{side.log_tail()}"
            )
        begin, end, count = bound.steady_window()
        lag_s = max(0.0, events.last_s - bound.times_s[-1])
        return Outcome(
            # What a scheduler leaves for later counts as well, in proportion to the window.
            pods_per_s=count / (end - begin + lag_s * count / bound.total),
            events=events.made,
            event_lag_s=lag_s,
            drain_s=bound.times_s[-1] + lag_s - started_s,
            rss_mb=resident_mb,
            unbound=0 if is_complete else len(workload.measured) - bound.total,
            decision_p50_us=times.p50_us,
            decision_p99_us=times.p99_us,
            bound_by=usage.between(begin, end),
        )

    async def _clean(self, client: ApiClient, workload: Workload) -> None:
        started = time.monotonic()
        while (await client.list(PODS, NAMESPACE, limit=1)).items:
            # On the server's side it takes longer than the server lets a request take; what is left is asked for again.
            with contextlib.suppress(Timeout):
                await client.delete_collection(PODS, NAMESPACE)
        added = [node["metadata"]["name"] for step in workload.churn for node in step.create_nodes]
        await delete_all(client, NODES, [(None, name) for name in added])
        self._say(f"  deleted the pods in {time.monotonic() - started:.1f} s")


async def _install(client: ApiClient) -> None:
    """Muster's own kinds, which its scheduler follows and keeps its plans in. They are there for both sides' runs."""
    definitions = crds_for(CATALOG.custom)
    await create_all(client, definitions)
    for definition in definitions:
        for _attempt in range(_SERVED_ATTEMPTS):
            with contextlib.suppress(ApiError):
                await client.resources(refresh=True)
                await client.resource(definition["spec"]["group"], definition["spec"]["names"]["kind"])
                break
            await asyncio.sleep(0.2)


class _Events:
    """How many events were stored, and when the last one was. It costs the server, so it waits until the bindings are done."""

    EVERY_S = 0.1
    QUIET_S = 1.0
    """How long none may come for it to be over, if each pod has had its own,"""
    STALL_S = 20.0
    """and if not: a scheduler may put them off for some seconds."""
    WAIT_MAX_S = 300.0

    def __init__(self, client: ApiClient) -> None:
        self.last_s = 0.0
        self.made = 0
        self._client = client
        self._before = 0

    async def begin(self) -> None:
        self._before = await self._count()

    async def settle(self, owed: int) -> None:
        """Until the `owed` events are there and no further one comes, or until it is clear that they won't be."""
        started = self.last_s = time.monotonic()
        while True:
            made, now = await self._count() - self._before, time.monotonic()
            if made != self.made:
                self.made, self.last_s = made, now
            patience_s = self.QUIET_S if made >= owed else self.STALL_S
            if now - self.last_s > patience_s or now - started > self.WAIT_MAX_S:
                return
            await asyncio.sleep(self.EVERY_S)

    async def _count(self) -> int:
        """Both kinds of events are stored as one."""
        page = await self._client.list(_EVENTS, limit=1)
        return len(page.items) + (page.remaining or 0)


class _Churn:
    """Makes the changes of a workload as its pods are bound; `reached` may be called at any time."""

    def __init__(self, client: ApiClient, steps: Sequence[Step]) -> None:
        self._client = client
        self._steps = list(steps)
        self._total = 0
        self._changed = asyncio.Event()

    def reached(self, total: int) -> None:
        self._total = total
        self._changed.set()

    async def run(self) -> None:
        for step in self._steps:
            while self._total < step.after_bound:
                self._changed.clear()
                await self._changed.wait()
            await self._make(step)

    async def _make(self, step: Step) -> None:
        async def relabel(name: str) -> None:
            await self._client.patch(NODES, name, {"metadata": {"labels": {CHURN_LABEL: str(step.after_bound)}}})

        with contextlib.suppress(ApiError):  # a node or pod that is gone by now is churn as well
            await delete_all(self._client, PODS, [(NAMESPACE, name) for name in step.delete_pods])
            await create_all(self._client, [*step.create_nodes, *step.create_pods])
            await in_parallel(step.relabel_nodes, relabel)


class _Usage:
    """Where the CPU time goes: read every half second, so that the steady window can be cut out."""

    EVERY_S = 0.5

    def __init__(self, plane: ControlPlane, side: Side) -> None:
        self._plane = plane
        self._side = side
        self._samples: list[tuple[float, ...]] = []

    async def sample(self) -> None:
        """Rows of: time, then CPU time of the servers, of the scheduler, of this process, of the whole machine."""
        servers = [self._plane.apiserver_pid, self._plane.etcd_pid]
        while True:
            with contextlib.suppress(OSError):
                used = [processes.cpu_s(pids) for pids in (servers, [self._side.pid], [os.getpid()])]
                self._samples.append((time.monotonic(), *used, processes.machine_busy_s()))
            await asyncio.sleep(self.EVERY_S)

    def between(self, begin_s: float, end_s: float) -> str:
        """What bounded the rate, as far as CPU time tells, and how much of the machine others took meanwhile."""
        inside = [sample for sample in self._samples if begin_s - self.EVERY_S <= sample[0] <= end_s + self.EVERY_S]
        window = inside if len(inside) > 1 else self._samples
        if len(window) < 2:
            return "too short to say"
        wall_s = window[-1][0] - window[0][0]
        server, scheduler, bench, machine = [
            (last - first) / wall_s for first, last in zip(window[0], window[-1], strict=True)
        ][1:]
        others = max(0.0, machine - server - scheduler - bench)
        if machine > 0.9 * (os.cpu_count() or 1):
            what = f"the machine's CPU, of which {'the API server' if server > scheduler else 'the scheduler'} takes most"
        elif scheduler > 0.85:
            what = "the scheduler's one core"
        else:
            what = "waiting (round trips)"
        shares = {"API server and etcd": server, "scheduler": scheduler, "bench": bench, "others": others}
        return f"{what}; cores busy: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
