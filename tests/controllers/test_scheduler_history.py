"""The scheduler with a recorder: what it decides on a real store can be replayed, over segments, leaders and configurations."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.controllers.scheduling import create, node, places, pod, pod_group, scheduling
from tests.store.stores import memory_store

from muster.controllers.scheduler import Scheduler
from muster.history.reader import Log
from muster.history.recorder import HistoryLimits, Recorder
from muster.history.replaying import Outcome, engines, known_orders, replay
from muster.history.stores import DirectoryStore
from muster.objects.status import Raw
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


def gang(name: str, count: int, cpu: str = "1") -> list[Raw]:
    members = []
    for n in range(count):
        member = pod(f"{name}-{n}", cpu)
        member["metadata"].setdefault("labels", {})["pod-group.scheduling.sigs.k8s.io"] = name
        members.append(member)
    return [pod_group(name, count), *members]
