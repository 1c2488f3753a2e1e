"""A world of users, groups and queues with limits, watched at every write: what `test_limits` lets its rules loose on.

Real: the embedded store with the server's own admission of submissions, jobs, scheduler, ledger, garbage collection; simulated:
machines and time. The truth is what agents said of each pod, in every version that the store ever held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from tests.controllers.scheduling import PROFILE

from muster.controllers.job import JobController
from muster.controllers.ledger import LedgerKeeper
from muster.controllers.ledger_pages import Pages
from muster.controllers.pod_gc import PodGarbage
from muster.controllers.pod_groups import PodGroups
from muster.controllers.runtime import Runnable
from muster.controllers.scheduler import Scheduler
from muster.engine.machine import Engine
from muster.engine.plugins.default_preemption import DefaultPreemption
from muster.engine.plugins.fit import Fit
from muster.engine.profile import Profile
from muster.objects.kinds.muster_usage import RunRecord, UsageRecord
from muster.objects.labels import Muster
from muster.objects.meta import annotations_of, is_deleting, labels_of, metadata_of, name_of, uid_of
from muster.objects.quantity import Quantity
from muster.objects.status import Raw
from muster.objects.time import parse_time
from muster.objects.view import view_of
from muster.policy.order import PolicyOrder
from muster.quota.ledger import Ledger, Row, Run, Totals, add_into
from muster.quota.periods import bounds_ms
from muster.server.accounting import AccountedPods
from muster.server.admission import Hook
from muster.server.limits_admission import SubmissionLimits
from muster.server.memory import Memory
from muster.sim.machine import PodScript
from muster.sim.world import World
from muster.store.embedded import AdmissionRequest, Admissions, EmbeddedStore

FINAL: Final = ("Succeeded", "Failed")
GROUP_CPUS: Final = 6
GROUP_SUBMITTED: Final = 8
QUEUE_JOBS: Final = 3
USERS: Final = ("ann", "bob")
QUEUES: Final = ("q", "short")
QUEUE_CORE_S: Final = 144
"""What `short` may use in a day: 0.04 core-hours."""
BUDGET: Final = 300
"""What the group may spend in a day, at one for each second of a core."""
LATE_S: Final = 60.0
"""So long after it was used up, or after somebody began to lead, nothing may start any more: watches may lag."""


def named(kind: str, name: str, **spec: Any) -> Raw:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def job(name: str, user: str, *, queue: str, cpu: int, replicas: int, **spec: Any) -> Raw:
    role = {"name": "w", "replicas": replicas, "command": ["x"], "resources": {"requests": {"cpu": cpu}}}
    raw = named("Job", name, roles=[role], user=user, queue=queue, **spec)
    raw["metadata"]["namespace"] = "default"
    return raw


def script(pod: Raw) -> PodScript:
    """Names say how long: `j3-20`; those with an f fail at first."""
    name = labels_of(pod)[Muster.JOB]
    fails = name.startswith("f") and annotations_of(pod).get("muster.dev/attempt") == "1"
    return PodScript(run_s=float(name.rpartition("-")[2]), exit_code=3 if fails else 0)


def controllers() -> Sequence[Runnable]:
    def engine() -> Engine:
        return Engine([Profile(PROFILE, [Fit(), DefaultPreemption()])], order=PolicyOrder())

    return [Scheduler(engine=engine), JobController(), PodGroups(), PodGarbage(), LedgerKeeper()]


async def _nobody(*_who_and_what: object) -> bool:
    return False


class TakesAMoment(Hook):
    """Between what was judged and what is stored time passes, as a disk and other hooks take it; so writes overlap."""

    def __init__(self, world: World) -> None:
        self._chance = world.loop.entropy.stream("moments")

    async def validate(self, request: AdmissionRequest) -> None:
        if request.actor is not None:
            await asyncio.sleep(self._chance.uniform(0.0, 0.3))


async def prepare(world: World) -> None:
    assert isinstance(world.store, EmbeddedStore)
    memory = Memory(world.store, world.clock)
    memory.start()
    world.store.admission = Admissions([AccountedPods(), SubmissionLimits(memory.people, _nobody), TakesAMoment(world)])
    limits = {"concurrent": {"cpu": GROUP_CPUS}, "jobsSubmitted": GROUP_SUBMITTED}
    prices = [{"resource": "cpu", "amount": 3600}]
    budget = {"amount": BUDGET, "period": "Day"}
    for raw in (
        named("UserGroup", "lab", admins=["gil"], limits=limits, prices=prices, budget=budget),
        named("UserGroup", "left", parent="lab"),
        named("UserGroup", "right", parent="lab"),
        named("User", "gil", group="lab"),
        named("User", "ann", group="left", limits={"concurrent": {"cpu": 3}, "jobsSubmitted": 4}),
        named("User", "bob", group="right", limits={"concurrent": {"cpu": 3}, "jobsRunning": 1}),
        named("Queue", "q", limits={"jobsRunning": QUEUE_JOBS}),
        named("Queue", "short", limits={"consumption": [{"resource": "cpu", "amount": "40m", "period": "Day"}]}),
    ):
        await world.create(raw)
    world.add_machines(2, capacity={"cpu": "5", "memory": "8Gi", "pods": "50"}, script_for=script)
    world.invariant("submitted", SubmitCheck())
    world.invariant("in use", UseCheck())
    world.invariant("divided", divided_within)
    world.invariant("used up", SpentCheck())


def cpus(pod: Raw) -> int:
    return sum(int(one["resources"]["requests"]["cpu"]) for one in pod["spec"]["containers"])


def user_of(pod: Raw) -> str:
    return labels_of(pod)[Muster.USER]


def is_live(pod: Raw) -> bool:
    """Bound, not ended, and not taken away by force."""
    is_forced = is_deleting(pod) and not metadata_of(pod).get("deletionGracePeriodSeconds")
    return bool(pod["spec"].get("nodeName")) and (pod.get("status") or {}).get("phase") not in FINAL and not is_forced


async def limits_of(world: World, kind: str) -> dict[str, Raw]:
    return {name_of(one): one["spec"].get("limits") or {} for one in await world.objects("muster.dev", kind)}


class SubmitCheck:
    """What waits and runs is within what may be submitted; where a limit was lowered, it does not grow."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    async def __call__(self, world: World) -> None:
        counts = dict.fromkeys((*USERS, "lab"), 0)
        for one in await world.objects("muster.dev", "Job"):
            status, spec = one.get("status") or {}, one["spec"]
            if status.get("phase") not in (*FINAL, "Cancelled") and spec.get("state") not in ("Stopped", "Cancelled"):
                counts[spec["user"]] += 1
                counts["lab"] += 1
        limits = {**await limits_of(world, "User"), **await limits_of(world, "UserGroup")}
        for name, count in counts.items():
            most = limits.get(name, {}).get("jobsSubmitted", 10**9)
            assert count <= max(most, self._before.get(name, 0)), f"{name} has submitted {count} jobs, and may {most}"
        self._before = counts


class UseCheck:
    """What is bound and has not ended is within what may be in use at once. A limit that was lowered holds when it is known."""

    def __init__(self) -> None:
        self._lowered: dict[tuple[str, str], list[tuple[float, int]]] = {}

    def _most(self, now: float, key: tuple[str, str], limit: int) -> int:
        told = [one for one in self._lowered.get(key, []) if one[0] >= now - LATE_S]
        self._lowered[key] = [*told, (now, limit)]
        return max(limit for _, limit in self._lowered[key])

    async def __call__(self, world: World) -> None:
        now = world.clock()
        used, running, in_queue = dict.fromkeys(USERS, 0), {user: set[str]() for user in USERS}, set[str]()
        for pod in await world.objects("", "Pod"):
            if is_live(pod):
                used[user_of(pod)] += cpus(pod)
                running[user_of(pod)].add(labels_of(pod)[Muster.JOB])
                if labels_of(pod)[Muster.QUEUE] == "q":
                    in_queue.add(labels_of(pod)[Muster.JOB])
        limits = await limits_of(world, "User")
        for user in USERS:
            said = limits.get(user, {})
            if "cpu" in said.get("concurrent", {}):
                most = self._most(now, (user, "cpu"), int(said["concurrent"]["cpu"]))
                assert used[user] <= most, f"{user} uses {used[user]} cpus, and may {most}"
            if "jobsRunning" in said:
                most = self._most(now, (user, "jobs"), int(said["jobsRunning"]))
                assert len(running[user]) <= most, f"{running[user]} of {user} run, and {most} may"
        assert sum(used.values()) <= GROUP_CPUS, f"lab uses {used}, and may {GROUP_CPUS}"
        assert len(in_queue) <= QUEUE_JOBS, f"{in_queue} run in queue q, and {QUEUE_JOBS} may"


async def divided_within(world: World) -> None:
    given = [int(one.get("concurrent", {}).get("cpu", 0)) for one in (await limits_of(world, "User")).values()]
    assert sum(given) <= GROUP_CPUS, f"users were given {given}, of {GROUP_CPUS}"


class Truth:
    """What agents said of each pod, by uid; of one that was taken away by force, before when it can't have ended."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.ended: set[str] = set()
        self.forced: dict[str, int] = {}

    def see(self, pod: Raw) -> None:
        status, uid = pod.get("status") or {}, uid_of(pod)
        if not status.get("startTime") or uid in self.ended:
            return
        labels = labels_of(pod)
        start_ms = round(parse_time(status["startTime"]) * 1000)
        ends = [
            round(parse_time(one["state"]["terminated"]["finishedAt"]) * 1000)
            for one in status.get("containerStatuses") or ()
            if "terminated" in one.get("state", {})
        ]
        is_over = status.get("phase") in FINAL
        self.runs[uid] = Run(
            key=uid,
            user=labels[Muster.USER],
            queue=labels[Muster.QUEUE],
            amounts={"cpu": 1000 * cpus(pod), "pods": 1},
            start_ms=start_ms,
            end_ms=max(ends) if is_over and ends else None,
        )
        if is_over and ends:
            self.ended.add(uid)
        elif is_deleting(pod) and not metadata_of(pod).get("deletionGracePeriodSeconds"):
            gone_ms = round(parse_time(metadata_of(pod)["deletionTimestamp"]) * 1000)
            self.forced.setdefault(uid, min([gone_ms, *ends]))

    def used_core_s(self, runs: Sequence[Run], now_ms: int) -> float:
        first, after = bounds_ms("Day", now_ms)
        return sum(run.until(now_ms).within(first, after).get("cpu", 0) for run in runs) / 1e6


class SpentCheck:
    """Nothing starts for somebody who has used up what may be used in a day, once that is known."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._bound: set[str] = set()
        self._led: tuple[object, float] = (None, 0.0)

    async def __call__(self, world: World) -> None:
        truth: Truth = world.memory.setdefault("truth", Truth())
        now, now_ms = world.clock(), round(world.clock() * 1000)
        leases = [(one["spec"].get("holderIdentity"), one["spec"].get("leaseTransitions"), uid_of(one))
                  for one in await world.objects("coordination.k8s.io", "Lease")]  # fmt: skip
        leader = (leases, [one.runs for one in world.components.values()])
        if leader != self._led[0]:
            self._led = (leader, now)
        pods = await world.objects("", "Pod")
        for pod in pods:
            truth.see(pod)
        spent = await self._spent(world, truth, now_ms)
        self._since = {who: self._since.get(who, now) for who in spent}
        for pod in pods:
            uid = uid_of(pod)
            if not pod["spec"].get("nodeName") or uid in self._bound:
                continue
            self._bound.add(uid)
            for who in (user_of(pod), labels_of(pod)[Muster.QUEUE], "lab"):
                late_s = min(now - self._since.get(who, now), now - self._led[1])
                assert late_s <= LATE_S, f"{name_of(pod)} was started {late_s:.0f} s after {who} had used up its share"

    async def _spent(self, world: World, truth: Truth, now_ms: int) -> set[str]:
        runs = list(truth.runs.values())
        found = {"lab"} if truth.used_core_s(runs, now_ms) >= BUDGET else set()
        if truth.used_core_s([run for run in runs if run.queue == "short"], now_ms) >= QUEUE_CORE_S:
            found.add("short")
        for user, limits in (await limits_of(world, "User")).items():
            for one in limits.get("consumption") or ():
                most = 3600 * float(Quantity.parse(one["amount"]).fraction())
                if truth.used_core_s([run for run in runs if run.user == user], now_ms) >= most:
                    found.add(user)
        return found


# -- the books at the end ------------------------------------------------------------------------------------------------------


async def pages_of(world: World) -> tuple[Ledger, dict[str, RunRecord]]:
    pages, records = Pages(), dict[str, RunRecord]()
    for raw in await world.objects("muster.dev", "UsageRecord"):
        page = view_of(UsageRecord, raw)
        pages.put(name_of(raw), page)
        records.update({one.uid: one for one in page.spec.runs})
    return pages.ledger(), records


def without_groups(ledger: Ledger) -> dict[Row, Totals]:
    """Users may have moved while they ran."""
    found: dict[Row, Totals] = {}
    for row, totals in ledger.rows().items():
        add_into(found.setdefault(row._replace(group=""), {}), totals)
    return found


async def check_books(world: World) -> None:
    """What is noted is what ran: to the millisecond where the agent said so, day by day, for each user and queue."""
    truth: Truth = world.memory["truth"]
    noted, records = await pages_of(world)
    assert set(truth.runs) == set(records), "each run is noted once, and nothing else is"
    said = []
    for uid, run in truth.runs.items():
        end_ms = run.end_ms
        if end_ms is None or uid in truth.forced:  # taken away before the agent had a word: when that was learned counts
            assert uid in truth.forced, f"{records[uid].pod} has no end, and nobody forced it"
            end_ms = records[uid].end_ms
            assert truth.forced[uid] <= end_ms + 1000, f"{records[uid].pod} ended before it was taken away"
        said.append(Run(key=uid, user=run.user, queue=run.queue, amounts=run.amounts, start_ms=run.start_ms, end_ms=end_ms))
    assert without_groups(noted) == without_groups(Ledger(said))
    groups = {row.group for row in noted.rows()}
    assert groups <= {"left", "right"}, f"every run counts for a group of its user's: {groups}"
