"""Finished jobs go by age, number and size, the oldest first; what has not ended, or is to be kept, stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.kuscia_jobs import job, task
from tests.store.stores import memory_store

from muster.controllers.actions import Target
from muster.controllers.job_cleanup import CONFIG_NAME, Finished, JobCleanup, Limits, plan, read_limits
from muster.controllers.manager import Manager
from muster.objects.kinds.kuscia_base import GROUP
from muster.objects.labels import Muster
from muster.objects.status import AlreadyExists, Raw
from muster.objects.time import format_time
from muster.sim.clock import current_loop, virtual
from muster.store.embedded import EmbeddedStore

NS = "cross-domain"
HOUR = 3600.0
NOW = 1_000_000.0


def finished(name: str, age_s: float, size: int = 10, ttl_s: float | None = None) -> Finished:
    return Finished(
        ended_s=NOW - age_s, target=Target(GROUP, "KusciaJob", name, NS, f"uid-{name}"), size_bytes=size, ttl_s=ttl_s
    )


def limits(hours: float = 720, count: int = 100, size: int = 1000) -> Limits:
    return Limits(age_s=hours * HOUR, count_max=count, bytes_max=size)


THREE = [finished("young", 10), finished("old", 30), finished("middle", 20)]


@pytest.mark.parametrize(
    ("jobs", "bounds", "doomed", "next_s"),
    [
        pytest.param([], limits(), [], None, id="nothing"),
        pytest.param(THREE, limits(), [], 720 * HOUR - 30, id="within all limits"),
        pytest.param([finished("a", 720 * HOUR)], limits(), [("a", "age")], None, id="exactly too old"),
        pytest.param([finished("a", 720 * HOUR - 1)], limits(), [], 1.0, id="not quite"),
        pytest.param(THREE, limits(count=1), [("old", "count"), ("middle", "count")], 720 * HOUR - 10, id="too many"),
        pytest.param(THREE, limits(count=0), [("old", "count"), ("middle", "count"), ("young", "count")], None, id="none kept"),
        pytest.param(THREE, limits(size=25), [("old", "bytes")], 720 * HOUR - 20, id="too large together"),
        pytest.param(
            [finished("big", 1, size=5000), finished("small", 2)],
            limits(),
            [("small", "bytes"), ("big", "bytes")],
            None,
            id="oldest first, even when a younger one is the large one",
        ),
        pytest.param([finished("a", 60, ttl_s=60), finished("b", 59, ttl_s=60)], limits(), [("a", "age")], 1.0, id="own age"),
        pytest.param([finished("a", 999 * HOUR, ttl_s=1e9)], limits(), [], 1e9 - 999 * HOUR, id="own age may be longer"),
        pytest.param(
            [finished("b", 5), finished("a", 5), finished("c", 5)],
            limits(count=2),
            [("a", "count")],
            720 * HOUR - 5,
            id="by name",
        ),
        pytest.param(
            [finished("a", 800 * HOUR), *THREE], limits(count=3), [("a", "age")], 720 * HOUR - 30, id="age counts first"
        ),
    ],
)
def test_plan(jobs: list[Finished], bounds: Limits, doomed: list[tuple[str, str]], next_s: float | None) -> None:
    verdicts = plan(jobs, bounds, NOW)
    assert [(one.target.name, limit) for one, limit in verdicts.doomed] == doomed
    assert verdicts.next_s == next_s


@given(
    ages=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=30),
    count=st.integers(0, 30),
    size=st.integers(0, 1500),
    hours=st.integers(0, 100),
)
def test_what_is_left_is_within_the_limits_and_nothing_goes_for_nothing(
    ages: list[tuple[int, int]], count: int, size: int, hours: int
) -> None:
    jobs = [finished(f"j{n}", age * HOUR, size) for n, (age, size) in enumerate(ages)]
    bounds = limits(hours, count, size)
    gone = [one for one, _ in plan(jobs, bounds, NOW).doomed]
    left = [one for one in jobs if one not in gone]
    assert len(left) <= count
    assert sum(one.size_bytes for one in left) <= size
    assert all(NOW - one.ended_s < hours * HOUR for one in left)
    if gone and left:
        assert max(one.order for one in gone) < min(one.order for one in left), "the oldest"
    in_time = [one for one in gone if NOW - one.ended_s < hours * HOUR]
    if in_time:
        spared = [*left, max(in_time, key=lambda one: one.order)]
        assert len(spared) > count or sum(one.size_bytes for one in spared) > size, "one too many was taken"


@pytest.mark.parametrize(
    ("data", "expected", "errors"),
    [
        pytest.param({}, Limits(), 0, id="nothing said: the defaults"),
        pytest.param({"finishedHours": "24"}, Limits(age_s=24 * HOUR), 0, id="hours"),
        pytest.param({"finishedHours": "0.5"}, Limits(age_s=1800), 0, id="half an hour"),
        pytest.param({"finishedMax": "5", "finishedBytesMax": "2Mi"}, Limits(count_max=5, bytes_max=2**21), 0, id="others"),
        pytest.param({"finishedHours": "soon"}, Limits(age_s=7), 1, id="no number keeps the old"),
        pytest.param({"finishedHours": "-1", "finishedMax": "5"}, Limits(age_s=7, count_max=5), 1, id="one bad, one good"),
        pytest.param({"finishedMax": "9" * 40}, Limits(count_max=8), 1, id="too large"),
        pytest.param({"finishdMax": "5"}, Limits(), 1, id="a key that is not known"),
    ],
)
def test_limits_from_the_config_map(data: dict[str, str], expected: Limits, errors: int) -> None:
    found, said = read_limits(data, Limits(age_s=7, count_max=8, bytes_max=9))
    assert found == expected
    assert len(said) == errors
    for text in said:
        assert text.startswith("data.")


# -- on the store -----------------------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.manager = Manager(store, [JobCleanup()], clock=current_loop().clock)

    async def add(self, name: str, phase: str = "Succeeded", **metadata: Any) -> None:
        kind = await self.store.resource(GROUP, "KusciaJob")
        raw = job(task("a"), name=name)
        raw["metadata"] |= metadata
        await self.store.create(kind, raw, NS)
        ends = phase not in ("Running", "Suspended", "")
        status = {"phase": phase} | ({"completionTime": format_time(current_loop().clock())} if ends else {})
        await self.store.patch(kind, name, {"status": status}, NS, subresource="status")
        await asyncio.sleep(1)

    async def configure(self, **data: str) -> None:
        kind = await self.store.resource("", "ConfigMap")
        raw = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_NAME, "namespace": "kube-system"}}
        try:
            await self.store.create(kind, {**raw, "data": data}, "kube-system")
        except AlreadyExists:
            await self.store.patch(kind, CONFIG_NAME, {"data": {"finishedMax": None, **data}}, "kube-system")

    async def names(self) -> list[str]:
        page = await self.store.list(await self.store.resource(GROUP, "KusciaJob"), NS)
        return [raw["metadata"]["name"] for raw in page.items]

    async def events(self) -> list[Raw]:
        return [
            e
            for e in (await self.store.list(await self.store.resource("", "Event"), "kube-system")).items
            if e["involvedObject"]["kind"] == "ConfigMap"
        ]


@contextlib.asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    async with memory_store(NS, "kube-system") as store:
        made = Bench(store)
        made.manager.start()
        await asyncio.sleep(1)
        yield made
        await made.manager.stop()


def test_a_month_unless_told_otherwise() -> None:
    assert Limits().age_s == 30 * 24 * HOUR


@virtual
async def test_jobs_go_when_they_are_too_old() -> None:
    async with bench() as b:
        await b.configure(finishedHours="2")
        for name, phase in (
            ("ok", "Succeeded"),
            ("bad", "Failed"),
            ("no", "Cancelled"),
            ("runs", "Running"),
            ("held", "Suspended"),
        ):
            await b.add(name, phase)
        await b.add("kept", annotations={Muster.KEEP: "true"})
        await asyncio.sleep(1.9 * HOUR)
        assert len(await b.names()) == 6
        await asyncio.sleep(0.2 * HOUR)
        assert await b.names() == ["held", "kept", "runs"]


@virtual
async def test_limits_change_without_a_restart_and_a_bad_value_changes_nothing() -> None:
    async with bench() as b:
        for n in range(5):
            await b.add(f"j{n}")
        await asyncio.sleep(120)
        assert len(await b.names()) == 5
        await b.configure(finishedMax="3")
        await asyncio.sleep(2)
        assert await b.names() == ["j2", "j3", "j4"]
        await b.configure(finishedMax="three")
        await asyncio.sleep(5)
        assert await b.names() == ["j2", "j3", "j4"]
        (event,) = await b.events()
        assert event["reason"] == "ConfigurationInvalid"
        assert "'three'" in event["message"]
        assert "3 stays in force" in event["message"]
        await b.add("j5")
        await asyncio.sleep(120)
        assert await b.names() == ["j3", "j4", "j5"], "three it is still"
        await b.configure(finishedBytesMax="1500")
        await asyncio.sleep(2)
        assert 0 < len(await b.names()) < 3


@virtual
async def test_a_job_with_a_task_under_way_stays() -> None:
    async with bench() as b:
        await b.add("j")
        owner = await b.store.get(await b.store.resource(GROUP, "KusciaJob"), "j", NS)
        reference = {k: owner["metadata"][k] for k in ("name", "uid")}
        reference |= {"apiVersion": owner["apiVersion"], "kind": "KusciaJob", "controller": True}
        kind = await b.store.resource(GROUP, "KusciaTask")
        raw = {
            "apiVersion": owner["apiVersion"],
            "kind": "KusciaTask",
            "metadata": {"name": "t", "namespace": NS, "ownerReferences": [reference]},
            "spec": {"initiator": "alice", "taskInputConfig": "", "parties": [{"domainID": "alice", "appImageRef": "app"}]},
        }
        await b.store.create(kind, raw, NS)
        await b.store.patch(kind, "t", {"status": {"phase": "Running"}}, NS, subresource="status")
        await b.configure(finishedHours="0")
        await asyncio.sleep(120)
        assert await b.names() == ["j"]
        await b.store.patch(kind, "t", {"status": {"phase": "Failed"}}, NS, subresource="status")
        await asyncio.sleep(120)
        assert await b.names() == []


@virtual
async def test_jobs_of_one_owner_go_by_their_own_age() -> None:
    async with bench() as b:
        kind = await b.store.resource("muster.dev", "Job")
        for name, ttl in (("short", 60), ("long", None)):
            spec: Raw = {"roles": [{"name": "main", "command": ["true"]}]}
            if ttl is not None:
                spec["ttlSecondsAfterFinished"] = ttl
            raw = {
                "apiVersion": "muster.dev/v1alpha1",
                "kind": "Job",
                "metadata": {"name": name, "namespace": NS},
                "spec": spec,
            }
            await b.store.create(kind, raw, NS)
            status = {"phase": "Succeeded", "completionTime": format_time(current_loop().clock())}
            await b.store.patch(kind, name, {"status": status}, NS, subresource="status")
        await asyncio.sleep(50)
        assert len((await b.store.list(kind, NS)).items) == 2
        await asyncio.sleep(80)
        assert [raw["metadata"]["name"] for raw in (await b.store.list(kind, NS)).items] == ["long"]
