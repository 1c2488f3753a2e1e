"""The scheduler with a recorder: what it decides on a real store can be replayed, over segments, leaders and configurations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.controllers.scheduling import create, node, objects, places, pod, pod_group, scheduling
from tests.store.stores import memory_store

from muster.controllers.scheduler import Scheduler
from muster.engine.facts import RunFacts
from muster.history.queries import recent_runs
from muster.history.reader import Log
from muster.history.recorder import HistoryLimits, Recorder
from muster.history.records import SegmentName
from muster.history.replaying import Outcome, engines, known_orders, replay
from muster.history.segments import Sink
from muster.history.stores import DirectoryStore
from muster.objects.labels import Muster
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.policy.order import PolicyOrder
from muster.policy.predict import Predictor
from muster.sim.clock import current_loop, virtual


def _replayed(path: Path) -> Outcome:
    outcome = replay(Log(DirectoryStore(path)), engines(orders=known_orders()))
    assert outcome.is_equal, outcome.difference and outcome.difference.text()
    return outcome


def _recorder(path: Path, **limits: float) -> Recorder:
    return Recorder(DirectoryStore(path), clock=current_loop().clock, limits=HistoryLimits(**limits))  # type: ignore[arg-type]


@virtual
async def test_a_run_is_replayed(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path)
    async with memory_store() as store, scheduling(store, scheduler=Scheduler(history=recorder)):
        await create(store, node("n1", "2"), node("n2", "2"), *(pod(f"p{n}") for n in range(5)))
        await asyncio.sleep(5)
        await create(store, node("n3", "8"), *gang("g", 3))
        await asyncio.sleep(5)
        assert all((await places(store)).values())
    recorder.close()
    outcome = _replayed(tmp_path)
    assert outcome.decisions >= 6
    assert not outcome.findings


@virtual
async def test_the_engine_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Segments of a few seconds: work that waits, and work that is on its way, outlives every one of them."""
    recorder = _recorder(tmp_path, segment_s_max=2.0)
    async with memory_store() as store, scheduling(store, scheduler=Scheduler(history=recorder)) as runner:
        await asyncio.sleep(1)
        first = runner.live_engine
        await create(store, node("n1", "2"), pod("big", "4"), *gang("g", 3, "2"))
        for n in range(6):
            await create(store, pod(f"p{n}", "100m"))
            await asyncio.sleep(3)
        assert first is not None
        assert runner.live_engine is not first
        await create(store, node("n2", "16"))
        await asyncio.sleep(5)
        assert all((await places(store)).values())
        assert runner.is_idle
    recorder.close()
    outcome = _replayed(tmp_path)
    assert outcome.segments >= 4
    assert not outcome.findings


@virtual
async def test_leaders_follow_each_other(tmp_path: Path) -> None:
    async with memory_store() as store:
        for n in range(3):
            recorder = _recorder(tmp_path)
            async with scheduling(store, scheduler=Scheduler(history=recorder)):
                await create(store, node(f"n{n}", "2"), pod(f"p{n}"), pod(f"q{n}"))
                await asyncio.sleep(5)
            recorder.close()
        assert all((await places(store)).values())
    outcome = _replayed(tmp_path)
    assert outcome.segments == 3


@virtual
async def test_a_new_term_knows_the_runs_of_the_last(tmp_path: Path) -> None:
    async def past(until: float) -> Sequence[RunFacts]:
        return recent_runs(Log(DirectoryStore(tmp_path)), until)

    async with memory_store() as store:
        pods = await store.resource("", "Pod")
        mine = {Muster.QUEUE: "default"}
        for known in (0, 3):
            recorder = _recorder(tmp_path)
            async with scheduling(store, scheduler=Scheduler(history=recorder, past=past)) as runner:
                await create(store, node(f"n{known}", "8"), *(pod(f"p{known}-{n}", labels=mine) for n in range(3)))
                await asyncio.sleep(60)
                engine = runner.live_engine
                assert engine is not None
                assert engine.order is not None
                assert isinstance(engine.order.inner, PolicyOrder)
                assert isinstance(predictor := engine.order.inner.learning.predictor, Predictor)
                assert predictor.runs == known
                began = format_time(current_loop().clock() - 50)
                for n in range(3):
                    ended = {"status": {"phase": "Succeeded", "startTime": began}}
                    await store.patch(pods, f"p{known}-{n}", ended, "default", subresource="status")
                await asyncio.sleep(5)
            recorder.close()
    _replayed(tmp_path)


def gang(name: str, count: int, cpu: str = "1") -> list[Raw]:
    members = []
    for n in range(count):
        member = pod(f"{name}-{n}", cpu)
        member["metadata"].setdefault("labels", {})["pod-group.scheduling.sigs.k8s.io"] = name
        members.append(member)
    return [pod_group(name, count), *members]


class _Full(DirectoryStore):
    """A disk on which nothing more can be written, for a while."""

    is_full = False

    def create(self, name: SegmentName) -> Sink:
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().create(name)


@virtual
async def test_a_log_that_can_not_be_written_is_said_and_stops_nobody(tmp_path: Path) -> None:
    disk = _Full(tmp_path)
    disk.is_full = True
    limits = HistoryLimits(flush_s=0.01, retry_s=10.0, retry_s_max=10.0)
    recorder = Recorder(disk, clock=current_loop().clock, limits=limits)
    async with memory_store() as store, scheduling(store, scheduler=Scheduler(history=recorder)) as runner:
        await create(store, node("n1", "8"), pod("a"))
        await asyncio.sleep(1)
        recorder.flush()
        await create(store, pod("b"))
        await asyncio.sleep(5)
        assert all((await places(store)).values())
        assert ["No space left" in why for why in runner.failing.values()] == [True]
        disk.is_full = False
        recorder.flush()
        await asyncio.sleep(30)
        for name in ("c", "d"):
            await create(store, pod(name))
            await asyncio.sleep(5)
            recorder.flush()
        assert all((await places(store)).values())
        assert not runner.failing
        said = [one for one in await objects(store, "Event") if one["involvedObject"]["kind"] == "Namespace"]
    said.sort(key=lambda one: str(one["firstTimestamp"]))
    recorder.close()
    assert [(one["type"], one["reason"]) for one in said] == [
        ("Warning", "DecisionsNotRecorded"),
        ("Normal", "DecisionsRecorded"),
    ]
    assert "No space left on device" in said[0]["message"]
    assert said[0]["involvedObject"]["name"] == "kube-system"
    outcome = _replayed(tmp_path)
    assert any("steps before it were not recorded" in finding.text for finding in outcome.findings)
