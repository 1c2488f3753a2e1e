"""The status of PodGroups: phases from counts, and the controller that writes them."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.scheduling import create, pod, pod_group
from tests.store.stores import memory_store

from muster.controllers.actions import Patch
from muster.controllers.manager import Manager
from muster.controllers.pod_groups import Member, PodGroups, plan, status_of
from muster.objects.kinds.sigs import PodGroupStatus
from muster.objects.status import Raw
from muster.objects.time import format_time
from muster.sim.clock import current_loop, virtual
from muster.store.contract import Store

NOW = 1_800_000_000.0
WAITING, BOUND = Member("Pending"), Member("Pending", has_node=True)
RUNNING, DONE, FAILED = (Member(phase, has_node=True) for phase in ("Running", "Succeeded", "Failed"))


@pytest.mark.parametrize(
    ("least", "members", "phase"),
    [
        pytest.param(2, [], "Pending", id="no pods"),
        pytest.param(2, [WAITING], "Pending", id="too few"),
        pytest.param(0, [WAITING], "Pending", id="no minimum"),
        pytest.param(2, [WAITING, WAITING], "PreScheduling", id="enough"),
        pytest.param(2, [BOUND, WAITING], "Scheduling", id="one has a node"),
        pytest.param(3, [BOUND], "Scheduling", id="others are gone"),
        pytest.param(2, [BOUND, BOUND, WAITING], "Scheduled", id="enough have nodes"),
        pytest.param(2, [RUNNING, BOUND], "Scheduled", id="one is up"),
        pytest.param(2, [RUNNING, RUNNING], "Running", id="enough are up"),
        pytest.param(2, [RUNNING, DONE], "Running", id="one is done"),
        pytest.param(2, [RUNNING, FAILED], "Failed", id="one failed"),
        pytest.param(3, [RUNNING, FAILED], "Scheduling", id="one failed, and others never came"),
        pytest.param(2, [DONE, DONE, RUNNING], "Finished", id="enough are done"),
        pytest.param(2, [DONE, DONE, FAILED], "Finished", id="enough are done, though one failed"),
    ],
)
def test_phases(least: int, members: list[Member], phase: str) -> None:
    status = status_of(PodGroupStatus(), least, members, NOW)
    assert status.phase == phase
    assert status.scheduled == sum(member.has_node for member in members)
    assert status.schedule_start_time == (format_time(NOW) if status.scheduled else "")


def test_owners_are_named_once_in_order() -> None:
    members = [Member(owners=("ns/b",)), Member(owners=("ns/a", "ns/b"))]
    assert status_of(PodGroupStatus(), 2, members, NOW).occupied_by == "ns/a,ns/b"


def test_the_first_start_is_remembered_while_there_are_pods() -> None:
    old = PodGroupStatus(schedule_start_time="2026-01-01T00:00:00Z")
    assert status_of(old, 1, [WAITING], NOW).schedule_start_time == "2026-01-01T00:00:00Z"
    assert status_of(old, 1, [], NOW).schedule_start_time == ""


def group(status: Raw) -> Raw:
    raw = pod_group("g", 1)
    return {**raw, "metadata": {**raw["metadata"], "uid": "u", "resourceVersion": "7"}, "status": status}


def test_what_is_no_longer_so_is_taken_away() -> None:
    [action] = plan(group({"phase": "Running", "running": 1, "scheduled": 1, "extra": "kept"}), [], NOW).actions
    assert isinstance(action, Patch)
    assert action.patch == {"status": {"phase": "Pending", "running": None, "scheduled": None}}
    assert action.target.resource_version == "7"


def test_what_is_so_is_not_written() -> None:
    assert plan(group({"phase": "Pending", "running": 0}), [], NOW).actions == ()


def test_a_group_that_makes_no_sense_is_left_alone() -> None:
    assert plan({**group({}), "spec": {"minMember": "many"}}, [WAITING], NOW).actions == ()


async def status(store: Store, name: str) -> Raw:
    found = await store.get(await store.resource("scheduling.sigs.k8s.io", "PodGroup"), name, "default")
    answer: Raw = found.get("status") or {}
    return answer


@virtual
async def test_pods_of_any_operator_count() -> None:
    """By the label of the present, those of the past, and Koordinator's annotation; other groups and namespaces do not."""
    async with memory_store() as store:
        pods = await store.resource("", "Pod")
        named = [
            pod("a", labels={"pod-group.scheduling.sigs.k8s.io": "g"}),
            pod("b", labels={"pod-group.scheduling.sigs.k8s.io/name": "g"}),
            pod("c", labels={"scheduling.x-k8s.io/pod-group": "g"}),
            pod("d"),
            pod("e", gang="other"),
        ]
        named[3]["metadata"]["annotations"] = {"gang.scheduling.koordinator.sh/name": "g"}
        old = pod_group("g", 4)
        old["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z"
        manager = Manager(store, [PodGroups()], clock=current_loop().clock)
        manager.start()
        try:
            await create(store, old, *named)
            await asyncio.sleep(1)
            assert await status(store, "g") == {"phase": "PreScheduling"}
            for name in "abcd":
                await store.bind(name, "default", "n1")
                await store.patch(pods, name, {"status": {"phase": "Running"}}, "default", subresource="status")
            await asyncio.sleep(1)
            counted = await status(store, "g")
            assert {key: counted[key] for key in ("phase", "scheduled", "running")} == {
                "phase": "Running",
                "scheduled": 4,
                "running": 4,
            }
            for name in "abcd":
                await store.delete(pods, name, "default", grace_period_s=0)
            await asyncio.sleep(1)
            assert await status(store, "g") == {"phase": "Pending"}
        finally:
            await manager.stop()
