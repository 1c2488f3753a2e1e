"""When Events go."""

from __future__ import annotations

import asyncio

import pytest
from tests.store.stores import memory_store

from muster.controllers.actions import Delete, Target
from muster.controllers.event_expiry import EventExpiry, EventView, plan
from muster.controllers.manager import Manager
from muster.objects.status import Raw
from muster.objects.time import format_micro_time, format_time, parse_time
from muster.objects.view import view_of
from muster.sim.clock import current_loop, virtual

NOW = parse_time("2026-01-05T08:00:00Z")
TARGET = Target("", "Event", "web.1", "shop", "u1", "7")


def ago(seconds: float) -> str:
    return format_time(NOW - seconds)


@pytest.mark.parametrize(
    ("event", "left_s"),
    [
        pytest.param({"lastTimestamp": ago(10)}, 3590, id="fresh"),
        pytest.param({"lastTimestamp": ago(3599)}, 1, id="almost"),
        pytest.param({"lastTimestamp": ago(3600)}, None, id="an hour to the second"),
        pytest.param({"lastTimestamp": ago(10), "firstTimestamp": ago(99_999)}, 3590, id="it happened again"),
        pytest.param({"lastTimestamp": None, "eventTime": format_micro_time(NOW - 60)}, 3540, id="new style, one time"),
        pytest.param(
            {"eventTime": ago(9_999), "series": {"lastObservedTime": ago(100), "count": 3}}, 3500, id="new style, a series"
        ),
        pytest.param({"metadata": {"creationTimestamp": ago(600)}}, 3000, id="only its creation is known"),
        pytest.param({"lastTimestamp": "yesterday", "metadata": {"creationTimestamp": ago(600)}}, 3000, id="unreadable"),
        pytest.param({}, None, id="no time at all"),
        pytest.param({"lastTimestamp": format_time(NOW + 86_400)}, 3600, id="from the future: looked at again in an hour"),
    ],
)
def test_plan(event: Raw, left_s: float | None) -> None:
    actions, again_s = plan(TARGET, view_of(EventView, event), NOW)
    if left_s is None:
        assert actions == [Delete(TARGET)], "exactly the version that was judged"
        assert again_s is None
    else:
        assert actions == []
        assert again_s == pytest.approx(left_s)


@virtual
async def test_events_of_both_groups_go_and_one_that_happens_again_stays() -> None:
    async with memory_store() as store:
        loop = current_loop()
        old, new = await store.resource("", "Event"), await store.resource("events.k8s.io", "Event")
        manager = Manager(store, [EventExpiry()], clock=loop.clock)
        manager.start()
        for name in ("once", "again"):
            classic = {"reason": "R", "message": "m", "type": "Normal", "lastTimestamp": format_time(loop.clock())}
            about = {"kind": "Pod", "name": "p", "namespace": "default"}
            metadata = {"name": name, "namespace": "default"}
            await store.create(
                old, {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about, **classic}, "default"
            )
        modern = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "modern", "namespace": "default"},
            "eventTime": format_micro_time(loop.clock()),
            "reportingController": "x.example/y",
            "reportingInstance": "z",
            "action": "Test",
            "reason": "R",
            "type": "Normal",
            "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        }
        await store.create(new, modern, "default")
        await asyncio.sleep(3_000)
        await store.patch(old, "again", {"lastTimestamp": format_time(loop.clock()), "count": 2}, "default")
        await asyncio.sleep(590)
        assert len((await store.list(old, "default")).items) == 3
        await asyncio.sleep(20)
        assert [e["metadata"]["name"] for e in (await store.list(old, "default")).items] == ["again"]
        await asyncio.sleep(3_600)
        assert (await store.list(old, "default")).items == []
        assert manager.health().is_healthy
        await manager.stop()
