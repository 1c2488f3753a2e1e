"""The controller of KusciaJobs on the embedded store, in virtual time. The test itself stands for the task controller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import pytest
from tests.controllers.kuscia_jobs import VERSION, image, job, stage, task
from tests.store.stores import memory_store

from muster.controllers.kuscia_job import JOBS_BY_PHASE, KusciaJobs
from muster.controllers.manager import Manager
from muster.controllers.runtime import RECONCILES
from muster.objects.kinds.kuscia_base import GROUP
from muster.objects.labels import Muster
from muster.objects.status import Invalid, NotFound, Raw
from muster.sim.clock import current_loop, virtual
from muster.store.contract import Store
from muster.store.embedded import EmbeddedStore
from muster.store.guarded import GuardedStore

NS = "cross-domain"
T = TypeVar("T")


def domain(name: str, role: str = "") -> Raw:
    spec = {"role": role} if role else {}
    return {"apiVersion": VERSION, "kind": "Domain", "metadata": {"name": name}, "spec": spec}


class Counting(GuardedStore):
    """Counts writes, by verb and kind."""

    def __init__(self, inner: EmbeddedStore) -> None:
        super().__init__(inner)
        self.counts: dict[str, int] = {}
        self.refuses: Callable[[Raw], bool] = lambda _raw: False

    async def write(self, verb: str, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        return await operation()

    async def create(self, resource: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        self._count("create", resource.kind)
        if self.refuses(obj):
            raise Invalid("spec.parties: Forbidden: not on a Monday", kind=resource.plural, group=resource.group, name="x")
        return await super().create(resource, obj, *args, **kwargs)

    async def patch(self, resource: Any, *args: Any, **kwargs: Any) -> Any:
        self._count("patch", resource.kind)
        return await super().patch(resource, *args, **kwargs)

    def _count(self, verb: str, kind: str) -> None:
        self.counts[f"{verb} {kind}"] = self.counts.get(f"{verb} {kind}", 0) + 1


class Bench:
    """A store with two parties and an application, the controller, and hands to move tasks with."""

    def __init__(self, store: EmbeddedStore, controller: KusciaJobs) -> None:
        self.store = store
        self.counting = Counting(store)
        self.manager = Manager(self.counting, [controller], clock=current_loop().clock)

    async def create(self, raw: Raw) -> Raw:
        kind = await self.store.resource(raw["apiVersion"].partition("/")[0] if "/" in raw["apiVersion"] else "", raw["kind"])
        return await self.store.create(kind, raw, raw["metadata"].get("namespace"))

    async def job(self, name: str = "job") -> Raw:
        return await self.store.get(await self.store.resource(GROUP, "KusciaJob"), name, NS)

    async def phase(self, name: str = "job") -> str:
        return str(((await self.job(name)).get("status") or {}).get("phase", ""))

    async def phases(self, name: str = "job") -> dict[str, str]:
        return {record["alias"]: record["phase"] for record in (await self.job(name))["status"]["tasks"]}

    async def tasks(self) -> list[Raw]:
        return list((await self.store.list(await self.store.resource(GROUP, "KusciaTask"), NS)).items)

    async def end(self, name: str, phase: str = "Succeeded", **status: Any) -> None:
        kind = await self.store.resource(GROUP, "KusciaTask")
        await self.store.patch(kind, name, {"status": {"phase": phase, **status}}, NS, subresource="status")
        await self.rest()

    async def end_all(self, outcome: Callable[[Raw], str] = lambda _raw: "Succeeded") -> int:
        """Everything that is under way; how many that were."""
        found = [raw for raw in await self.tasks() if (raw.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
        kind = await self.store.resource(GROUP, "KusciaTask")
        for raw in found:
            is_stopped = Muster.STOP in raw["metadata"].get("annotations", {})
            phase = "Failed" if is_stopped else outcome(raw)
            await self.store.patch(kind, raw["metadata"]["name"], {"status": {"phase": phase}}, NS, subresource="status")
        await self.rest()
        return len(found)

    async def command(self, word: str, version: int, name: str = "job", **annotations: str) -> None:
        patch = {"metadata": {"labels": stage(word, version), "annotations": annotations}}
        await self.store.patch(await self.store.resource(GROUP, "KusciaJob"), name, patch, NS)
        await self.rest()

    async def rest(self) -> None:
        await asyncio.sleep(2)


@contextlib.asynccontextmanager
async def bench(controller: KusciaJobs | None = None) -> AsyncIterator[Bench]:
    async with memory_store(NS) as store:
        made = Bench(store, controller or KusciaJobs())
        for raw in (domain("alice"), domain("bob"), image()):
            await made.create(raw)
        made.manager.start()
        await made.rest()
        yield made
        await made.manager.stop()


@virtual
async def test_a_job_from_submission_to_success() -> None:
    async with bench() as b:
        before = JOBS_BY_PHASE.labels("Succeeded")._value.get()
        await b.create(job(task("a"), task("b", "a"), task("c", "a"), maxParallelism=2))
        await b.rest()
        assert await b.phases() == {"a": "Pending", "b": "Waiting", "c": "Waiting"}
        while await b.end_all():
            pass
        assert await b.phase() == "Succeeded"
        assert len(await b.tasks()) == 3
        assert JOBS_BY_PHASE.labels("Succeeded")._value.get() == before + 1
        events = (await b.store.list(await b.store.resource("", "Event"), NS)).items
        assert {e["reason"] for e in events if e["involvedObject"]["kind"] == "KusciaJob"} == {"Started", "Succeeded"}


@virtual
async def test_a_job_waits_for_its_domain_and_its_image_and_goes_on_when_they_come() -> None:
    async with bench() as b:
        await b.create(job(task("a", parties=["alice", "carol"], appImage="other")))
        await b.rest()
        status = (await b.job())["status"]
        assert (status["phase"], status["reason"]) == ("initialized", "PartyUnknown")
        await b.create(domain("carol"))
        await b.rest()
        status = (await b.job())["status"]
        assert (status["phase"], status["reason"]) == ("Running", "AppImageNotFound")
        assert not await b.tasks()
        await b.create(image("other"))
        await b.rest()
        assert len(await b.tasks()) == 1


@virtual
async def test_a_domain_whose_nodes_report_wakes_no_job() -> None:
    async with bench() as b:
        await b.create(job(task("a")))
        await b.rest()
        before = RECONCILES.labels("kuscia-job", "done")._value.get()
        kind = await b.store.resource(GROUP, "Domain")
        for n in range(5):
            status = {"nodeStatuses": [{"name": "n", "status": "Ready", "version": str(n)}]}
            await b.store.patch(kind, "alice", {"status": status}, subresource="status")
        await b.rest()
        assert RECONCILES.labels("kuscia-job", "done")._value.get() == before


@virtual
async def test_commands_through_the_store() -> None:
    async with bench() as b:
        await b.create(job(task("a"), task("b", "a")))
        await b.rest()
        await b.end_all()
        await b.command("Suspend", 1)
        assert await b.phase() == "Suspended"
        await b.end_all()
        assert await b.phases() == {"a": "Succeeded", "b": "Failed"}
        await b.command("Restart", 2)
        await b.rest()
        raw = await b.job()
        assert raw["status"]["phase"] == "Running"
        assert raw["metadata"]["labels"]["kuscia.secretflow/job-stage"] == "Start"
        assert raw["metadata"]["labels"]["kuscia.secretflow/job-stage-version"] == "3"
        await b.end_all()
        assert await b.phase() == "Succeeded"
        await b.command("Restart", 4, **{Muster.RERUN_FROM: "b"})
        await b.rest()
        assert await b.phases() == {"a": "Succeeded", "b": "Pending"}
        await b.command("Cancel", 6)
        await b.end_all()
        assert await b.phase() == "Cancelled"


@virtual
async def test_a_person_approves_for_an_own_party() -> None:
    async with bench(KusciaJobs(workload_approval=True)) as b:
        await b.create(job(task("a", parties=["alice", "bob"])))
        await b.rest()
        assert await b.phase() == "AwaitingApproval"
        kind = await b.store.resource(GROUP, "KusciaJob")
        await b.store.patch(kind, "job", {"status": {"approveStatus": {"bob": "JobAccepted"}}}, NS, subresource="status")
        await b.rest()
        assert await b.phase() == "Running"


@virtual
async def test_two_jobs_that_name_the_same_task() -> None:
    async with bench() as b:
        await b.create(job(task("a", taskID="same"), name="one"))
        await b.rest()
        await b.create(job(task("x", taskID="same"), name="two"))
        await b.rest()
        assert await b.phase("one") == "Running"
        status = (await b.job("two"))["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "TaskNameTaken")
        assert "KusciaJob one" in status["message"]


@virtual
async def test_a_job_made_again_under_its_name_waits_for_the_tasks_of_the_old_one() -> None:
    async with bench() as b:
        await b.create(job(task("a", taskID="mine")))
        await b.rest()
        tasks, jobs = await b.store.resource(GROUP, "KusciaTask"), await b.store.resource(GROUP, "KusciaJob")
        await b.store.patch(tasks, "mine", {"metadata": {"finalizers": [Muster.TASK_FINALIZER]}}, NS)
        old = (await b.tasks())[0]["metadata"]["uid"]
        await b.store.delete(jobs, "job", NS)
        with pytest.raises(NotFound):
            await b.store.get(jobs, "job", NS)
        await b.create(job(task("a", taskID="mine")))
        await b.rest()
        assert (await b.job())["status"]["tasks"][0]["reason"] == "Restarting"
        await b.store.patch(tasks, "mine", {"metadata": {"finalizers": None}}, NS)
        await b.rest()
        (new,) = await b.tasks()
        assert new["metadata"]["uid"] != old
        assert await b.phases() == {"a": "Pending"}


@virtual
async def test_a_task_that_the_server_refuses_fails_and_the_rest_goes_on() -> None:
    async with bench() as b:
        b.counting.refuses = lambda raw: raw.get("metadata", {}).get("name") == "bad"
        await b.create(job(task("a", taskID="bad"), task("b"), task("c", "a"), scheduleMode="BestEffort", maxParallelism=3))
        await b.rest()
        assert await b.phases() == {"a": "Failed", "b": "Pending", "c": "Skipped"}
        record = (await b.job())["status"]["tasks"][0]
        assert record["reason"] == "CreateTaskFailed"
        assert "not on a Monday" in record["message"]
        await b.end_all()
        assert await b.phase() == "Failed"
        assert b.counting.counts["create KusciaTask"] <= 4, "it is not tried for ever"


@virtual
async def test_a_deleted_job_takes_its_tasks_along() -> None:
    async with bench() as b:
        await b.create(job(task("a")))
        await b.rest()
        await b.store.delete(await b.store.resource(GROUP, "KusciaJob"), "job", NS)
        await b.rest()
        assert not await b.tasks()


@virtual
async def test_a_copy_in_the_namespace_of_a_party_is_not_run_here() -> None:
    async with bench() as b:
        copy = job(task("a"))
        copy["metadata"]["namespace"] = "bob"
        await b.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bob"}})
        await b.create(copy)
        await b.rest()
        kind = await b.store.resource(GROUP, "KusciaJob")
        assert not (await b.store.get(kind, "job", "bob")).get("status")
        assert not (await b.store.list(await b.store.resource(GROUP, "KusciaTask"))).items


async def _reconciles(store: Store, b: Bench, jobs: int) -> tuple[float, int]:
    """What it takes to run that many jobs of four tasks: reconciles, and writes of the controller."""
    before = RECONCILES.labels("kuscia-job", "done")._value.get()
    for n in range(jobs):
        await b.create(job(*(task(f"t{m}", *([f"t{m - 1}"] if m else [])) for m in range(4)), name=f"job-{n:04}"))
    await b.rest()
    while await b.end_all():
        pass
    kind = await store.resource(GROUP, "KusciaJob")
    ended = (await store.list(kind, NS)).items
    assert {raw["status"]["phase"] for raw in ended} == {"Succeeded"}
    return RECONCILES.labels("kuscia-job", "done")._value.get() - before, sum(b.counting.counts.values())


@virtual
async def test_work_per_job_does_not_grow_with_the_number_of_jobs() -> None:
    per_job = []
    for jobs in (10, 60):
        async with bench() as b:
            reconciles, writes = await _reconciles(b.store, b, jobs)
            per_job.append((reconciles / jobs, writes / jobs))
    assert per_job[1][0] <= per_job[0][0] * 1.1
    assert per_job[1][1] <= per_job[0][1] * 1.1


@pytest.mark.slow
@virtual
async def test_1000_jobs_of_4_tasks() -> None:
    async with bench() as b:
        reconciles, writes = await _reconciles(b.store, b, 1000)
        assert reconciles <= 1000 * 20
        assert writes <= 1000 * 20


@pytest.mark.slow
@virtual
async def test_2000_tasks_in_one_job() -> None:
    """Twenty levels of a hundred; each task depends on two of the level before."""
    tasks = []
    for n in range(2000):
        level, place = divmod(n, 100)
        above = [f"t{(level - 1) * 100 + (place + k) % 100}" for k in range(2)] if level else []
        tasks.append(task(f"t{n}", *above))
    async with bench() as b:
        before = RECONCILES.labels("kuscia-job", "done")._value.get()
        await b.create(job(*tasks, maxParallelism=100))
        await b.rest()
        rounds = 0
        while await b.end_all():
            rounds += 1
        assert await b.phase() == "Succeeded"
        assert rounds == 20, "each level ran at once"
        assert RECONCILES.labels("kuscia-job", "done")._value.get() - before <= 2000 * 5
        assert b.counting.counts["create KusciaTask"] == 2000
        assert b.counting.counts["patch KusciaJob"] <= 20 * 5, "what ends together is written together"
