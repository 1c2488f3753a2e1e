"""Jobs against a model: random graphs, commands, outcomes, crashes and bad weather, in virtual time.

A Hypothesis state machine drives the real controllers, scheduler and agents. The model (`Model`) knows, for each job, in which
phases it may end: how its tasks end is written in their scripts, and a command may come before or after the job has ended by
itself. What must hold at every moment is in `tests.sim.jobs`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.sim.jobs import (
    PARTIES,
    JobSpec,
    Outcomes,
    TaskSpec,
    build,
    chain,
    controllers,
    guard,
    held_by_finished_work,
    phases,
)

from muster.objects.labels import KusciaLabel
from muster.objects.meta import name_of
from muster.objects.names import KUBERNETES_NAMESPACES
from muster.sim.clock import VirtualLoop
from muster.sim.faults import CALM, STORMY, Faults, Moment, SimulatedCrash
from muster.sim.workloads import CROSS_DOMAIN, GROUP
from muster.sim.world import NO_CHAOS, Chaos, World, simulate
from muster.store.embedded import EmbeddedStore

SOAK = bool(os.environ.get("MUSTER_SOAK"))
T = TypeVar("T")
SETTLE_S = 3_600.0
JOBS_MAX = 4
ENDED = ("Succeeded", "Failed", "Cancelled")
ACTIVE = "active"
"""In the model: not ended, and no command has to be obeyed."""


class Model:
    """The phases in which one job may end."""

    def __init__(self, job: JobSpec) -> None:
        self.job = job
        self.natural = job.natural_phase
        self.possible = {ACTIVE}
        """After the last command."""
        self.before = {ACTIVE}
        """Before it. A command is a label: one that is replaced before it was answered may never be seen."""

    def command(self, stage: str, seen: str, *, is_answered: bool) -> None:
        """`stage` is asked for while the job shows the phase `seen`; `is_answered`: the command before this one was."""
        self.before = self.possible if is_answered else self.possible | self.before
        if seen in (*ENDED, "Suspended"):
            known = self._shown(self.before)
            assert seen in known, f"{self.job.name} is {seen}, which the model does not know: {known}"
            self.before = {seen} if is_answered else {seen} | self.before
        self.possible = set().union(*(self._after(phase, stage) for phase in self.before))

    def _after(self, phase: str, stage: str) -> set[str]:
        ends = {phase} if phase != ACTIVE else {self.natural}
        match stage:
            case "Restart":
                return {ACTIVE} if phase in ("Failed", "Suspended", ACTIVE) else {phase}
            case "Stop":
                return {"Failed"} if phase == "Suspended" else ends | {"Failed"} if phase == ACTIVE else {phase}
            case "Cancel":
                return {phase} if phase == "Succeeded" else {"Cancelled"} | (ends & {"Succeeded"})
            case "Suspend":
                # Only what runs can be suspended; what has not begun goes on.
                return {"Suspended", ACTIVE} if phase == ACTIVE else {phase}
        raise AssertionError(stage)

    @property
    def ends(self) -> set[str]:
        """The last command is always seen in the end."""
        return self._shown(self.possible)

    def _shown(self, phases: set[str]) -> set[str]:
        return {self.natural if phase == ACTIVE else phase for phase in phases}


@st.composite
def jobs(draw: st.DrawFn, name: str) -> JobSpec:
    count = draw(st.integers(1, 4))
    tasks = []
    for n in range(count):
        earlier = [f"t{m}" for m in range(n)]
        failures = draw(st.sampled_from([0, 0, 0, 1, 9]))
        tasks.append(
            TaskSpec(
                alias=f"t{n}",
                parties=tuple(sorted(draw(st.sets(st.sampled_from(PARTIES), min_size=1)))),
                dependencies=tuple(sorted(draw(st.sets(st.sampled_from(earlier), max_size=2)))) if earlier else (),
                tolerable=draw(st.booleans()),
                failures=failures,
                retries=draw(st.integers(0, 2)) if failures == 1 else 0,
                cpu=draw(st.integers(1, 3)),
            )
        )
    mode = draw(st.sampled_from(["Strict", "BestEffort"]))
    return JobSpec(name=name, tasks=tuple(tasks), mode=mode, parallelism=draw(st.integers(1, 3)))


class JobMachine(RuleBasedStateMachine):
    """See the module. Everything happens in one virtual loop, which stands still between two rules."""

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[str, Model] = {}
        self.outcomes = Outcomes()
        self.loop: VirtualLoop | None = None

    @initialize(seed=st.integers(0, 2**16), weather=st.sampled_from([CALM, CALM, STORMY]))
    def begin(self, seed: int, weather: Faults) -> None:
        self.loop = VirtualLoop(seed=seed)
        self.loop.tolerated = (SimulatedCrash,)
        asyncio.set_event_loop(self.loop)
        self.world = self._do(self._world(weather))

    async def _world(self, weather: Faults) -> World:
        assert self.loop is not None
        store = await EmbeddedStore.open(
            None, clock=self.loop.clock, writer="inline", entropy=self.loop.entropy.fork("store").bytes
        )
        world = World(self.loop, store, faults=weather, chaos=NO_CHAOS)
        guard(world)
        for name in (*KUBERNETES_NAMESPACES, CROSS_DOMAIN):
            await world.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        world.add_manager("controllers", controllers)
        await build(world, self.outcomes)
        return world

    def _do(self, coro: Coroutine[Any, Any, T]) -> T:
        assert self.loop is not None
        return self.loop.run_until_complete(coro)

    # -- rules -----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.models) < JOBS_MAX)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        job = data.draw(jobs(f"job{len(self.models)}"))
        self.models[job.name] = Model(job)
        self.outcomes.add(job)
        self._do(self.world.create(job.manifest()))

    @precondition(lambda self: self.models)
    @rule(data=st.data(), stage=st.sampled_from(["Stop", "Cancel", "Suspend", "Restart"]))
    def command(self, data: st.DataObject, stage: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        self._do(self._command(name, stage))

    async def _command(self, name: str, stage: str) -> None:
        resource = await self.world.store.resource(GROUP, "KusciaJob")
        job = await self.world.store.get(resource, name, CROSS_DOMAIN)
        status, labels = job.get("status") or {}, job["metadata"].get("labels") or {}
        version = int(labels.get(KusciaLabel.JOB_STAGE_VERSION, "1")) + 1
        is_answered = KusciaLabel.JOB_STAGE not in labels or status.get("stageVersion") == version - 1
        self.models[name].command(stage, status.get("phase", ""), is_answered=is_answered)
        wanted = {
            KusciaLabel.JOB_STAGE: stage,
            KusciaLabel.JOB_STAGE_TRIGGER: "alice",
            KusciaLabel.JOB_STAGE_VERSION: str(version),
        }
        await self.world.store.patch(resource, name, {"metadata": {"labels": wanted}}, CROSS_DOMAIN)

    @rule(seconds=st.floats(0.1, 40.0))
    def wait(self, seconds: float) -> None:
        self._do(self.world.run_for(seconds, every_s=5.0))

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self._do(self._crash(data.draw(st.sampled_from(sorted(self.world.components)))))

    async def _crash(self, name: str) -> None:
        self.world.components[name].kill()

    @rule(data=st.data())
    def cut_off(self, data: st.DataObject) -> None:
        self._do(self._cut_off(data.draw(st.sampled_from(sorted(self.world.components)))))

    async def _cut_off(self, name: str) -> None:
        component = self.world.components[name]
        if component.is_up and component.store is not None:
            component.store.partition(8.0)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if self.loop is None:
            return
        try:
            self._do(self._end())
        finally:
            self._do(self.world.end())
            for task in self.loop.tasks():
                task.cancel()
            asyncio.set_event_loop(None)
            self.loop.close()

    async def _end(self) -> None:
        world = self.world
        world.raise_failure()
        world.calm_down()

        async def all_ended() -> bool:
            found = await phases(world)
            return all(found[name] in (*ENDED, "Suspended") for name in self.models)

        await world.run_until(all_ended, timeout_s=SETTLE_S, every_s=10.0, what=f"the end of {len(self.models)} jobs")

        async def all_clean() -> bool:
            return not await held_by_finished_work(world)

        try:
            await world.run_until(all_clean, timeout_s=300, every_s=10.0)
        except AssertionError:
            raise AssertionError("held by finished work: " + ", ".join(await held_by_finished_work(world))) from None
        found = await phases(world)
        for name, model in self.models.items():
            assert found[name] in model.ends, f"{name} is {found[name]}; the model says {sorted(model.ends)}: {model.job}"


JobMachine.TestCase.settings = settings(
    max_examples=300 if SOAK else 6,
    stateful_step_count=25 if SOAK else 12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=not SOAK,
)
TestJobs = pytest.mark.slow(JobMachine.TestCase)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", [*range(1, 60 if SOAK else 2), *range(2, 60, 7)])
def test_a_crash_between_any_two_writes(write: int, moment: Moment) -> None:
    """Of all controllers together, while a job of two tasks goes from its submission to its end."""
    outcomes = Outcomes()
    job = chain("two", ("alice", "bob"), 2)
    outcomes.add(job)

    async def scenario(world: World) -> None:
        guard(world)
        await build(world, outcomes)
        await world.create(job.manifest())
        await world.run_for(5)
        world.faults = Faults(latency_s=CALM.latency_s, crash_at=(write, moment))
        world.add_manager("controllers", controllers)

        async def succeeded() -> bool:
            return (await phases(world))["two"] == "Succeeded" and not await held_by_finished_work(world)

        await world.run_until(succeeded, timeout_s=900, every_s=5.0, what="the job's success")
        starts = [n for machine in world.machines.values() for n in machine.starts.values()]
        assert starts == [1] * 4, "each of two tasks has one pod at each of two parties"

    _, trace = simulate(scenario, seed=write, namespaces=(*KUBERNETES_NAMESPACES, CROSS_DOMAIN))
    assert any("controllers" in line and f"crashed {moment}" in line for line in trace), "it never came to that write"


def test_a_domain_that_is_deleted_lets_its_work_end() -> None:
    """Also a task that has to begin again: it would wait for the Domain, and the Domain for it."""
    outcomes = Outcomes()
    task = TaskSpec(alias="t0", parties=("alice", "bob"), failures=1, retries=1)
    job = JobSpec(name="last", tasks=(task, TaskSpec(alias="t1", parties=("bob",), dependencies=("t0",))))
    outcomes.add(job)

    async def scenario(world: World) -> None:
        guard(world)
        world.add_manager("controllers", controllers)
        await build(world, outcomes)
        await world.create(job.manifest())
        await world.run_until(lambda: _is(world, "last", "Running"), timeout_s=60)
        domains = await world.store.resource(GROUP, "Domain")
        await world.store.delete(domains, "bob")
        await world.run_until(lambda: _is(world, "last", "Succeeded"), timeout_s=600, what="the job's success")

        async def is_gone() -> bool:
            return "bob" not in {name_of(one) for one in await world.objects(GROUP, "Domain")}

        await world.run_until(is_gone, timeout_s=600, what="the Domain's end")

    simulate(scenario, namespaces=(*KUBERNETES_NAMESPACES, CROSS_DOMAIN))


async def _is(world: World, name: str, phase: str) -> bool:
    return (await phases(world)).get(name) == phase


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200 if SOAK else 4))
def test_contended_parties(seed: int) -> None:
    """More jobs than fit at once, over parties in every combination, in a storm: none starts in part, all end."""
    outcomes = Outcomes()

    async def scenario(world: World) -> None:
        guard(world)
        chance = world.loop.entropy.stream("work")
        world.add_manager("controllers", controllers, replicas=2)
        await build(world, outcomes)
        for n in range(6):
            parties = chance.sample(PARTIES, chance.choice([1, 2, 3]))
            task = TaskSpec(alias="t0", parties=tuple(parties), cpu=chance.choice([1, 2, 4]))
            job = JobSpec(name=f"job{n}", tasks=(task,))
            outcomes.add(job)
            await world.create(job.manifest())
            await world.run_for(chance.uniform(0, 5), every_s=5.0)
        await world.run_for(60, every_s=10.0)
        world.calm_down()

        async def all_succeeded() -> bool:
            return set((await phases(world)).values()) == {"Succeeded"} and not await held_by_finished_work(world)

        await world.run_until(all_succeeded, timeout_s=3_600, every_s=10.0, what="success of all jobs")

    chaos = Chaos(kill_every_s=30, partition_every_s=60, partition_s=(1, 20), lease_loss_every_s=300)
    simulate(scenario, seed=seed, faults=STORMY, chaos=chaos, namespaces=(*KUBERNETES_NAMESPACES, CROSS_DOMAIN))
